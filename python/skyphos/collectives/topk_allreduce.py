"""Top-k allreduce: the k largest entries of a sum (Ok-Topk)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from .. import _skyphos as native
from ..errors import BadInput
from ..inputs.arguments import resolve_op
from ..inputs.arrays import require_floats
from ..inputs.settings import truth, whole
from ..vectors.kinds import open_vector
from ..vectors.sparse_vector import SparseVector
from ..work import Work, perform
from .agreement import collective
from .vector_input import as_vector, native_vector, vector_of

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["topk_allreduce"]


@overload
def topk_allreduce(comm: Comm, x: Any, k: int, *, op: Literal["sum", "mean"] = "sum") -> SparseVector: ...
@overload
def topk_allreduce(
    comm: Comm, x: Any, k: int, *, op: Literal["sum", "mean"] = "sum", contributed: Literal[True]
) -> tuple[SparseVector, npt.NDArray[Any]]: ...
@overload
def topk_allreduce(
    comm: Comm, x: Any, k: int, *, op: Literal["sum", "mean"] = "sum", async_op: Literal[True]
) -> Work[SparseVector]: ...
@overload
def topk_allreduce(
    comm: Comm, x: Any, k: int, *, op: Literal["sum", "mean"] = "sum", contributed: bool = False, async_op: bool = False
) -> Any: ...


@collective()
def topk_allreduce(
    comm: Comm, x: Any, k: int, *, op: Literal["sum", "mean"] = "sum", contributed: bool = False, async_op: bool = False
) -> Any:
    """Sum the largest entries of each rank, and get the k largest sums, with O(k) numbers on the wire. Collective.

    Each rank contributes its own k entries of largest magnitude; the result is the k largest of their sum, the same on
    all ranks. It is **not** the top k of the sum of all entries: an index just below the k-th on every rank is not
    included. Nor is it the sum of the ranks' top k (``TopK.allreduce``), which has up to P times k entries.

    Parameters
    ----------
    x : array, SparseVector, SciPy sparse array or torch tensor of float16, bfloat16, float32 or float64
        One number per index; all ranks pass the same n and dtype.
    k : int, at least 1
        Number of entries of the result; the same on all ranks.
    op : {"sum", "mean"}
    contributed : bool
        Also return this rank's indices that are in the result: an error-feedback residual keeps all others.
    async_op : bool
        As in :meth:`allreduce`.

    Returns
    -------
    SparseVector
        The k entries, or all if there are fewer; among equal magnitudes those of lower index. With ``contributed`` a
        tuple of the vector and an array of indices.

    Raises
    ------
    BadInput
        On all ranks, for k below 1, integers, rows of more than one number, or another op.
    Mismatch
        If ranks passed different k, n or dtype.

    Notes
    -----
    Ok-Topk (Li & Hoefler, PPoPP 2022), with exact selections instead of thresholds estimated from earlier calls:
    no rank sends or receives more than 6·k words (an index or a value each). NaN counts as largest.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     comm.topk_allreduce(np.array([0.1, -3.0, 2.0, 0.2]), k=2).to_dense()
    array([ 0., -3.,  2.,  0.])
    """
    k = whole(k, "k", 1, 2**63 - 1)
    contributed, async_op = truth(contributed, "contributed"), truth(async_op, "async_op")
    if op not in ("sum", "mean"):
        raise BadInput(f'topk_allreduce takes op "sum" or "mean", not {op!r}')
    vector = as_vector(open_vector(x)[0])
    require_floats(vector.dtype, "topk_allreduce")
    if vector.width != 1:
        raise BadInput(f"topk_allreduce takes one number an index, not rows of {vector.width}")
    started = native.topk_allreduce(comm._native, native_vector(vector), k, resolve_op(op), async_op)

    def finish(done: native.TopkSum) -> Any:
        total = vector_of(done.sum, vector)
        if not contributed:
            return total
        return total, np.intersect1d(done.offered, total.indices, assume_unique=True)

    return perform(started, async_op, finish)
