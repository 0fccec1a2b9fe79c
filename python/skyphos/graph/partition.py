"""Partitions of edges: which rank gets which edge.

An edge partition cuts vertices: each edge lives on one rank, a vertex on every rank that has an edge of it.
For graphs with hubs that is the better cut (PowerGraph; Kylix II.B). Three methods:

- ``random``: by a seeded hash of the edge. Balanced, without state, and independent of the order of the file.
- ``greedy``: PowerGraph's greedy vertex-cut in its *oblivious* variant (Gonzalez et al., OSDI 2012, section
  5.2): each rank places its own share one edge after the other, knowing only its own placements.
- ``row``: all edges *into* a vertex on one rank, which is a cut of the matrix by rows: ranges of vertex ids
  with about equal numbers of edges. Best where neighbouring ids belong together; a hub's edges cannot be split.

Each method puts all copies of an edge on one rank, so that duplicates can be merged there. Edges are sent by
:func:`~skyphos.graph.exchange.move`, once for ``random`` and ``row`` and twice for ``greedy``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..collectives.agreement import agree_arguments, collective, reduce_number
from ..errors import BadInput
from ..inputs.settings import whole
from .edges import Edges, Ids
from .exchange import gather_table, move

if TYPE_CHECKING:
    from .. import Comm

__all__ = ["PARTITIONS", "partition", "random_owners", "send", "weighted_alike"]

PARTITIONS = ("random", "greedy", "row")

# Number of samples of each rank's share. The boundaries of ranges are computed from all ranks' samples.
_SAMPLES = 1024

# Largest size of a part, relative to the average. Without a limit most of a well-connected graph is on one part: on
# citations in file order, 16 parts, the largest had 7.7 times the average. The other remedy, edges in random order
# without a limit, also balances the parts, but puts a vertex on more of them: 4.2 on average; with this limit 3.8.
_SLACK = 1.02


@collective()
def partition(comm: Comm, edges: Edges, method: str = "random", *, seed: int = 0) -> Edges:
    """Move edges to the ranks of their parts, and merge duplicates there.

    Parameters
    ----------
    comm : Comm
        All its ranks must make the call.
    edges : Edges
        This rank's share. Any division is allowed; together the ranks hold each edge as often as the file lists it.
    method : {"random", "greedy", "row"}
        See the start of this module.
    seed : int
        Seed of the hashes.

    Returns
    -------
    Edges
        This rank's share of the partition; each edge once in the whole group.

    Raises
    ------
    BadInput
        If there is no such method.

    Examples
    --------
    >>> import numpy as np
    >>> import skyphos as sky
    >>> from skyphos.graph import Edges, partition
    >>> with sky.init() as comm:
    ...     len(partition(comm, Edges(np.array([0, 0, 1]), np.array([1, 1, 0]))))
    2
    """
    seed = whole(seed, "seed", -(2**63), 2**64 - 1)
    agree_arguments(comm, "partition", method=method, seed=seed)
    if method not in PARTITIONS:
        raise BadInput(f"partition must be one of {', '.join(PARTITIONS)}, not {method!r}")
    if min(edges.source.min(initial=0), edges.target.min(initial=0)) < 0:
        least = min(edges.source.min(), edges.target.min())
        raise BadInput(f"an edge names vertex {least}: ids are not negative")
    if comm.size == 1:
        return edges.merged()
    if method == "random":
        return send(comm, edges, random_owners(edges, comm.size, seed)).merged()
    if method == "row":
        return send(comm, edges, _range_owners(comm, edges.target)).merged()
    # First bring all edges out of a vertex to one rank, neighbouring ids together, because the greedy rule on a rank
    # sees only the edges there.
    edges = weighted_alike(comm, send(comm, edges, _range_owners(comm, edges.source)).merged())
    return send(comm, edges, greedy_owners(edges, comm.size))


def weighted_alike(comm: Comm, edges: Edges) -> Edges:
    """Give unweighted edges the weight 1 if any rank's edges have weights, which merging may add. Collective."""
    if not reduce_number(comm, int(edges.weight is not None), "max") or edges.weight is not None:
        return edges
    return replace(edges, weight=np.ones(len(edges)))


def random_owners(edges: Edges, parts: int, seed: int = 0) -> Ids:
    """Return the part of each edge: a hash of its two ends and the seed.

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos.graph import Edges
    >>> from skyphos.graph.partition import random_owners
    >>> owners = random_owners(Edges(np.arange(1000), np.arange(1000) + 1), 4)
    >>> bool(np.bincount(owners).min() > 200)
    True
    """
    mixed = _mix(edges.source.view(np.uint64) + np.uint64(seed & 0xFFFF_FFFF_FFFF_FFFF))
    mixed ^= edges.target.view(np.uint64)
    return _to_range(_mix(mixed), parts)


