"""`comm.allreduce`, by `auto` or by an algorithm's name."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

import skyphos as sky

from ..data import Array, Data
from ..oracle import Answer, identity
from .base import Place
from .mpi import missing, world
from .sky_group import OverSkyphos


class Ours(OverSkyphos):
    """A SparseVector, or an array if the input or the algorithm is dense; the result keeps its form.

    An array is reduced into a reused array, like MPICH's.
    """

    def __init__(self, algorithm: str, degrees: tuple[int, ...] | None = None, sparse: bool = False) -> None:
        self.algorithm, self.degrees = algorithm, degrees
        self.sparse = sparse or not algorithm.startswith("dense")
        self.out: Array | None = None

    def missing(self) -> str | None:
        has = hasattr(sky, "SparseVector") and hasattr(sky.Comm, "allreduce")
        return None if has else "this version of skyphos has no allreduce"

    def setup(self, place: Place) -> None:
        super().setup(place)
        self.absent = identity(place.op, place.dtype)

    def prepare(self, data: Data) -> Any:
        if data.indices is not None and self.sparse:
            narrow = np.int32 if data.n < 2**31 else np.int64
            return sky.SparseVector(np.array(data.indices, narrow), np.array(data.values), data.n)
        if self.out is None or len(self.out) != data.n:
            self.out = np.zeros(data.n, data.values.dtype)
        return data.dense(self.absent)

    def run(self, given: Any) -> Any:
        return self._allreduce(given, False)

    def explain(self, given: Any) -> Any:
        """The explanation of a call with this input."""
        return self._allreduce(given, True)[1]

    def _allreduce(self, given: Any, explain: bool) -> Any:
        comm: Any = self.comm  # its algorithms have literal types
        out = self.out if isinstance(given, np.ndarray) else None
        more = {"degrees": self.degrees} if self.degrees else {}
        return comm.allreduce(given, op=self.place.op, algorithm=self.algorithm, out=out, explain=explain, **more)

    def answer(self, result: Any) -> Answer | None:
        if isinstance(result, np.ndarray):
            return result
        if result.is_dense:
            dense: Array = result.to_dense(fill=self.absent)
            return dense
        return result.indices, result.values


class OursOverMpi(Ours):
    """The same over the MPI library's messages."""

    mpi: ClassVar[bool] = True

    def missing(self) -> str | None:
        return missing()

    def setup(self, place: Place) -> None:
        self.place, self.comm = place, sky.Comm.from_mpi4py(world(place))
        self.absent = identity(place.op, place.dtype)
