"""The right answer, by NumPy from all inputs, and the check of each contender's answer.

Sums are made in float64. An answer in floats of precision eps may differ at an index by P eps times the sum of the
absolute values there (twice the bound of any order of P - 1 additions); minima, maxima and integers not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .data import Array, Data

# Answer of a contender: a dense vector, or indices and values.
Answer = Array | tuple[Array, Array]

# Values compared at once: few enough to stay in the cache.
_BLOCK = 1 << 15
_UFUNCS = {"sum": np.add, "min": np.minimum, "max": np.maximum}


def identity(op: str, dtype: str) -> Any:
    """The value of an absent index."""
    if op == "sum":
        return np.dtype(dtype).type(0)
    limits = np.finfo(dtype) if np.issubdtype(dtype, np.floating) else np.iinfo(dtype)
    if np.issubdtype(dtype, np.floating):
        return np.dtype(dtype).type(np.inf if op == "min" else -np.inf)
    return np.dtype(dtype).type(limits.max if op == "min" else limits.min)


@dataclass(frozen=True)
class Oracle:
    """The union of all indices (None: every index), the reduced value of each, and the error bound of each."""

    indices: Array | None
    values: Array
    bound: Array
    identity: Any

    def fault(self, answer: Answer, whole: bool = True) -> str | None:
        """The error of an answer as text, or None. ``whole=False``: it may have only a part of the indices."""
        if isinstance(answer, tuple):
            return self._fault_of_sparse(*answer, whole)
        if self.indices is None:
            return self._compare(answer, self.values, self.bound)
        if answer.shape[0] <= self.indices[-1]:
            return f"it has {answer.shape[0]} values, and {self.indices[-1]} is an index"
        there = answer[self.indices]
        outside = np.count_nonzero(answer != self.identity) - np.count_nonzero(there != self.identity)
        if outside:
            return f"{outside} indices that no rank put in have a value"
        return self._compare(there, self.values, self.bound)

    def _fault_of_sparse(self, indices: Array, values: Array, whole: bool) -> str | None:
        if whole and len(indices) != len(self.values):
            return f"it has {len(indices)} indices, not {len(self.values)}"
        if (np.diff(indices) <= 0).any():
            return "its indices are not in order, or repeat"
        place = indices
        if self.indices is not None:
            place = np.searchsorted(self.indices, indices)
            if not np.array_equal(self.indices.take(place, mode="clip"), indices):
                return "it has indices that no rank put in"
        return self._compare(values, self.values[place], self.bound[place])

    def _compare(self, got: Array, expected: Array, bound: Array) -> str | None:
        if got.shape != expected.shape:
            return f"its shape is {got.shape}, not {expected.shape}"
        count, first = 0, 0
        for start in range(0, len(got), _BLOCK):
            part = slice(start, start + _BLOCK)
            wrong = ~(np.abs(got[part] - expected[part]) <= bound[part])  # a NaN is wrong too
            if wrong.any():
                first = first if count else start + int(np.argmax(wrong))
                count += int(np.count_nonzero(wrong))
        return f"{count} values are wrong, the first {got[first]} instead of {expected[first]}" if count else None

    def save(self, folder: Path) -> None:
        """Write the answer to files for :meth:`load`."""
        for name, array in (("indices", self.indices), ("values", self.values), ("bound", self.bound)):
            if array is not None:
                np.save(folder / f"oracle_{name}.npy", array)
        np.save(folder / "oracle_identity.npy", self.identity)

    @classmethod
    def load(cls, folder: Path) -> Oracle:
        """Map the files of :meth:`save`."""
        path = folder / "oracle_indices.npy"
        indices = np.load(path, mmap_mode="r") if path.exists() else None
        values, bound = (np.load(folder / f"oracle_{name}.npy", mmap_mode="r") for name in ("values", "bound"))
        return cls(indices, values, bound, np.load(folder / "oracle_identity.npy")[()])


def solve(inputs: Sequence[Data], op: str, dtype: str) -> Oracle:
    """The answer for these inputs."""
    ufunc, wide = _UFUNCS[op], np.dtype(np.float64 if np.issubdtype(dtype, np.floating) else np.int64)
    absent = identity(op, dtype)
    if any(data.indices is None for data in inputs):
        indices = None
        count = inputs[0].n
    else:
        indices = np.unique(np.concatenate([data.sparse()[0] for data in inputs]))
        count = len(indices)
    total, magnitudes = np.full(count, absent, wide), np.zeros(count, wide)
    for data in inputs:
        place = slice(None) if data.indices is None else data.indices
        if data.indices is not None and indices is not None:
            place = np.searchsorted(indices, data.indices)
        total[place] = ufunc(total[place], data.values.astype(wide))
        magnitudes[place] += np.abs(data.values)
    inexact = op == "sum" and np.issubdtype(dtype, np.floating)
    bound = magnitudes * (len(inputs) * np.finfo(dtype).eps) if inexact else np.zeros(count)
    return Oracle(indices, total, bound, absent)
