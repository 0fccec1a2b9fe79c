"""Messages of one size from each rank to the next, over our own transport: what message and buffer sizes cost.

`comm.allreduce(algorithm="dense_ring")` of P ranks sends 2 (P - 1) messages a rank one after the other, each a P-th of
the array. `packet_SIZE` makes messages of SIZE bytes, and repeats the call if they are small. `buffer_SIZE`
sends messages of 4 MB with socket buffers of SIZE bytes; `buffer_auto` leaves the buffers to the kernel.

The scenario's data is not used; answers are sums of whole numbers, and are checked.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

import skyphos as sky

from ..data import Array, Data
from .base import Contender, Place
from .sky_group import join

LARGE_BYTES = 4 << 20
# One round of small messages is too short to be timed on a busy machine.
_ROUNDS_BYTES = 1 << 16
_MAX_ROUNDS = 64


def messages(size: int, ranks: int) -> int:
    """Messages one after the other that a rank sends in one iteration."""
    return 2 * (ranks - 1) * _rounds(size)


def _rounds(size: int) -> int:
    return max(1, min(_MAX_ROUNDS, _ROUNDS_BYTES // size))


class Packets(Contender):
    """A dense ring with messages of one size."""

    kind: ClassVar[str] = "probe"

    def __init__(self, size: int) -> None:
        self.size, self.rounds = size, _rounds(size)

    def setup(self, place: Place) -> None:
        self.place, self.comm = place, self.join(place)
        count = place.size * self.size // np.dtype(np.float32).itemsize
        held = [np.random.default_rng(rank).integers(256, size=count).astype(np.float32) for rank in range(place.size)]
        self.given, self.expected, self.out = held[place.rank], np.sum(held, axis=0), np.empty(count, np.float32)

    def join(self, place: Place) -> sky.Comm:
        """The group that all contenders of Skyphos share."""
        return join(place)

    def prepare(self, data: Data) -> Array:
        self.out.fill(0)
        return self.given

    def run(self, given: Array) -> Any:
        for _ in range(self.rounds):
            self.comm.allreduce(given, algorithm="dense_ring", out=self.out)
        return self.out

    def answer(self, result: Array) -> None:
        if not np.array_equal(result, self.expected):
            raise RuntimeError("the sums are wrong")

    def settle(self) -> None:
        self.comm.barrier()

    def close(self) -> None:
        self.comm.close()


class Buffers(Packets):
    """A dense ring in a group of its own, because buffers are set when connections are made."""

    def __init__(self, buffer: int | None, number: int) -> None:
        super().__init__(LARGE_BYTES)
        self.buffer, self.number = buffer, number

    def join(self, place: Place) -> sky.Comm:
        # After the ports of plain TCP, one for each group.
        port = place.ports[2] + place.size + self.number
        return sky.init(
            rank=place.rank,
            world_size=place.size,
            rendezvous=f"{place.addresses[0]}:{port}",
            socket_buffer=self.buffer,
        )
