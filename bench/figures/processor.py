"""Speed of this machine's processor on a graph: SciPy's product of a sparse matrix, on one core."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .graphs import ALPHA

Integers = npt.NDArray[np.int64]

#: A repetition that takes this many times the median counts as a straggler.
HELD_UP = 1.25


@dataclass(frozen=True)
class Products:
    """Times of one product repeated.

    Attributes
    ----------
    n, edges : int
    seconds : tuple of float
        Time of each repetition.
    """

    n: int
    edges: int
    seconds: tuple[float, ...]

    @property
    def edge_s(self) -> float:
        """Median seconds an edge."""
        return float(np.median(self.seconds)) / self.edges


@dataclass(frozen=True)
class Stragglers:
    """Share of slow repetitions, and their time relative to the median of all."""

    share: float
    slowness: float


def products(n: int, edges: int, repeats: int) -> Products:
    """Multiply a random power-law graph with a vector of float32."""
    from scipy.sparse import csr_array

    rng = np.random.default_rng(9)
    rows, columns = (_power_law(rng, n, edges) for _ in range(2))
    matrix = csr_array((np.ones(edges, np.float32), (rows, columns)), shape=(n, n))
    vector = np.ones(n, np.float32)
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        product = matrix @ vector
        times.append(time.perf_counter() - begin)
    if not np.isclose(product.sum(dtype=np.float64), edges, rtol=1e-3):
        raise RuntimeError("a product is wrong")
    return Products(n, int(matrix.nnz), tuple(times[1:]))


def stragglers(times: Sequence[float]) -> Stragglers:
    """Repetitions far above the median."""
    relative = np.asarray(times) / np.median(times)
    held_up = relative[relative > HELD_UP]
    if not len(held_up):
        return Stragglers(0.0, 1.0)
    return Stragglers(len(held_up) / len(relative), float(np.median(held_up)))


def _power_law(rng: np.random.Generator, n: int, count: int) -> Integers:
    """Vertices drawn from a power law, in random order."""
    weights = np.cumsum(np.arange(1, n + 1, dtype=np.float64) ** -ALPHA)
    drawn = np.searchsorted(weights, rng.random(count) * weights[-1])
    placed: Integers = rng.permutation(n)[drawn]
    return placed