def greedy_owners(edges: Edges, parts: int) -> Ids:
    """Return the part of each edge by PowerGraph's greedy rule, one edge after the other.

    A(v) are the parts that already hold an edge of vertex v. The rule for an edge (u, v) is (section 5.2, cases 1 to
    4):

    1. A(u) and A(v) intersect: a part in both;
    2. both are non-empty and disjoint: a part of the vertex that has more edges still to place;
    3. one of them is non-empty: a part of that one;
    4. both are empty: any part;

    and among the parts that the rule allows, the one with the fewest edges so far. A part that holds 2 % more than the
    average is full; the paper has no such limit.

    Parameters
    ----------
    edges : Edges
        In the order in which they are placed.
    parts : int
        Number of parts.

    Returns
    -------
    ndarray of int64, shape (m,)

    Notes
    -----
    The rule is sequential, so this is a Python loop: about a microsecond per edge and part. As in the paper, it costs
    far more than a random cut and pays off over many iterations.

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos.graph import Edges
    >>> from skyphos.graph.partition import greedy_owners
    >>> two_triangles = Edges(np.array([0, 1, 2, 7, 8, 9]), np.array([1, 2, 0, 8, 9, 7]))
    >>> greedy_owners(two_triangles, 2)
    array([0, 0, 0, 1, 1, 1])
    """
    names, ends = np.unique(np.concatenate([edges.source, edges.target]), return_inverse=True)
    left = np.bincount(ends, minlength=len(names)).tolist()
    sources, targets = ends[: len(edges)].tolist(), ends[len(edges) :].tolist()
    parts_of = [0] * len(names)  # A(v), one bit a part
    load = [0] * parts
    owners = []
    bits = [1 << part for part in range(parts)]
    open_parts, full_load = (1 << parts) - 1, _SLACK * len(sources) / parts
    for u, v in zip(sources, targets, strict=True):
        of_u, of_v = parts_of[u] & open_parts, parts_of[v] & open_parts
        allowed = of_u & of_v  # case 1
        if not allowed and of_u and of_v:  # case 2
            allowed = of_u if left[u] >= left[v] else of_v
        elif not allowed:  # cases 3 and 4
            allowed = of_u or of_v or open_parts
        owner, least = -1, len(sources) + 1
        for part in range(parts):
            if allowed & bits[part] and load[part] < least:
                owner, least = part, load[part]
        owners.append(owner)
        load[owner] += 1
        if load[owner] >= full_load:
            open_parts &= ~bits[owner]
        parts_of[u] |= bits[owner]
        parts_of[v] |= bits[owner]
        left[u] -= 1
        left[v] -= 1
    return np.array(owners, np.int64)


def _range_owners(comm: Comm, ids: Ids) -> Ids:
    """The range of each id, such that ranges have about equal numbers of edges; from samples of each rank's share."""
    row = np.zeros(2 * _SAMPLES, np.int64)  # samples, then each one's weight: the rank's edge count (only ratios count)
    if len(ids):
        in_order = np.sort(ids)
        row[:_SAMPLES] = in_order[(np.arange(_SAMPLES) * len(in_order)) // _SAMPLES]
        row[_SAMPLES:] = len(in_order)
    table = gather_table(comm, row)
    points, weights = table[:, :_SAMPLES].ravel(), table[:, _SAMPLES:].ravel()
    order = np.argsort(points, kind="stable")
    below = np.cumsum(weights[order])
    shares = below[-1] * np.arange(1, comm.size) // comm.size
    cuts = points[order][np.searchsorted(below, shares)]
    return np.searchsorted(cuts, ids, side="left")


def send(comm: Comm, edges: Edges, owners: Ids) -> Edges:
    """Move edges to their owners, where they are ordered by sending rank, then as in its share. Collective."""
    columns = [edges.source, edges.target]
    if edges.weight is not None:
        columns.append(edges.weight.view(np.int64))
    rows = move(comm, np.column_stack(columns), owners)
    weight = None if edges.weight is None else np.ascontiguousarray(rows[:, 2]).view(np.float64)
    source, target = np.ascontiguousarray(rows[:, 0]), np.ascontiguousarray(rows[:, 1])
    return replace(edges, source=source, target=target, weight=weight)


def _mix(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele et al. 2014), in place: every bit of the key affects every bit of
    the result."""
    for shift, factor in ((30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB)):
        keys ^= keys >> np.uint64(shift)
        keys *= np.uint64(factor)
    keys ^= keys >> np.uint64(31)
    return keys


def _to_range(mixed: npt.NDArray[np.uint64], parts: int) -> npt.NDArray[Any]:
    """Map 64 random bits to 0 .. parts - 1 without a division."""
    return ((mixed >> np.uint64(32)) * np.uint64(parts) >> np.uint64(32)).astype(np.int64)
