"""Alltoall: a vector or object from each rank to each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from .. import _skyphos as native
from ..errors import BadInput
from ..inputs.settings import truth
from ..vectors.booleans import as_native_out, as_result, as_sent
from ..vectors.kinds import is_vector, open_vector
from ..vectors.scipy_kinds import matrix_shape
from ..work import Work, perform
from .agreement import collective
from .objects import alltoall_objects
from .vector_input import agree_on_shape, check_count, native_vector, of_one_form, stack, vector_of

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["alltoall"]


T = TypeVar("T")


@overload
def alltoall(comm: Comm, xs: npt.NDArray[Any]) -> npt.NDArray[Any]: ...
@overload
def alltoall(comm: Comm, xs: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]: ...  # type: ignore[overload-overlap]
@overload
def alltoall(comm: Comm, xs: Sequence[T]) -> list[T]: ...
@overload
def alltoall(comm: Comm, xs: Sequence[T], *, async_op: Literal[True]) -> Work[list[T]]: ...
@overload
def alltoall(comm: Comm, xs: Any, *, async_op: bool = False) -> Any: ...


@collective()
def alltoall(comm: Comm, xs: Any, *, async_op: bool = False) -> Any:
    """Send a different vector or object to each rank, and receive one from each. Collective.

    Parameters
    ----------
    xs : sequence, one vector a rank
        All of the same kind, n, width and dtype, on all ranks. Arrays are fastest as one array whose first axis is the
        rank. Or, on all ranks, objects other than vectors, as in :meth:`allgather`.
    async_op : bool
        As in :meth:`allreduce`.

    Returns
    -------
    A list by sending rank; for arrays one array with a new first axis.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     comm.alltoall([np.array([1.0, 2.0])])
    array([[1., 2.]])
    """
    async_op = truth(async_op, "async_op")
    check_count(comm, xs)
    if not isinstance(xs, np.ndarray) and not any(map(is_vector, xs)):
        return alltoall_objects(comm, xs, async_op=async_op)
    opened = [] if isinstance(xs, np.ndarray) else [open_vector(x) for x in xs]
    if all(isinstance(vector, np.ndarray) for vector, _ in opened):
        stacked, back = stack(xs, opened)
        out = np.empty_like(stacked)
        arrays = as_sent(stacked, stacked.dtype), as_native_out(out)
        started = native.move_arrays(comm._native, native.ArrayMove.alltoall(), *arrays, async_op)
        return perform(started, async_op, lambda _: back(as_result(out, out.dtype)))
    vectors, back = of_one_form(opened)
    shapes = {matrix_shape(x) for x in xs} - {None}
    if len(shapes) > 1:
        raise BadInput(f"matrices of shapes {' and '.join(map(str, shapes))} in one alltoall: all must have one shape")
    agree_on_shape(comm, "alltoall", xs[0])
    first = vectors[0]
    sent = [native_vector(vector) for vector in vectors]
    started = native.alltoall(comm._native, sent, sent[0], async_op)
    return perform(started, async_op, lambda found: [back(vector_of(one, first)) for one in found])
