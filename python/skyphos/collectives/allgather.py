"""Allgather: the vectors or objects of all ranks, on all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from .. import _skyphos as native
from ..inputs.arguments import as_name
from ..inputs.settings import truth
from ..planning.explanation import WHY_SCHEDULE, Explanation, explanation_of
from ..vectors.booleans import as_native_out, as_result, as_sent
from ..vectors.kinds import is_vector
from ..work import Work, perform
from .agreement import collective
from .objects import allgather_objects
from .vector_input import agree_on_shape, native_vector, opened, vector_of

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["Schedule", "allgather"]

Schedule = Literal["auto", "direct", "ring", "recursive_doubling", "bruck", "neighbour_exchange", "dissemination"]


T = TypeVar("T")


@overload
def allgather(comm: Comm, x: npt.NDArray[Any], *, algorithm: Schedule = "auto") -> npt.NDArray[Any]: ...  # type: ignore[overload-overlap]
@overload
def allgather(comm: Comm, x: T, *, algorithm: Schedule = "auto") -> list[T]: ...
@overload
def allgather(
    comm: Comm, x: T, *, algorithm: Schedule = "auto", explain: Literal[True]
) -> tuple[list[T], Explanation]: ...
@overload
def allgather(comm: Comm, x: T, *, algorithm: Schedule = "auto", async_op: Literal[True]) -> Work[list[T]]: ...
@overload
def allgather(
    comm: Comm, x: Any, *, algorithm: Schedule = "auto", explain: bool = False, async_op: bool = False
) -> Any: ...


@collective()
def allgather(
    comm: Comm, x: Any, *, algorithm: Schedule = "auto", explain: bool = False, async_op: bool = False
) -> Any:
    """Gather the vectors or objects of all ranks on all ranks. Collective.

    Parameters
    ----------
    x : SparseVector, array, SciPy sparse array, torch tensor, or any other object
        Vectors have the same n, width and dtype on all ranks, arrays the same shape. Other objects, including numbers
        and lists, may differ; they are pickled as by :meth:`broadcast`. If one rank passes an array and another an
        object, :class:`Mismatch` is raised; ``[array]`` is an object.
    algorithm : str
        ``direct`` (one round), ``ring``, ``recursive_doubling``, ``bruck``, ``neighbour_exchange`` or
        ``dissemination``; the last four send more data in fewer messages. ``auto``: ``ring`` for arrays of 128 KB or
        more, else the algorithm with the least predicted time; for sparse vectors the prediction uses the sizes of
        the last blocking call with this n and dtype.
    explain : bool
        Also return an :class:`Explanation`.
    async_op : bool
        As in :meth:`allreduce`.

    Returns
    -------
    A list by rank; for arrays one array with a new first axis of length P. With ``explain`` a tuple of that and the
    explanation.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     comm.allgather(np.array([1.0, 2.0])), comm.allgather({"rank": comm.rank})
    (array([[1., 2.]]), [{'rank': 0}])
    """

    def with_explanation(result: Any, report: native.Explanation, entries: int, gathered: int, is_dense: bool) -> Any:
        if not explain:
            return result
        return result, explanation_of(algorithm, report, entries, gathered, is_dense=is_dense, why=WHY_SCHEDULE)

    as_name(algorithm, "algorithm")
    explain, async_op = truth(explain, "explain"), truth(async_op, "async_op")
    if not is_vector(x):
        return allgather_objects(comm, x, algorithm, explain=explain, async_op=async_op)
    vector, back, kind, _ = opened(x)
    agree_on_shape(comm, "allgather", x)
    if isinstance(vector, np.ndarray):
        array, out = vector, np.empty((comm.size, *vector.shape), kind)
        arrays = as_sent(array, kind), as_native_out(out)
        started = native.move_arrays(comm._native, native.ArrayMove.allgather(algorithm), *arrays, async_op)
        return perform(
            started,
            async_op,
            lambda report: with_explanation(back(as_result(out, kind)), report, array.size, out.size, True),
        )
    started = native.allgather(comm._native, native_vector(vector), algorithm, async_op)

    def finish(done: native.Gathered) -> Any:
        gathered = [vector_of(one, vector) for one in done.vectors]
        entries = sum(one.nnz for one in gathered) if explain else 0
        return with_explanation([back(one) for one in gathered], done.explanation, vector.nnz, entries, False)

    return perform(started, async_op, finish)
