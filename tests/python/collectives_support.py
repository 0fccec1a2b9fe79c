"""A vector that the tests of collectives share."""

from __future__ import annotations

import numpy as np

import skyphos as sky


def vector(rank: int, n: int = 1000, dtype: str = "float64", width: int = 1) -> sky.SparseVector:
    """Some entries with small whole numbers, so that sums are exact."""
    rng = np.random.default_rng([rank, n])
    indices = np.unique(rng.integers(0, n, n // 7))
    shape = (len(indices),) if width == 1 else (len(indices), width)
    return sky.SparseVector(indices, rng.integers(1, 4, shape).astype(dtype), n)
