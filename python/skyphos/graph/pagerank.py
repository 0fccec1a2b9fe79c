"""PageRank (Page, Brin, Motwani, Winograd 1999) by power iteration on the distributed matrix.

    x' = d (A x + (dangling mass) p) + (1 - d) p

with A the adjacency matrix whose columns are scaled to sum 1, d the damping, p the personalisation (1/N
without one), and the dangling mass the sum of x over vertices without out-edges. The fixed point is that of
``networkx.pagerank`` with its default ``dangling=None``.

An iteration makes one reduce, for the rows of A x and two scalars: the dangling mass and the change of the previous
iteration. So the convergence of iteration k is known only after the product of iteration k + 1; x of iteration k is
returned and that product is dropped. A separate reduce for the change would avoid the extra product, but cost every
iteration another round trip.

Cost of an iteration: the product (see :mod:`.dist_matrix`) and five passes over the local vector.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..checkpoint import Checkpoint
from ..collectives.agreement import agree_arguments, collective, reduce_number, together
from ..errors import BadInput
from ..inputs.arguments import as_degrees
from ..inputs.settings import real, whole
from .dist_matrix import DistMatrix
from .edges import Edges, Ids, Weights
from .graph_input import as_graph

if TYPE_CHECKING:
    from .. import Comm, Stats

__all__ = ["PageRank", "TimeSplit", "adjacency_matrix", "pagerank"]

_SLOTS = 2  # dangling mass, change
_NEEDS = "PageRank needs weights that are finite and not negative"
# Sums of weights between which quotients keep all their digits.
_SMALLEST, _LARGEST = 1e-280, 1e300


@dataclass
class TimeSplit:
    """Time of one rank by activity, in seconds.

    Attributes
    ----------
    configure : float
        Building the matrix and its plan.
    wait : float
        Waiting for late peers.
    transfer, merge : float
        Waiting for data in transfer; gathering and adding it.
    iterations : float
        The whole loop: compute, wait, transfer and merge.
    """

    configure: float = 0.0
    wait: float = 0.0
    transfer: float = 0.0
    merge: float = 0.0
    iterations: float = 0.0

    @property
    def compute(self) -> float:
        """Local products and vector updates."""
        return self.iterations - self.wait - self.transfer - self.merge

    def add(self, reduce: Stats) -> None:
        """Add the times of one reduce."""
        self.wait += reduce.wait
        self.transfer += reduce.transfer
        self.merge += reduce.merge


@dataclass
class PageRank:
    """Result of :func:`pagerank` on each rank.

    Attributes
    ----------
    vertices : ndarray of int64
        The ids at which this rank has a result, sorted; an id may be on several ranks.
    ranks : ndarray of float64, aligned with ``vertices``
        Their PageRank; over all vertices they sum to 1.
    owned : ndarray of bool, aligned with ``vertices``
        True where this rank is the vertex's owner. Each vertex has one.
    count : int
        Number of vertices in the whole graph.
    residuals : list of float
        Sum over all vertices of the change in each iteration.
    converged : bool
        False if ``max_iterations`` were reached first.
    seconds : TimeSplit
        On this rank.
    matrix : DistMatrix
        The matrix, with its ``plan``.
    """

    vertices: Ids
    ranks: Weights
    owned: npt.NDArray[np.bool_]
    count: int
    residuals: list[float]
    converged: bool
    matrix: DistMatrix
    seconds: TimeSplit

    @property
    def iterations(self) -> int:
        """Number of iterations that led to ``ranks``."""
        return len(self.residuals)


@collective()
def pagerank(
    comm: Comm,
    graph: Any,
    *,
    damping: float = 0.85,
    tol: float = 1e-8,
    max_iterations: int = 100,
    personalization: Mapping[int, float] | None = None,
    stop: str = "total",
    callback: Callable[[int, float], None] | None = None,
    degrees: Sequence[int] | None = None,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
) -> PageRank:
    """Rank the vertices of a graph. Collective.

    Parameters
    ----------
    comm : Comm
        The group.
    graph : Edges, DistMatrix, array of shape (n, n), SciPy sparse matrix or networkx.Graph
        This rank's share of the edges, from :func:`~skyphos.graph.load` or
        :func:`~skyphos.graph.partition`: then an edge written twice has been merged, as in a
        ``networkx.DiGraph``. Or a graph of NumPy, SciPy or NetworkX, the same on all ranks or a share of its
        edges (:func:`~skyphos.graph.graph_input.as_graph`). Or an adjacency matrix with A_ij the weight of the edge
        from j to i, made with ``slots=2``.
    damping : float
        Chance of following an edge, from 0 up to, not including, 1.
    tol : float
        Stop when the change summed over all vertices falls below it (see ``stop``).
    max_iterations : int
        Stop after this many iterations in any case.
    personalization : mapping of int to float, optional
        Weights with which a random walk restarts at vertices; unlisted vertices have 0. The same on all ranks. Vertices
        that the graph does not have are ignored. Ids may be text (``"1"``), as in JSON. Default: all weights equal.
    stop : {"total", "per_vertex"}
        ``"per_vertex"`` multiplies ``tol`` by the number of vertices: the rule of networkx, which is looser.
    callback : callable, optional
        Called on every rank with (iteration, residual) once the residual of an iteration is known.
    degrees : sequence of int, optional
        Degrees of the butterfly's layers; default chosen by ``Comm.configure``.
    checkpoint : Checkpoint or path, optional
        Where iterations are saved. If it holds a saved iteration of the same graph and settings, the call resumes from
        there, with bitwise the same result.

    Returns
    -------
    PageRank

    Raises
    ------
    BadInput
        On all ranks, if a setting is out of range, a weight is negative, infinite or NaN, there is no vertex, or no
        vertex has a personalisation weight; if a checkpoint is of another graph or other settings, or cannot be
        written.

    Examples
    --------
    >>> import numpy as np
    >>> import skyphos as sky
    >>> from skyphos.graph import Edges, pagerank
    >>> with sky.init() as comm:
    ...     result = pagerank(comm, Edges(np.array([0, 1, 2]), np.array([1, 0, 0])))
    >>> result.ranks.round(3)
    array([0.486, 0.464, 0.05 ])
    """
    begin = time.perf_counter()
    graph = together(comm, lambda: as_graph(graph))
    damping, tol, max_iterations = together(comm, lambda: check_settings(damping, tol, max_iterations, stop))
    personalization = together(comm, lambda: _vertices(personalization))
    degrees, checkpoint = as_degrees(degrees), _as_checkpoint(checkpoint, callback)
    agree_arguments(
        comm,
        "pagerank",
        graph=type(graph).__name__,
        damping=damping,
        tol=tol,
        max_iterations=max_iterations,
        personalization=personalization,
        stop=stop,
        degrees=degrees,
        checkpoint=checkpoint is not None,
        every=None if checkpoint is None else checkpoint.every,
    )
    together(comm, lambda: _check_weights(graph))
    adjacency = graph if isinstance(graph, DistMatrix) else adjacency_matrix(comm, graph, degrees)
    count = int(adjacency.total(np.ones(len(adjacency.index))))
    if count == 0:
        raise BadInput("the graph has no vertex")
    sums = adjacency.column_sums()
    if _are_extreme(adjacency, sums):
        # Column sums overflow, or are so small that quotients would lose digits: scale each column by its largest
        # weight.
        adjacency = adjacency.divide_columns(adjacency.column_maxima())
        sums = adjacency.column_sums()
    dangling = np.flatnonzero((sums == 0.0) & adjacency.owned)
    # The damping goes into the matrix, which saves a pass over the vector in each iteration. Columns that
    # sum to zero, and all columns if the damping is 0, are divided by infinity.
    divisors = np.full_like(sums, np.inf)
    np.divide(sums, damping, out=divisors, where=(sums != 0.0) & (damping != 0.0))
    dA = adjacency.divide_columns(divisors)
    p = _Personalization(adjacency, count, personalization)
    seconds = TimeSplit(configure=time.perf_counter() - begin)
    threshold = tol * count if stop == "per_vertex" else tol

    x, other, change = dA.full(1.0 / count), dA.empty(), _Change(dA.owned)
    moved, iteration = 0.0, 0
    residuals: list[float] = []
    saved = None
    if checkpoint is not None:
        settings = f"{damping!r} {sorted((personalization or {}).items())!r}"
        saved = _Saved(comm, checkpoint, (adjacency.index, adjacency.owned, sums), settings)
        found = saved.restore()
        if found is not None:
            x, moved, iteration, residuals = found
    begin = time.perf_counter()
    while True:
        # x' = d (A x + (dangling mass) p) + (1 - d) p
        dAx, (mass, residual) = dA.matvec_with(x, (x.take(dangling).sum(), moved), out=other)
        seconds.add(dA.plan.stats)
        if iteration:  # the residual is that of the previous iteration, which computed x
            residuals.append(residual)
            if callback is not None:
                callback(iteration, residual)
            if residual < threshold or iteration == max_iterations:
                break
        dAx += p.times(damping * mass + 1.0 - damping)
        moved = change(dAx, x)
        x, other = dAx, x
        iteration += 1
        if saved is not None:
            saved.save(iteration, x, moved, residuals)
    seconds.iterations = time.perf_counter() - begin
    return PageRank(
        vertices=adjacency.index,
        ranks=x,
        owned=adjacency.owned,
        count=count,
        residuals=residuals,
        converged=residuals[-1] < threshold,
        matrix=adjacency,
        seconds=seconds,
    )


def _as_checkpoint(
    checkpoint: Checkpoint | str | os.PathLike[str] | None, callback: Callable[[int, float], None] | None
) -> Checkpoint | None:
    """Convert a folder to a checkpoint; check that the callback is callable."""
    if callback is not None and not callable(callback):
        raise BadInput(f"callback must be a function of (iteration, residual), not {callback!r}")
    return checkpoint if checkpoint is None or isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)


@collective()
def adjacency_matrix(comm: Comm, edges: Edges, degrees: Sequence[int] | None = None) -> DistMatrix:
    """Return the matrix with A_ij the weight of the edge from j to i, ready for :func:`pagerank`. Collective.

    Raises
    ------
    BadInput
        If the edges come from a matrix that is not square.

    Examples
    --------
    >>> import numpy as np
    >>> import skyphos as sky
    >>> from skyphos.graph import Edges, adjacency_matrix
    >>> with sky.init() as comm:
    ...     A = adjacency_matrix(comm, Edges(np.array([0, 0]), np.array([1, 2])))
    ...     A.column_sums()
    array([2., 0., 0.])
    """
    if edges.shape is not None and edges.shape[0] != edges.shape[1]:
        raise BadInput(f"a graph needs a square matrix, not one of {edges.shape[0]} rows and {edges.shape[1]} columns")
    return DistMatrix(
        comm,
        edges.target,
        edges.source,
        edges.weight,
        shape=edges.shape,
        every_vertex=edges.shape is not None,
        slots=_SLOTS,
        degrees=degrees,
    )


class _Change:
    """Sum of |new - old| over the vertices that this rank owns, in one buffer."""

    def __init__(self, owned: npt.NDArray[np.bool_]) -> None:
        self._owned = owned.astype(np.float64)
        self._buffer = np.empty(len(owned))

    def __call__(self, new: Weights, old: Weights) -> float:
        np.subtract(new, old, out=self._buffer)
        np.abs(self._buffer, out=self._buffer)
        return float(self._buffer @ self._owned)


class _Personalization:
    """The vector p, stored as one number if all its entries are equal."""

    def __init__(self, matrix: DistMatrix, count: int, weights: Mapping[int, float] | None) -> None:
        self._p: Weights | float = 1.0 / count
        if weights is None:
            return
        p = np.zeros(len(matrix.index))
        ids = np.array(sorted(weights), dtype=np.int64)
        given = np.array([weights[id_] for id_ in ids.tolist()], np.float64)
        at = np.searchsorted(matrix.index, ids)
        here = at < len(p)
        here[here] = matrix.index[at[here]] == ids[here]
        p[at[here]] = given[here]
        # Divide by the largest weight first, so that the sum cannot overflow.
        largest = reduce_number(matrix.comm, float(p.max(initial=0.0)), "max", np.float64)
        p /= largest or 1.0
        total = matrix.total(p)
        if total == 0.0:
            raise BadInput("personalization: no vertex of the graph has a weight")
        self._p = p / total
        self._buffer = np.empty_like(p)

    def times(self, factor: float) -> Weights | float:
        """Factor times p; valid until the next call."""
        if isinstance(self._p, float):
            return factor * self._p
        return np.multiply(self._p, factor, out=self._buffer)


def check_settings(damping: float, tol: float, max_iterations: int, stop: str = "total") -> tuple[float, float, int]:
    """Damping, tolerance and iterations as numbers; BadInput if one of them or ``stop`` is not allowed."""
    damping, tol = real(damping, "damping"), real(tol, "tol")
    if not 0.0 <= damping < 1.0:
        raise BadInput(f"damping must be from 0 up to, not including, 1, not {damping}")
    if not tol >= 0.0:
        raise BadInput(f"tol must not be negative, but is {tol}")
    max_iterations = whole(max_iterations, "max_iterations", -(2**63), 2**63 - 1)
    if max_iterations < 1:
        raise BadInput(f"max_iterations must be at least 1, not {max_iterations}")
    if not isinstance(stop, str) or stop not in ("total", "per_vertex"):
        raise BadInput(f"stop must be total or per_vertex, not {stop!r}")
    return damping, tol, max_iterations


def _vertices(personalization: Mapping[Any, Any] | None) -> dict[int, float] | None:
    """The personalisation with integer vertices, which may be given as text."""
    if personalization is None:
        return None
    if not hasattr(personalization, "items"):
        raise BadInput(f"personalization must map vertices to weights, and is of type {type(personalization).__name__}")
    found: dict[int, float] = {}
    for key, weight in personalization.items():
        is_text = isinstance(key, str) and re.fullmatch(r"[+-]?[0-9]{1,30}", key.strip())
        vertex = whole(int(key) if is_text else key, "personalization: a vertex", -(2**63), 2**63 - 1)
        try:
            number = real(weight, "")
        except BadInput:
            number = np.nan
        if not 0.0 <= number < np.inf:
            raise BadInput(f"personalization: vertex {vertex} has weight {weight!r}; weights are finite, not negative")
        if vertex in found:
            raise BadInput(f"personalization: vertex {vertex} is given twice")
        found[vertex] = number
    return found


def _check_weights(graph: Edges | DistMatrix) -> None:
    if isinstance(graph, DistMatrix):
        if graph.slots != _SLOTS or graph.shape[0] != graph.shape[1]:
            raise BadInput(f"PageRank needs a square matrix made with slots={_SLOTS}")
        odd = graph.first_entry(lambda values: ~((values >= 0) & (values < np.inf)))
        if odd is not None:
            row, column, value = odd
            raise BadInput(f"the matrix has weight {value} from {column} to {row}: {_NEEDS}")
        return
    if not isinstance(graph, Edges):
        raise BadInput(f"graph must be Edges (skyphos.graph.load) or a DistMatrix, not {type(graph).__name__}")
    if graph.weight is None:
        return
    wrong = np.flatnonzero(~((graph.weight >= 0.0) & (graph.weight < np.inf)))
    if len(wrong):
        at = wrong[0]
        source, target = graph.source[at] + graph.base, graph.target[at] + graph.base
        raise BadInput(f"edge {source} -> {target} has weight {graph.weight[at]:g}: {_NEEDS}")


def _are_extreme(matrix: DistMatrix, sums: Weights) -> bool:
    """True if on any rank the sum of a column is infinite or loses digits."""
    extreme = bool(((sums > _LARGEST) | ((sums != 0.0) & (sums < _SMALLEST))).any())
    return bool(reduce_number(matrix.comm, int(extreme), "max"))


class _Saved:
    """State of an iteration in a checkpoint, with a checksum of graph and settings under the name ``"of"``."""

    def __init__(self, comm: Comm, checkpoint: Checkpoint, graph: tuple[npt.NDArray[Any], ...], settings: str) -> None:
        self._comm, self._checkpoint = comm, checkpoint
        checksum = hashlib.blake2b(settings.encode(), digest_size=16)
        for part in graph:
            checksum.update(part.tobytes())
        self._checksum = np.frombuffer(checksum.digest(), np.uint8)

    def restore(self) -> tuple[Weights, float, int, list[float]] | None:
        found = self._checkpoint.restore(self._comm)
        if found is None:
            return None
        together(self._comm, lambda: self._check(found.state))
        residuals: list[float] = found["residuals"].tolist()
        return found["x"], float(found["moved"]), found.iteration, residuals

    def _check(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        if not np.array_equal(state.get("of", self._checksum[:0]), self._checksum):
            raise BadInput(
                f"{self._checkpoint.path}: holds a checkpoint of another graph, or with other parts or settings: name "
                "another folder"
            )

    def save(self, iteration: int, x: Weights, moved: float, residuals: list[float]) -> None:
        state: dict[str, npt.ArrayLike] = {"of": self._checksum, "x": x, "moved": moved, "residuals": residuals}
        self._checkpoint.save(self._comm, iteration, state)
