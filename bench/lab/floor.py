"""The floor of a sparse allreduce: the fewest bytes that a rank must receive over all known schedules.

It is not a proven bound: an unknown schedule may go below it. Only payload is counted: no headers, no latency, no
work. P ranks hold sets S_r of indices below n, each with a value.

**Bytes of a set.** log2 C(n, k) bits encode a set of k of n indices, if all sets are equally likely. Clustered indices
take fewer: cut 0..n into B equal ranges, encode the number of indices in each range (log2 C(k + B - 1, B - 1) bits) and
then the indices (the sum of log2 C(n/B, k_b)). The module takes the best of B = 1, 2^4, 2^8 ... Values are added
uncompressed; the total is at most the dense vector. U(m) is the mean of this over the unions of m neighbouring ranks,
so U(1) is an input and U(P) the result.

**Schedules**, bytes received by the mean rank (the worst rank receives no fewer):

    allgather               (P - 1) U(1)
    doubling                U(1) + U(2) + U(4) + ...         each round doubles the ranks already added
    scatter_allgather       (P - 1)/P (U(1) + U(P))          every part straight to its owner; results to all
    groups_of_g             (g - 1)/g (U(1) + U(P)) + (U(g) + U(2g) + ...)/g
                            scatter in groups of g, doubling between groups, allgather in groups
    dense                   2 (P - 1)/P n values

Higher radices in doubling and trees in the scatter receive no less, for U(2m) <= 2 U(m) <= 2 U(2m).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import betaln

from .link import dense_bytes

Indices = npt.NDArray[np.integer]


def log2_choose(n: npt.ArrayLike, k: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """log2 C(n, k), by C(n, k) = 1 / ((n + 1) Beta(n - k + 1, k + 1))."""
    n, k = np.asarray(n, np.float64), np.asarray(k, np.float64)
    bits: npt.NDArray[np.float64] = -(betaln(n - k + 1, k + 1) + np.log1p(n)) / np.log(2)
    return bits.clip(0.0)


def index_bits(indices: Indices, n: int) -> float:
    """The fewest bits that encode a sorted set of distinct indices below ``n``."""
    count = len(indices)
    best = float(log2_choose(n, count))
    for shift in range(n.bit_length() - 1 - 4, 3, -4):
        ranges = -(-n >> shift) if n % (1 << shift) else n >> shift
        if ranges > 1 << 22:
            break
        held = np.bincount(indices >> shift, minlength=ranges)
        widths = np.full(ranges, 1 << shift, np.float64)
        widths[-1] = n - ((ranges - 1) << shift)
        bits = log2_choose(count + ranges - 1, ranges - 1) + log2_choose(widths, held).sum()
        best = min(best, float(bits))
    return best


def set_bytes(indices: Indices, n: int, itemsize: int) -> float:
    """The fewest bytes that encode the indices and their values."""
    return min(index_bits(indices, n) / 8 + len(indices) * itemsize, n * itemsize)


def received_bytes(sets: Sequence[Indices], n: int, itemsize: int) -> dict[str, float]:
    """Bytes that the mean rank receives in each schedule (see above), for these sorted sets of distinct indices."""
    ranks = len(sets)
    if ranks == 1:
        return {"alone": 0.0}
    known: dict[int, float] = {}

    def union(m: int) -> float:
        if m not in known:
            groups = [sets[first : first + m] for first in range(0, ranks - m + 1, m)]
            known[m] = float(np.mean([set_bytes(_union(group), n, itemsize) for group in groups]))
        return known[m]

    found = {
        "dense": dense_bytes(ranks, n * itemsize),
        "allgather": (ranks - 1) * union(1),
        "doubling": _doubling(ranks, union),
        "scatter_allgather": (ranks - 1) / ranks * (union(1) + union(ranks)),
    }
    for g in range(2, ranks):
        if ranks % g == 0:
            scatter = (g - 1) / g * (union(1) + union(ranks))
            found[f"groups_of_{g}"] = scatter + _doubling(ranks // g, union, g) / g
    return found


def _doubling(ranks: int, union: Callable[[int], float], unit: int = 1) -> float:
    """Bytes of doubling between ``ranks`` parties of ``unit`` ranks each."""
    total, held = 0.0, 1
    while held < ranks:
        more = min(held, ranks - held)
        total += union(more * unit)
        held += more
    return total


def _union(sets: Sequence[Indices]) -> Indices:
    return sets[0] if len(sets) == 1 else np.unique(np.concatenate(sets))
