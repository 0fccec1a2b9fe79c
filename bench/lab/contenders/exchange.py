"""No allreduce: messages of one size, each rank to its neighbours, through our own transport.

`exchange_SIZE`: one array of so many bytes to each other rank and one from each, by `comm.alltoall`, a few times in a
row where it is small; its time is that of one. `relay_SIZE`: 8 MB of each rank to all others along a ring, by
`comm.allgather`, with socket buffers of that size; `relay_auto` leaves buffers to the kernel.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

import skyphos as sky

from ..data import Array, Data
from .base import Contender, Place
from .sky_group import OverSkyphos

RELAYED_BYTES = 8 << 20
# One round of small messages is shorter than what the clock of a busy machine is good for.
_ROUNDS_BYTES = 1 << 16
_MOST_ROUNDS = 64


def rounds(size: int) -> int:
    """Exchanges in a row of one iteration."""
    return max(1, min(_MOST_ROUNDS, _ROUNDS_BYTES // size))


def pattern(rank: int, size: int) -> Array:
    """Bytes that tell who sent them."""
    return np.random.default_rng(rank).integers(0, 256, size, dtype=np.uint8)


class Exchange(OverSkyphos):
    """All ranks to all ranks."""

    kind: ClassVar[str] = "probe"

    def __init__(self, size: int) -> None:
        self.size = size

    def prepare(self, data: Data) -> list[Array]:
        return [pattern(self.place.rank, self.size)] * self.place.size

    def run(self, given: list[Array]) -> Any:
        for _ in range(rounds(self.size)):
            got = self.comm.alltoall(given)
        return got

    def answer(self, result: Any) -> None:
        _check(result, self.place, self.size)


class Relay(Contender):
    """Along a ring, in a group of its own."""

    kind: ClassVar[str] = "probe"

    def __init__(self, buffer: int | None, number: int) -> None:
        self.buffer, self.number = buffer, number

    def setup(self, place: Place) -> None:
        self.place = place
        # Beside the row of ports of plain TCP, one a group.
        port = place.ports[2] + place.size + self.number
        self.comm = sky.init(
            rank=place.rank,
            world_size=place.size,
            rendezvous=f"{place.addresses[0]}:{port}",
            socket_buffer=self.buffer,
        )

    def prepare(self, data: Data) -> Array:
        return pattern(self.place.rank, RELAYED_BYTES)

    def run(self, given: Array) -> Any:
        return self.comm.allgather(given, algorithm="ring")

    def answer(self, result: Any) -> None:
        _check(result, self.place, RELAYED_BYTES)

    def settle(self) -> None:
        self.comm.barrier()

    def close(self) -> None:
        self.comm.close()


def _check(result: Any, place: Place, size: int) -> None:
    for rank in range(place.size):
        if not np.array_equal(result[rank], pattern(rank, size)):
            raise RuntimeError(f"what came from rank {rank} is wrong")
