"""Edges of graphs from other libraries: arrays, sparse matrices of weights, and NetworkX graphs."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..errors import BadInput
from ..inputs.arrays import as_numpy
from .dist_matrix import DistMatrix
from .edges import Edges

__all__ = ["as_graph"]


def as_graph(graph: Any) -> Edges | DistMatrix:
    """Convert a graph to this rank's edges; an :class:`Edges` or :class:`DistMatrix` is returned as it is.

    Parameters
    ----------
    graph : array of shape (n, n), SciPy sparse matrix or networkx.Graph
        ``graph[i, j]`` is the weight of the edge from i to j, as in NetworkX and ``scipy.sparse.csgraph``. All
        ranks pass the same graph, or each a share of the edges: weights of an edge are added over ranks, which scales
        all weights by the same factor if all ranks have all edges. Vertices of a ``networkx.Graph`` are integers.

    Raises
    ------
    BadInput
        If ``graph`` is not a graph, its matrix is not square, or its vertices are not integers.

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos.graph.graph_input import as_graph
    >>> edges = as_graph(np.array([[0.0, 2.0], [0.0, 0.0]]))
    >>> edges.source, edges.target, edges.weight
    (array([0]), array([1]), array([2.]))
    """
    if isinstance(graph, (Edges, DistMatrix)):
        return graph
    scipy_sparse, networkx = sys.modules.get("scipy.sparse"), sys.modules.get("networkx")
    if networkx is not None and isinstance(graph, networkx.Graph):
        return _of_networkx(graph)
    if isinstance(graph, (str, bytes)) or hasattr(graph, "__fspath__"):
        raise BadInput(f"pass a graph, not the name of a file: load(comm, {graph!r}) reads it")
    if scipy_sparse is not None and scipy_sparse.issparse(graph):
        matrix = graph
    elif isinstance(graph, np.ndarray) or hasattr(graph, "__array__"):
        matrix = as_numpy(graph, "a graph")
    else:
        raise BadInput(
            "a graph is Edges, a DistMatrix, a square array, a SciPy sparse matrix or a networkx.Graph, not "
            f"{type(graph).__name__}"
        )
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        hint = ": Edges(x[:, 0], x[:, 1]) has the edges of two columns" if matrix.shape[1:] == (2,) else ""
        raise BadInput(f"a graph needs a square matrix, not one of shape {matrix.shape}{hint}")
    if matrix.dtype.kind not in "biuf":
        raise BadInput(f"weights must be real numbers, not {matrix.dtype}")
    if isinstance(matrix, np.ndarray):
        source, target = np.nonzero(matrix)
        weight = matrix[source, target]
    else:
        coo = matrix.tocoo()
        source, target, weight = coo.row, coo.col, coo.data
    return Edges(
        source.astype(np.int64),
        target.astype(np.int64),
        weight.astype(np.float64),
        shape=(matrix.shape[0], matrix.shape[0]),
        combine="sum",
    )


def _of_networkx(graph: Any) -> Edges:
    """Edges of a networkx graph: undirected ones in both directions; a vertex without edges as a loop of weight 0."""
    wrong = next((node for node in graph if isinstance(node, bool) or not hasattr(node, "__index__")), None)
    if wrong is not None or any(node < 0 for node in graph):
        name = "a negative integer" if wrong is None else repr(wrong)
        raise BadInput(f"vertices must be integers from 0, not {name}: networkx.convert_node_labels_to_integers(G)")
    edges = list(graph.edges(data="weight", default=1.0))
    for source, target, weight in edges:
        if weight is None:
            raise BadInput(f"edge {source} -> {target} has weight None: give it a number, or leave the weight out")
    alone = [(node, node, 0.0) for node in graph if graph.degree(node) == 0]
    rows = np.array([*edges, *alone], np.float64).reshape(-1, 3)
    ends = np.array([pair[:2] for pair in (*edges, *alone)], np.int64).reshape(-1, 2)
    made = Edges(ends[:, 0].copy(), ends[:, 1].copy(), rows[:, 2].copy(), combine="sum")
    return made if graph.is_directed() else made.mirrored()
