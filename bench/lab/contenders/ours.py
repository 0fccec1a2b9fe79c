"""`comm.allreduce`, by `auto` or by an algorithm's name."""

from __future__ import annotations

from typing import Any

import numpy as np

import skyphos as sky

from ..data import Data
from ..oracle import Answer
from .sky_group import OverSkyphos


class Ours(OverSkyphos):
    """A SparseVector, or a NumPy array where the input is dense; the result in the form in which it comes."""

    def __init__(self, algorithm: str) -> None:
        self.algorithm = algorithm

    def missing(self) -> str | None:
        has = hasattr(sky, "SparseVector") and hasattr(sky.Comm, "allreduce")
        return None if has else "this version of skyphos has no allreduce"

    def prepare(self, data: Data) -> Any:
        if data.indices is None:
            return np.array(data.values)
        vector: Any = sky.SparseVector  # type: ignore[attr-defined, unused-ignore]
        return vector(np.array(data.indices), np.array(data.values), data.n)

    def run(self, given: Any) -> Any:
        comm: Any = self.comm
        return comm.allreduce(given, op=self.place.op, algorithm=self.algorithm)

    def answer(self, result: Any) -> Answer:
        if isinstance(result, np.ndarray):
            return result
        return np.asarray(result.indices), np.asarray(result.values)
