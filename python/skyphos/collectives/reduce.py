"""Reduce: the reduction of all ranks' vectors, on one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from .. import _skyphos as native
from ..inputs.arguments import Op, as_rank
from ..inputs.settings import truth
from ..vectors.booleans import as_native_out, as_result, as_sent
from ..vectors.kinds import AnyVector, is_number
from ..work import Work, perform
from .agreement import collective
from .python_numbers import reduce_numbers
from .vector_input import agree_on_shape, native_vector, opened, vector_of

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["reduce"]


@overload
def reduce(
    comm: Comm, x: AnyVector, *, root: int = 0, op: Op = "sum", async_op: Literal[True]
) -> Work[AnyVector | None]: ...
@overload
def reduce(comm: Comm, x: AnyVector, *, root: int = 0, op: Op = "sum") -> AnyVector | None: ...
@overload
def reduce(comm: Comm, x: Any, *, root: int = 0, op: Op = "sum", async_op: bool = False) -> Any: ...


@collective()
def reduce(comm: Comm, x: Any, *, root: int = 0, op: Op = "sum", async_op: bool = False) -> Any:
    """Reduce the vectors of all ranks on one rank. Collective.

    Parameters
    ----------
    x, op, async_op
        As in :meth:`allreduce`.
    root : int
        The rank that gets the result.

    Returns
    -------
    On ``root`` the kind that was passed; None on the others.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     comm.reduce(sky.SparseVector([3], np.array([1.0]), n=10), root=0)
    SparseVector(n=10, nnz=1, float64)
    """
    root, async_op = as_rank(root, comm.size, "root"), truth(async_op, "async_op")
    if is_number(x):
        return reduce_numbers(comm, x, op, "reduce", root=root, async_op=async_op)
    vector, back, kind, operation = opened(x, op)
    agree_on_shape(comm, "reduce", x)
    if isinstance(vector, np.ndarray):
        out = np.empty(vector.shape if comm.rank == root else 0, kind)
        arrays = as_sent(vector, kind), as_native_out(out)
        started = native.reduce_arrays(comm._native, *arrays, operation, root, async_op)
        return perform(started, async_op, lambda _: back(as_result(out, kind)) if comm.rank == root else None)
    started = native.reduce(comm._native, native_vector(vector, kind), operation, root, async_op)

    def finish(found: native.Vector | None) -> Any:
        return None if found is None else back(vector_of(found, vector, kind))

    return perform(started, async_op, finish)
