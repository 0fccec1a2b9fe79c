"""Capacity of a link of the lab: rates as `tc` writes them, framing, and the bound of a dense allreduce.

The shaper (`tc tbf`) counts the bytes of each Ethernet frame without preamble, checksum and gap, and counts a large
segment as the frames it will be cut into. A full frame is 14 bytes of Ethernet, 20 of IP, 32 of TCP (timestamps
included) and 1,448 of payload. Measured: 32 MiB of payload passed as 35,084,746 bytes in 23,185 frames, where
this module computes 35,083,922.
"""

from __future__ import annotations

import re

PAYLOAD_BYTES = 1448
FRAME_BYTES = 1514
FRAMING = FRAME_BYTES / PAYLOAD_BYTES

_BITS = {"bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_BYTES = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20}


def rate_bits(text: str) -> float:
    """Bits a second of a rate as `tc` writes it: ``250mbit``."""
    return _quantity(text, _BITS, "a rate such as 250mbit")


def size_bytes(text: str) -> int:
    """Bytes of a size as `tc` writes it: ``128k``."""
    return int(_quantity(text, _BYTES, "a size such as 128k"))


def seconds(payload_bytes: float, rate: float) -> float:
    """The least time in which a link of ``rate`` bits a second carries a payload over TCP."""
    return payload_bytes * FRAMING * 8 / rate


def dense_bytes(ranks: int, vector_bytes: float) -> float:
    """Bytes that each rank must send and receive in any dense allreduce: 2 (P - 1) / P times the vector."""
    return 2 * (ranks - 1) / ranks * vector_bytes


def _quantity(text: str, units: dict[str, float] | dict[str, int], what: str) -> float:
    found = re.fullmatch(r"([0-9.]+)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in units:
        raise ValueError(f"{text!r} is not {what}")
    return float(found[1]) * units[found[2]]
