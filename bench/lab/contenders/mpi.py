"""Common code of the contenders over MPI: loading it, and waiting for each other without spinning."""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from .base import Contender, Place

if TYPE_CHECKING:
    from mpi4py import MPI

# Seconds between polls whether all are done. MPICH waits by spinning, which would slow ranks that still work.
_NAP_S = 0.0005


def missing() -> str | None:
    """The reason why MPI is missing, or None."""
    return "mpi4py is not installed: `make lab` installs it" if find_spec("mpi4py") is None else None


def world(place: Place) -> MPI.Intracomm:
    """The communicator of all ranks."""
    import mpi4py

    mpi4py.rc.thread_level = "funneled"
    from mpi4py import MPI

    if (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size) != (place.rank, place.size):
        raise RuntimeError(f"MPI says rank {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}")
    return MPI.COMM_WORLD


class OverMpi(Contender):
    """A contender that uses mpi4py."""

    mpi: ClassVar[bool] = True
    ops: ClassVar[tuple[str, ...]] = ("sum", "min", "max")

    def missing(self) -> str | None:
        return missing()

    def setup(self, place: Place) -> None:
        self.place, self.comm = place, world(place)
        from mpi4py import MPI

        self.op: Any = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX}[place.op]

    def settle(self) -> None:
        request = self.comm.Ibarrier()
        while not request.Test():
            time.sleep(_NAP_S)
