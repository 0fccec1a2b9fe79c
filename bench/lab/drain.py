"""Empties the shaper's bucket before a call is timed.

`tc tbf` lets as much as its burst pass at once after a pause: 128 KB, the size that keeps the full rate when the
machine is busy. That is 4 ms at 250 Mbit/s, enough to make a small message look faster than the wire. So before each
call every host keeps its link busy with datagrams to the next host, which drops them, until an agreed time: that
empties the bucket of its own link out and of the next host's link in. What flows back before the call begins is what
the link carries in the time between, some 0.5 ms; the report says how much it was.

Measured at 250 Mbit/s, 100 KB and an answer of a byte, for which the wire needs 3.35 ms: 0.25 to 0.35 ms with a full
bucket, 3.23 to 3.39 ms after a drain.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import termios
import time

PORT = 29_400
_PAYLOAD_BYTES = 1472
_AT_ONCE = 8
_UDP_SEGMENT = 103  # linux/udp.h: one call hands over datagrams of this size


class Drain:
    """One host's part. All hosts need theirs before the first is used."""

    def __init__(self, own: str, following: str) -> None:
        self.sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # nobody reads: the kernel drops what comes
        self.sink.bind((own, PORT))
        self.source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.source.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, _PAYLOAD_BYTES)
        self.source.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 << 10)
        self.source.connect((following, PORT))

    def until(self, deadline_s: float) -> None:
        """Keep the link busy until this time of the monotonic clock, and return when the last datagram has left."""
        datagrams = bytes(_PAYLOAD_BYTES * _AT_ONCE)
        while time.monotonic() < deadline_s:
            with contextlib.suppress(ConnectionRefusedError):
                self.source.send(datagrams)
        while struct.unpack("i", fcntl.ioctl(self.source, termios.TIOCOUTQ, b"\0" * 4))[0]:
            time.sleep(0.0001)

    def close(self) -> None:
        self.sink.close()
        self.source.close()
