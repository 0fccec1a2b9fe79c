"""Reduce-scatter: the reduction of all ranks' vectors, of which each rank gets a range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import numpy as np

from .. import _skyphos as native
from ..errors import BadInput
from ..inputs.arguments import Op, as_degrees, as_expected, as_n, as_rank
from ..inputs.settings import truth
from ..planning.explanation import WHY_PARTS, Explanation, explanation_of
from ..vectors.booleans import as_native_out, as_result, as_sent
from ..vectors.kinds import AnyVector, is_number
from ..work import Work, perform
from .agreement import collective
from .python_numbers import reduce_numbers
from .vector_input import agree_on_shape, native_vector, opened, vector_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..comm import Comm

__all__ = ["owned_range", "reduce_scatter"]


def owned_range(comm: Comm, n: int, rank: int | None = None) -> range:
    """Indices that a rank (this one, if None) owns of ``n``: an even, contiguous share. Not collective.

    Examples
    --------
    >>> import skyphos as sky
    >>> with sky.init() as comm:
    ...     comm.owned_range(10)
    range(0, 10)
    """
    rank = comm.rank if rank is None else as_rank(rank, comm.size)
    n = as_n(n)
    return range(n * rank // comm.size, n * (rank + 1) // comm.size)


if TYPE_CHECKING:

    class ReduceScatterOptions(TypedDict, total=False):
        """Options of :func:`reduce_scatter` that do not change the kind of its result."""

        op: Op
        degrees: Sequence[int] | None
        expected_nnz: int | None


@overload
def reduce_scatter(
    comm: Comm, x: AnyVector, *, async_op: Literal[True], **options: Unpack[ReduceScatterOptions]
) -> Work[AnyVector]: ...
@overload
def reduce_scatter(
    comm: Comm, x: AnyVector, *, explain: Literal[True], **options: Unpack[ReduceScatterOptions]
) -> tuple[AnyVector, Explanation]: ...
@overload
def reduce_scatter(comm: Comm, x: AnyVector, **options: Unpack[ReduceScatterOptions]) -> AnyVector: ...
@overload
def reduce_scatter(
    comm: Comm, x: Any, *, explain: bool = False, async_op: bool = False, **options: Unpack[ReduceScatterOptions]
) -> Any: ...


@collective()
def reduce_scatter(
    comm: Comm,
    x: Any,
    *,
    op: Op = "sum",
    degrees: Sequence[int] | None = None,
    expected_nnz: int | None = None,
    explain: bool = False,
    async_op: bool = False,
) -> Any:
    """Reduce the vectors of all ranks; each rank gets the part that it owns. Collective.

    Parameters
    ----------
    x, op, async_op
        As in :meth:`allreduce`. A sparse matrix of several rows is scattered by rows, with op ``sum`` or ``mean``; a
        list of numbers is scattered like an array; a single number is refused.
    degrees : sequence of int, optional
        Degrees of the butterfly's layers, for sparse vectors; their product is the group's size. None: those with
        the least predicted time, as for an :meth:`allreduce` by ``auto``. In the first layer distant ranks exchange
        messages, so that each rank ends with its own range.
    expected_nnz : int, optional
        Expected entries of the whole reduction, as in :meth:`allreduce`.
    explain : bool
        Also return an :class:`Explanation` (of sparse vectors).

    Returns
    -------
    The kind that was passed. A SparseVector has the entries of :meth:`owned_range`, which is its ``owned``; for a dense
    array the owned part of the flattened array. With ``explain`` a tuple of that and the explanation.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     y = comm.reduce_scatter(sky.SparseVector([3], np.array([1.0]), n=10))
    >>> y, y.owned
    (SparseVector(n=10, nnz=1, float64), range(0, 10))
    """
    layers, expected, explain = as_degrees(degrees), as_expected(expected_nnz), truth(explain, "explain")
    async_op = truth(async_op, "async_op")
    if is_number(x):
        if layers or explain:
            raise BadInput("degrees= and explain= are for sparse vectors")
        return reduce_numbers(comm, x, op, "reduce_scatter", async_op=async_op)
    vector, back, kind, operation = opened(x, op, rows=True)
    agree_on_shape(comm, "reduce_scatter", x)
    if isinstance(vector, np.ndarray):
        if layers or explain:
            raise BadInput("degrees= and explain= are for sparse vectors")
        out = np.empty(len(comm.owned_range(vector.size)), kind)
        arrays = as_sent(vector, kind), as_native_out(out)
        started = native.reduce_arrays(comm._native, *arrays, operation, None, async_op)
        return perform(started, async_op, lambda _: back(as_result(out, kind)))
    options = native.AllreduceOptions(degrees=layers, split="even", expected_nnz=expected)
    started = native.reduce_scatter(comm._native, native_vector(vector, kind), operation, options, async_op)

    def finish(done: native.Scattered) -> Any:
        part = vector_of(done.part, vector, kind)
        part._owned = range(done.low, done.high)
        returned = back(part)
        if not explain:
            return returned
        requested = "auto" if layers is None else "degrees"
        how = explanation_of(requested, done.explanation, vector.nnz, part.nnz, is_dense=part.is_dense, why=WHY_PARTS)
        return returned, how

    return perform(started, async_op, finish)
