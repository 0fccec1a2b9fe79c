"""Keeps the shaper's bucket empty until a call begins.

`tc tbf` lets as much as its burst pass at once after a pause: 128 KB, the size that keeps the full rate when the
machine is busy. That is 4 ms at 250 Mbit/s, enough to make a small message look faster than the wire. So before each
call every host keeps its link busy with datagrams to the next host, which drops them. They empty the bucket of its own
outgoing link and of the next host's incoming link. Each host stops only when its own call starts, because
ranks do not start at exactly the same time. Datagrams still in flight then delay the call.

Measured at 250 Mbit/s, from sending a message until its answer of one byte arrives: a message of 100 KB, for which the
wire needs 3.35 ms, took 0.25 to 0.35 ms with a full bucket and 3.6 to 3.9 ms with an empty one; 20 KB (0.67 ms) took
0.93 to 0.99 ms. So a figure may be a third of a millisecond too high, and none is too low.
"""

from __future__ import annotations

import contextlib
import socket
import threading

PORT = 29_400
_PAYLOAD_BYTES = 1472
_WRITE_S = 0.00025  # time that the link needs for the datagrams of one write
_MAX_DATAGRAMS = 40  # of one write: together less than 64 KB
_UDP_SEGMENT = 103  # linux/udp.h: one call hands over datagrams of this size


class Drain:
    """The drain of one host. All hosts must have made theirs before the first is started."""

    def __init__(self, own: str, following: str, rate_bits: float) -> None:
        self.sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # never read: the kernel drops the datagrams
        self.sink.bind((own, PORT))
        count = max(1, min(_MAX_DATAGRAMS, round(rate_bits * _WRITE_S / 8 / _PAYLOAD_BYTES)))
        self.datagrams = bytes(_PAYLOAD_BYTES * count)
        self.source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.source.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, _PAYLOAD_BYTES)
        # A buffer for one write: the next one waits until the link has taken it.
        self.source.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(self.datagrams))
        self.source.connect((following, PORT))
        self.busy = threading.Event()
        threading.Thread(target=self._send, daemon=True).start()

    def start(self) -> None:
        """Keep the link busy from now on."""
        self.busy.set()

    def stop(self) -> None:
        """Stop sending."""
        self.busy.clear()

    def _send(self) -> None:
        while self.busy.wait():
            with contextlib.suppress(ConnectionRefusedError):
                self.source.send(self.datagrams)
