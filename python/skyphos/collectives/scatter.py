"""Scatter: a vector or object from one rank to each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from .. import _skyphos as native
from ..inputs.arguments import as_rank
from ..inputs.settings import truth
from ..vectors.booleans import as_native_out, as_result, as_sent
from ..vectors.kinds import AnyVector, is_vector, open_vector
from ..work import Work, perform
from .agreement import collective
from .objects import scatter_objects
from .vector_input import agree_on_shape, check_count, native_vector, of_one_form, opened, stacked_like, vector_of

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["scatter"]


T = TypeVar("T")


@overload
def scatter(
    comm: Comm, xs: Sequence[AnyVector] | npt.NDArray[Any] | None, like: AnyVector, *, root: int = 0
) -> AnyVector: ...
@overload
def scatter(
    comm: Comm,
    xs: Sequence[AnyVector] | npt.NDArray[Any] | None,
    like: AnyVector,
    *,
    root: int = 0,
    async_op: Literal[True],
) -> Work[AnyVector]: ...
@overload
def scatter(comm: Comm, xs: Sequence[T], like: None = None, *, root: int = 0) -> T: ...
@overload
def scatter(comm: Comm, xs: Any, like: Any = None, *, root: int = 0, async_op: bool = False) -> Any: ...


@collective()
def scatter(comm: Comm, xs: Any, like: Any = None, *, root: int = 0, async_op: bool = False) -> Any:
    """Send each rank one of ``root``'s vectors or objects. Collective.

    Parameters
    ----------
    xs : sequence, one vector a rank, or None
        On ``root``; ignored on other ranks.
    like : SparseVector, array …
        On every rank a vector of the same n, width and dtype as those of root (its entries do not matter). None on all
        ranks: objects of any kind, as in :meth:`allgather`.
    root : int
        The rank with the vectors.
    async_op : bool
        As in :meth:`allreduce`.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     comm.scatter([np.array([1.0, 2.0])], like=np.empty(2))
    array([1., 2.])
    """
    root, async_op = as_rank(root, comm.size, "root"), truth(async_op, "async_op")
    if comm.rank == root:
        check_count(comm, xs)
    if like is None or not is_vector(like):
        return scatter_objects(comm, xs, root, async_op=async_op)
    template, back, kind, _ = opened(like)
    agree_on_shape(comm, "scatter", like)
    if isinstance(template, np.ndarray):
        stacked = stacked_like(xs, template) if comm.rank == root else np.empty(0, kind)
        out = np.empty_like(template)
        arrays = as_sent(stacked, kind), as_native_out(out)
        started = native.move_arrays(comm._native, native.ArrayMove.scatter(root), *arrays, async_op)
        return perform(started, async_op, lambda _: back(as_result(out, kind)))
    vectors = of_one_form([open_vector(x) for x in (*(xs or ()), like)])[0][:-1] if comm.rank == root else []
    sent = [native_vector(vector) for vector in vectors]
    started = native.scatter(comm._native, sent, native_vector(template), root, async_op)
    return perform(started, async_op, lambda found: back(vector_of(found, template)))
