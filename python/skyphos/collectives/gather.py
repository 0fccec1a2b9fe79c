"""Gather: the vectors or objects of all ranks, on one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from .. import _skyphos as native
from ..inputs.arguments import as_rank
from ..inputs.settings import truth
from ..vectors.booleans import as_native_out, as_result, as_sent
from ..vectors.kinds import is_vector
from ..work import Work, perform
from .agreement import collective
from .objects import gather_objects
from .vector_input import agree_on_shape, native_vector, opened, vector_of

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["gather"]


T = TypeVar("T")


@overload
def gather(comm: Comm, x: npt.NDArray[Any], *, root: int = 0) -> npt.NDArray[Any] | None: ...  # type: ignore[overload-overlap]
@overload
def gather(comm: Comm, x: T, *, root: int = 0) -> list[T] | None: ...
@overload
def gather(comm: Comm, x: T, *, root: int = 0, async_op: Literal[True]) -> Work[list[T] | None]: ...
@overload
def gather(comm: Comm, x: Any, *, root: int = 0, async_op: bool = False) -> Any: ...


@collective()
def gather(comm: Comm, x: Any, *, root: int = 0, async_op: bool = False) -> Any:
    """Gather the vectors or objects of all ranks on one rank. Collective.

    Parameters
    ----------
    x, async_op
        As in :meth:`allgather`.
    root : int
        The rank that gets the vectors or objects.

    Returns
    -------
    On ``root`` as in :meth:`allgather`; None on the others.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     comm.gather(sky.SparseVector([3], np.array([1.0]), n=10))
    [SparseVector(n=10, nnz=1, float64)]
    """
    root, async_op = as_rank(root, comm.size, "root"), truth(async_op, "async_op")
    if not is_vector(x):
        return gather_objects(comm, x, root, async_op=async_op)
    vector, back, kind, _ = opened(x)
    agree_on_shape(comm, "gather", x)
    if isinstance(vector, np.ndarray):
        out = np.empty((comm.size if comm.rank == root else 0, *vector.shape), kind)
        arrays = as_sent(vector, kind), as_native_out(out)
        started = native.move_arrays(comm._native, native.ArrayMove.gather(root), *arrays, async_op)
        return perform(started, async_op, lambda _: back(as_result(out, kind)) if comm.rank == root else None)
    started = native.gather(comm._native, native_vector(vector), root, async_op)

    def finish(found: list[native.Vector]) -> Any:
        return [back(vector_of(one, vector)) for one in found] if comm.rank == root else None

    return perform(started, async_op, finish)
