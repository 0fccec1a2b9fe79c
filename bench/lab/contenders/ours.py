"""`comm.allreduce`, by `auto` or by an algorithm's name."""

from __future__ import annotations

from typing import Any

import numpy as np

import skyphos as sky

from ..data import Array, Data
from ..oracle import Answer, identity
from .base import Place
from .sky_group import OverSkyphos


class Ours(OverSkyphos):
    """A SparseVector, or an array where the input or the algorithm is dense; the result in the form in which it comes.

    An array is reduced into memory that is kept, as MPICH's is.
    """

    def __init__(self, algorithm: str) -> None:
        self.algorithm = algorithm
        self.out: Array | None = None

    def missing(self) -> str | None:
        has = hasattr(sky, "SparseVector") and hasattr(sky.Comm, "allreduce")
        return None if has else "this version of skyphos has no allreduce"

    def setup(self, place: Place) -> None:
        super().setup(place)
        self.absent = identity(place.op, place.dtype)

    def prepare(self, data: Data) -> Any:
        if data.indices is not None and not self.algorithm.startswith("dense"):
            narrow = np.int32 if data.n < 2**31 else np.int64
            return sky.SparseVector(np.array(data.indices, narrow), np.array(data.values), data.n)
        if self.out is None:
            self.out = np.zeros(data.n, data.values.dtype)
        return data.dense(self.absent)

    def run(self, given: Any) -> Any:
        comm: Any = self.comm  # its algorithms have literal types
        return comm.allreduce(given, op=self.place.op, algorithm=self.algorithm, out=self.out)

    def answer(self, result: Any) -> Answer | None:
        if isinstance(result, np.ndarray):
            return result
        if result.is_dense:
            dense: Array = result.to_dense(fill=self.absent)
            return dense
        return result.indices, result.values
