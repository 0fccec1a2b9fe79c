"""MPICH's dense allreduce, whichever algorithm it chooses."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ..data import Array, Data
from ..oracle import identity
from .base import Place
from .mpi import OverMpi


class Mpich(OverMpi):
    """`MPI_Allreduce` of the dense vector, out of place into a reused array."""

    kind: ClassVar[str] = "dense"

    def setup(self, place: Place) -> None:
        super().setup(place)
        self.out = np.zeros(place.n, place.dtype)

    def prepare(self, data: Data) -> Array:
        return data.dense(identity(self.place.op, self.place.dtype))

    def run(self, given: Array) -> Array:
        self.comm.Allreduce(given, self.out, self.op)
        return self.out

    def answer(self, result: Array) -> Array:
        return result
