"""Undirected graphs from edges of either direction, as ``networkx.Graph`` has them.

An edge {a, b} may be written as a b, as b a, or as both. Where it is written several times with different weights, the
last one in the order of the file counts, in whichever direction it was written. In a matrix (``combine="sum"``) entries
of the same row and column are added first, as SciPy does; then the later one of (a, b) and (b, a) counts.

Cost: one exchange, which brings both directions of an edge to one rank, and a sort of its edges.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .edges import Edges, Ids
from .partition import random_owners, send

if TYPE_CHECKING:
    from .. import Comm

__all__ = ["both_ways", "one_way"]


def both_ways(comm: Comm, edges: Edges, seed: int = 0) -> Edges:
    """Return each edge once for each of its two directions, both on one rank; a self loop once. Collective.

    Examples
    --------
    >>> import numpy as np
    >>> import skyphos as sky
    >>> from skyphos.graph import Edges
    >>> from skyphos.graph.undirected import both_ways
    >>> with sky.init() as comm:
    ...     both = both_ways(comm, Edges(np.array([1, 2, 2]), np.array([2, 1, 3]), np.array([3.0, 5.0, 1.0])))
    >>> both.source, both.target, both.weight
    (array([1, 2, 2, 3]), array([2, 3, 1, 2]), array([5., 1., 5., 1.]))
    """
    if comm.size > 1:
        edges = send(comm, edges, random_owners(_ordered(edges), comm.size, seed))
    return one_way(edges).mirrored()


def one_way(edges: Edges) -> Edges:
    """Return each undirected edge once, from its smaller id to its larger, with the weight that counts.

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos.graph import Edges
    >>> from skyphos.graph.undirected import one_way
    >>> matrix = Edges(np.array([1, 1, 2]), np.array([2, 2, 1]), np.array([1.0, 2.0, 4.0]), combine="sum")
    >>> one_way(matrix).weight, one_way(matrix.take(slice(0, 2))).weight
    (array([4.]), array([3.]))
    """
    ordered = _ordered(edges)
    if edges.combine == "sum":
        backward = edges.source > edges.target
        pair = _pairs(ordered)
        last = np.zeros(int(pair.max(initial=-1)) + 1, np.int64)
        np.maximum.at(last, pair, np.arange(len(edges)))
        ordered = ordered.take(backward == backward[last[pair]])
    return ordered.merged()


def _ordered(edges: Edges) -> Edges:
    low, high = np.minimum(edges.source, edges.target), np.maximum(edges.source, edges.target)
    return replace(edges, source=low, target=high)


def _pairs(ordered: Edges) -> npt.NDArray[np.int64]:
    """A number for each edge, the same for edges between the same two vertices."""
    names, ends = np.unique(np.concatenate([ordered.source, ordered.target]), return_inverse=True)
    key: Ids = ends[: len(ordered)].astype(np.int64) * len(names) + ends[len(ordered) :]
    return np.asarray(np.unique(key, return_inverse=True)[1], np.int64)
