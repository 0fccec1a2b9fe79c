"""The one Skyphos group of a rank, shared by its contenders."""

from __future__ import annotations

import os
from typing import ClassVar

import skyphos as sky

from .base import Contender, Place

_joined: dict[int, sky.Comm] = {}


def join(place: Place) -> sky.Comm:
    """The group, joined on the first call with a launcher's variables."""
    if place.rank not in _joined:
        os.environ |= {
            "RANK": str(place.rank),
            "WORLD_SIZE": str(place.size),
            "MASTER_ADDR": place.addresses[0],
            "MASTER_PORT": str(place.ports[0]),
        }
        _joined[place.rank] = sky.init()
    return _joined[place.rank]


class OverSkyphos(Contender):
    """A contender that uses Skyphos."""

    kind: ClassVar[str] = "ours"
    ops: ClassVar[tuple[str, ...]] = ("sum", "min", "max")

    def setup(self, place: Place) -> None:
        self.place = place
        self.comm = join(place)

    def settle(self) -> None:
        self.comm.barrier()

    def close(self) -> None:
        self.comm.close()
