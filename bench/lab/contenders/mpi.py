"""What the contenders over MPI share: loading it, and waiting for each other without burning the cores."""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from .base import Contender, Place

if TYPE_CHECKING:
    from mpi4py import MPI

# Between looks at whether all are done. MPICH waits by spinning, which would slow ranks that still work.
_NAP_S = 0.0005


class OverMpi(Contender):
    """A contender that mpi4py serves."""

    mpi: ClassVar[bool] = True
    ops: ClassVar[tuple[str, ...]] = ("sum", "min", "max")

    def missing(self) -> str | None:
        return "mpi4py is not installed: `make lab` installs it" if find_spec("mpi4py") is None else None

    def setup(self, place: Place) -> None:
        import mpi4py

        mpi4py.rc.thread_level = "funneled"
        from mpi4py import MPI

        self.place = place
        self.comm: MPI.Intracomm = MPI.COMM_WORLD
        self.op: Any = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX}[place.op]
        if (self.comm.rank, self.comm.size) != (place.rank, place.size):
            raise RuntimeError(f"MPI says rank {self.comm.rank} of {self.comm.size}")

    def settle(self) -> None:
        request = self.comm.Ibarrier()
        while not request.Test():
            time.sleep(_NAP_S)
