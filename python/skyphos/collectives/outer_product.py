"""Sum of outer products: each rank passes factors, and all get the sum of the products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy.typing as npt

from .. import _skyphos as native
from ..errors import BadInput
from ..inputs.arguments import as_one_of
from ..inputs.settings import truth, whole
from ..planning.planner import Stage
from ..vectors.factors import DenseFactors, SparseFactors, open_factors
from ..vectors.low_rank import LowRank
from ..work import perform
from .agreement import collective

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["OuterExplanation", "outer_product_sum"]

Algorithm = Literal["auto", "allgather", "allreduce", "ring", "rabenseifner", "butterfly"]
Exchange = Literal["auto", "direct", "ring", "recursive_doubling", "bruck", "neighbour_exchange", "dissemination"]
Owners = Literal["all", "rack", "host", "rank"]


@dataclass(frozen=True)
class OuterExplanation:
    """A sum of outer products on this rank: choices, predictions, traffic; ``print`` it.

    Attributes
    ----------
    algorithm : str
        The algorithm that ran.
    exchange : str or None
        For ``allgather``: the algorithm of the exchange of factors.
    owners : str
        For ``rabenseifner``: the ranks that together owned the matrix.
    grid : (int, int) or None
        How many rows and columns of blocks the matrix was cut into.
    pairs : int
        Number of outer products of all ranks, K.
    sent_bytes, sent_frames, received_bytes : int
        Traffic of this rank, without the 64-byte header of each frame.
    predicted_seconds : float or None
        Time that ``auto`` predicted; None if the algorithm was named, or factors are sparse.
    stages : tuple of Stage
        The prediction by stage.
    others : tuple of (str, float)
        Other algorithms, with their predicted seconds.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     _, how = comm.outer_product_sum(np.ones(3), np.ones(2), algorithm="allgather", explain=True)
    >>> print(how)
    allgather (direct) of 1 pair
      sent: 0 bytes in 0 frames; received: 0 bytes
    """

    algorithm: str
    exchange: str | None
    owners: str
    grid: tuple[int, int] | None
    pairs: int
    sent_bytes: int
    sent_frames: int
    received_bytes: int
    predicted_seconds: float | None
    stages: tuple[Stage, ...]
    others: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        how = f" ({self.exchange})" if self.exchange else ""
        if self.grid:
            how = f" (owners: {self.owners}, {self.grid[0]} by {self.grid[1]} blocks)"
        lines = [
            f"{self.algorithm}{how} of {self.pairs:,} pair{'s' * (self.pairs != 1)}",
            f"  sent: {self.sent_bytes:,} bytes in {self.sent_frames:,} frames; "
            f"received: {self.received_bytes:,} bytes",
        ]
        if self.predicted_seconds is not None:
            lines.append(f"  predicted: {1e3 * self.predicted_seconds:.3g} ms")
        if self.others:
            rest = ", ".join(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in self.others)
            lines.append(f"  passed over (predicted): {rest}")
        return "\n".join(lines)


def _explanation(report: native.OuterReport) -> OuterExplanation:
    return OuterExplanation(
        report.algorithm,
        report.exchange,
        report.owners,
        report.grid,
        report.pairs,
        sent_bytes=report.traffic.sent_bytes,
        sent_frames=report.traffic.sent_frames,
        received_bytes=report.traffic.received_bytes,
        predicted_seconds=report.predicted_seconds,
        stages=tuple(map(Stage._of, report.stages)),
        others=tuple(report.others),
    )


def _grid(grid: tuple[int, int]) -> tuple[int, int]:
    if not isinstance(grid, (tuple, list)) or len(grid) != 2:
        raise BadInput(f"grid must be (rows, columns) of blocks, not {grid!r}")
    rows, columns = (whole(count, "grid: each number of blocks", 0, 2**32 - 1) for count in grid)
    return rows, columns


@collective()
def outer_product_sum(
    comm: Comm,
    a: Any,
    b: Any,
    *,
    algorithm: Algorithm = "auto",
    out: npt.NDArray[Any] | None = None,
    scatter: bool = False,
    factors: bool = False,
    exchange: Exchange = "auto",
    owners: Owners = "all",
    grid: tuple[int, int] | None = None,
    explain: bool = False,
    async_op: bool = False,
) -> Any:
    """Sum ``a.T @ b`` over all ranks: the gradient of a linear layer, from the factors of each rank. Collective.

    Each rank has r pairs of vectors, r ≥ 0, which may differ between ranks. Factors are r (N + M) numbers,
    the matrix is N M: as long as the factors of all ranks are smaller, the matrix need not be sent.

    Parameters
    ----------
    a : array of shape (r, N), or (N,) for one pair
        Array of float16, bfloat16, float32 or float64 (others are refused); a torch tensor; or sparse: a SciPy sparse
        array, a sparse COO tensor, or a :class:`SparseVector` for one pair.
    b : the same of shape (r, M), or (M,)
        With the dtype of ``a``. If one of the two is sparse, the other may be dense, and is sent as sparse.
    algorithm : str, default "auto"
        ``allgather``: all factors are sent to all ranks, each of which multiplies them. ``rabenseifner``: ranks own
        blocks of the matrix, get the slices of all factors for their block, multiply, and exchange blocks. ``ring``:
        each rank computes its own product panel by panel and adds it to the received partial sums. ``allreduce``,
        ``butterfly``: each rank computes its whole product, then an allreduce. ``auto``: the least predicted time,
        from shapes, pairs of all ranks, the link, and this machine's measured rates of products and of memory.
    out : array of shape (N, M), optional
        Receives the result: in C order, of the factors' dtype; for dense factors only. Reuse it, because new memory
        costs more than the product of thin factors.
    scatter : bool
        Each rank gets only its own rows, ``comm.owned_range(N)``.
    factors : bool
        Return the factors of all ranks as a :class:`LowRank`, which multiplies where it is applied:
        ``W -= lr * G`` then never forms ``G``.
    exchange : str
        For ``allgather`` and ``factors``: as ``algorithm`` of :meth:`allgather`.
    owners : {"all", "rack", "host", "rank"}
        For ``rabenseifner``: the ranks that together own the matrix. "host" keeps blocks within a host, and sends
        factors to each host.
    grid : (int, int), optional
        For ``rabenseifner``: how many rows and columns of blocks the matrix is cut into. None: those for which owners
        need the fewest factors.
    explain : bool
        Also return an :class:`OuterExplanation`.
    async_op : bool
        Return a :class:`Work` immediately; its ``wait()`` returns the result.

    Returns
    -------
    array of shape (N, M), or this rank's rows; a tensor if ``a`` is one. For sparse factors the kind of ``a``: a SciPy
    sparse array of its format, a sparse tensor, or a SparseVector of n = N M in C order, stored dense if it has many
    entries. With ``factors`` a :class:`LowRank`. With ``explain`` a tuple of that and the explanation.

    Raises
    ------
    BadInput
        On all ranks, for shapes that do not fit, another dtype, an ``out`` of another shape, dtype or order, or more
        memory than the ranks of a host have (found before factors are sent).
    Mismatch
        If ranks passed different N, M, dtype or options.

    Notes
    -----
    *DSOP* (Enderlin et al.), section 5, and the future work of section 8. Numbers of 16 bits are multiplied and
    summed in float32, and rounded once. Every number is summed over pairs in the order of ranks (``ring``,
    ``allreduce`` and ``butterfly``: in the order of the reduction), so all ranks get the same bits if their processors
    have the same instructions; blocks of ``rabenseifner`` have one owner each, and are the same on all ranks.
    Memory in addition to the result: the factors of all ranks (``allgather``), the slices of one block, or N M numbers
    (``allreduce``, and ``ring`` with ``scatter``).

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     G = comm.outer_product_sum(np.array([1.0, 2.0]), np.array([3.0, 4.0, 5.0]))
    >>> G
    array([[ 3.,  4.,  5.],
           [ 6.,  8., 10.]])

    A step of gradient descent that never forms the gradient:

    >>> W = np.zeros((2, 3))
    >>> with sky.init() as comm:
    ...     G = comm.outer_product_sum(np.array([1.0, 2.0]), np.array([3.0, 4.0, 5.0]), factors=True)
    ...     W -= 0.5 * G
    >>> W[1]
    array([-3., -4., -5.])
    """
    scatter, factors = truth(scatter, "scatter"), truth(factors, "factors")
    explain, async_op = truth(explain, "explain"), truth(async_op, "async_op")
    as_one_of(algorithm, get_args(Algorithm), "algorithm")
    as_one_of(exchange, get_args(Exchange), "exchange")
    as_one_of(owners, get_args(Owners), "owners")
    opened = open_factors(a, b)
    blocks = None if grid is None else _grid(grid)
    named_owners = None if owners == "all" and blocks is None else owners
    options = native.OuterOptions(
        algorithm,
        exchange=None if exchange == "auto" else exchange,
        owners=named_owners,
        grid=blocks,
        scatter=scatter,
        fresh=out is None,
    )
    if out is not None and (factors or not isinstance(opened, DenseFactors)):
        raise BadInput("out= is for the sum of dense factors")
    matrix = None
    if not factors and isinstance(opened, DenseFactors):
        rows = len(comm.owned_range(opened.n)) if scatter else opened.n
        matrix = opened.matrix(rows, out)

    def with_explanation(result: Any, report: native.OuterReport) -> Any:
        return (result, _explanation(report)) if explain else result

    if isinstance(opened, DenseFactors):
        return _dense(comm, opened, matrix, options, with_explanation, async_op)
    return _sparse(comm, opened, options, with_explanation, async_op, scatter=scatter, factors=factors)


def _dense(
    comm: Comm, opened: DenseFactors, matrix: Any, options: native.OuterOptions, with_explanation: Any, async_op: bool
) -> Any:
    shape, factors = native.OuterShape(opened.n, opened.m, opened.pairs), (opened.a, opened.b)
    if matrix is not None:
        started = native.outer_product_sum(comm._native, factors, matrix, shape, options, async_op)
        return perform(started, async_op, lambda report: with_explanation(opened.back(matrix), report))
    started = native.outer_factors(comm._native, factors, shape, options, async_op)

    def finish(gathered: native.GatheredFactors) -> Any:
        return with_explanation(
            LowRank(gathered.a.reshape(-1, opened.n), gathered.b.reshape(-1, opened.m)), gathered.report
        )

    return perform(started, async_op, finish)


def _sparse(
    comm: Comm,
    opened: SparseFactors,
    options: native.OuterOptions,
    with_explanation: Any,
    async_op: bool,
    *,
    scatter: bool,
    factors: bool,
) -> Any:
    shape = native.OuterShape(opened.n, opened.m, opened.pairs)
    entries = native.FactorEntries(*opened.a), native.FactorEntries(*opened.b)
    if factors:
        started = native.sparse_outer_factors(comm._native, *entries, shape, options, async_op)

        def finish_factors(gathered: native.GatheredFactors) -> Any:
            def matrix(one: native.FactorEntries, width: int) -> Any:
                return opened.matrix_of((one.indices, one.values), gathered.report.pairs, width)

            return with_explanation(
                LowRank(matrix(gathered.a, opened.n), matrix(gathered.b, opened.m)), gathered.report
            )

        return perform(started, async_op, finish_factors)
    started = native.sparse_outer_product_sum(comm._native, *entries, shape, options, async_op)
    rows = len(comm.owned_range(opened.n)) if scatter else opened.n
    return perform(started, async_op, lambda made: with_explanation(opened.back(made.sum, rows), made.report))
