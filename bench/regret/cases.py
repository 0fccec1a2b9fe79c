"""The cases of the sweep: densities, sizes, ranks, and uniform or power-law indices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.data import Array, Data

DENSITIES = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.3)
SIZES = (1 << 16, 1 << 20, 1 << 24)
RANKS = (2, 4, 8)
KINDS = ("uniform", "zipf")

#: Exponent of the power law. Index i is the i-th most frequent.
EXPONENT = 1.1


@dataclass(frozen=True)
class Case:
    """One row of the table: ``entries`` of ``n`` at each of ``ranks`` ranks."""

    ranks: int
    n: int
    density: float
    kind: str

    @property
    def entries(self) -> int:
        """Entries of a rank; their mean with a power law."""
        return max(1, round(self.n * self.density))

    @property
    def seed(self) -> int:
        """Seed of the random numbers, derived from the case."""
        return abs(hash((self.ranks, self.n, round(1e9 * self.density), KINDS.index(self.kind))))

    def name(self) -> str:
        """The case as text."""
        return f"P={self.ranks} n=2^{self.n.bit_length() - 1} {self.density:g} {self.kind}"

    def record(self) -> dict[str, Any]:
        """The case as plain values."""
        return asdict(self)


def cases(ranks: int) -> Iterator[Case]:
    """All cases of a group."""
    for n, density, kind in product(SIZES, DENSITIES, KINDS):
        yield Case(ranks, n, density, kind)


def inputs(case: Case) -> list[Data]:
    """The input of each rank: incompressible values of float32."""
    share = _shares(case) if case.kind == "zipf" else None
    return [_held(case, np.random.default_rng([case.seed, rank]), share) for rank in range(case.ranks)]


def _held(case: Case, rng: np.random.Generator, share: Array | None) -> Data:
    indices: npt.NDArray[np.int64]
    if share is None:
        indices = np.sort(rng.choice(case.n, case.entries, replace=False, shuffle=False))
    else:
        indices = np.flatnonzero(rng.random(case.n, dtype=np.float32) < share)
        if not len(indices):
            indices = np.zeros(1, np.int64)
    return Data(case.n, indices, rng.standard_normal(len(indices), dtype=np.float32))


def _shares(case: Case) -> Array:
    """Probability of each index in a rank's set: 1 - exp(-λ r^-α), scaled to the density (*Kylix*, section IV)."""
    weights = np.arange(1, case.n + 1, dtype=np.float64) ** -EXPONENT
    low, high = 0.0, 1.0
    while -np.expm1(-high * weights).sum() < case.entries:
        high *= 4
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if -np.expm1(-middle * weights).sum() < case.entries else (low, middle)
    return (-np.expm1(-high * weights)).astype(np.float32)
