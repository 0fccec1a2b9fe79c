"""Gather and sum: the simplest programs with mpi4py and NumPy, in ten lines and in three."""

from __future__ import annotations

import numpy as np

from ..data import Array, Data
from ..oracle import identity
from .base import Place
from .mpi import OverMpi


class Gather(OverMpi):
    """Allgather of indices (32 bits where n allows) and values, then added into a dense vector."""

    def setup(self, place: Place) -> None:
        super().setup(place)
        self.out = np.zeros(place.n, place.dtype)
        self.absent = identity(place.op, place.dtype)
        self.reduce = {"sum": np.add, "min": np.minimum, "max": np.maximum}[place.op]

    def prepare(self, data: Data) -> tuple[Array, Array]:
        indices, values = data.sparse()
        return indices.astype(np.int32 if data.n < 2**31 else np.int64), np.array(values)

    def run(self, given: tuple[Array, Array]) -> Array:
        indices, values = given
        counts = np.empty(self.comm.size, np.int64)
        self.comm.Allgather(np.array([len(indices)], np.int64), counts)
        ends = np.cumsum(counts)
        all_indices, all_values = np.empty(ends[-1], indices.dtype), np.empty(ends[-1], values.dtype)
        self.comm.Allgatherv(indices, [all_indices, counts])
        self.comm.Allgatherv(values, [all_values, counts])
        self.out.fill(self.absent)
        for start, end in zip(ends - counts, ends, strict=True):
            here = all_indices[start:end]
            self.out[here] = self.reduce(self.out[here], all_values[start:end])
        return self.out

    def answer(self, result: Array) -> Array:
        return result


class GatherObjects(Gather):
    """Allgather of the arrays as objects, with NumPy's default indices (64 bits), then `np.add.at`: three lines."""

    def prepare(self, data: Data) -> tuple[Array, Array]:
        indices, values = data.sparse()
        return np.array(indices, np.int64), np.array(values)

    def run(self, given: tuple[Array, Array]) -> Array:
        self.out.fill(self.absent)
        for indices, values in self.comm.allgather(given):
            self.reduce.at(self.out, indices, values)
        return self.out
