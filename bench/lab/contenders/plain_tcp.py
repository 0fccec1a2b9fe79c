"""No allreduce: each rank sends 16 MB to the next and receives as much from the previous one, by plain sockets.

Its time, relative to the link bound, shows whether the links have the set rate, and how busy the machine is.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import ClassVar

from ..data import Data
from .base import Contender, Place

SENT_BYTES = 16 << 20


class PlainTcp(Contender):
    """A ring of TCP connections."""

    kind: ClassVar[str] = "probe"
    ops: ClassVar[tuple[str, ...]] = ("sum", "min", "max")

    def setup(self, place: Place) -> None:
        following = (place.rank + 1) % place.size
        port = place.ports[2]
        with socket.create_server((place.addresses[place.rank], port + place.rank)) as server:
            server.settimeout(30)
            self.next_rank = _connect(place.addresses[following], port + following)
            self.rank_before, _ = server.accept()
        self.rank_before.settimeout(None)
        self.buffer = bytearray(1 << 18)

    def prepare(self, data: Data) -> bytes:
        return bytes(SENT_BYTES)

    def run(self, given: bytes) -> None:
        sender = threading.Thread(target=self.next_rank.sendall, args=(given,))
        sender.start()
        left = SENT_BYTES
        while left:
            taken = self.rank_before.recv_into(self.buffer, min(left, len(self.buffer)))
            if not taken:
                raise ConnectionError("the rank before closed its connection")
            left -= taken
        sender.join()

    def answer(self, result: None) -> None:
        return None

    def close(self) -> None:
        self.next_rank.close()
        self.rank_before.close()


def _connect(host: str, port: int) -> socket.socket:
    """Connect to a server that may not be there yet."""
    for _attempt in range(300):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection((host, port))
        threading.Event().wait(0.1)
    raise TimeoutError(f"no rank listens at {host}:{port}")
