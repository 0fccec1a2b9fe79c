"""Sizes and rates as text: ``2MB``, ``16 GiB``, ``10Gbit``."""

from __future__ import annotations

import math
import re
from typing import Any

from ..errors import BadInput
from .settings import whole

__all__ = ["as_bytes", "parse_bytes", "parse_rate"]

#: Largest size in bytes, and largest rate in bytes a second.
_MAX = 1e15

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_UNITS |= {f"{unit}i": 1024.0**power for power, unit in enumerate("kmgt", 1)}


def parse_rate(text: str) -> float:
    """Bytes a second of a rate such as 10Gbit or 1.2GB. Raises BadInput for other text.

    Examples
    --------
    >>> from skyphos.inputs.units import parse_rate
    >>> parse_rate("10Gbit"), parse_rate("250 Mbit/s"), parse_rate("1.2GB")
    (1250000000.0, 31250000.0, 1200000000.0)
    """
    number, unit = _parse(text, "(bit|b)(?:/s|ps)?", "rate", "write 10Gbit, 250Mbit or 1.2GB")
    return number / (8 if unit == "bit" else 1)


def parse_bytes(text: str) -> float:
    """Bytes of a size such as 2MB or 16KB. Raises BadInput for other text.

    Examples
    --------
    >>> from skyphos.inputs.units import parse_bytes
    >>> parse_bytes("2MB"), parse_bytes("16 kB"), parse_bytes("512B")
    (2000000.0, 16000.0, 512.0)
    """
    return _parse(text, "(b)", "size", "write 2MB or 16KB")[0]


def _parse(text: str, units: str, kind: str, how: str) -> tuple[float, str]:
    """The number of a text with its prefix, and its unit."""
    found = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)\s*((?:[kmgt]i?)?)" + units, text.strip().lower())
    try:
        number = math.nan if found is None else float(found[1]) * _UNITS[found[2]]
    except ValueError:
        number = math.nan
    if found is None or math.isnan(number):
        raise BadInput(f"{text!r} is not a {kind}: {how}")
    if not 0 < number <= _MAX:
        raise BadInput(f"{text!r} is not a {kind}: it must be above 0, and at most {_MAX:g} bytes")
    return number, found[3]


def as_bytes(value: Any, argument: str, minimum: int = 1) -> int:
    """A number of bytes, also as text such as ``1GB``; an error names the setting.

    Examples
    --------
    >>> from skyphos.inputs.units import as_bytes
    >>> as_bytes("1GB", "memory"), as_bytes("2 KiB", "memory"), as_bytes(1e6, "memory")
    (1000000000, 2048, 1000000)
    """
    if isinstance(value, str):
        try:
            number = parse_bytes(value)
        except BadInput as error:
            raise BadInput(f"{argument}: {error}") from None
        if not number.is_integer():
            raise BadInput(f"{argument}: {value!r} is not a whole number of bytes")
        value = int(number)
    return whole(value, argument, minimum, 2**63 - 1)
