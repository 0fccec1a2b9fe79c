"""Collectives that move vectors, and reductions that leave each rank a part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

import numpy as np
import numpy.typing as npt

from .. import _skyphos as native
from ..errors import BadInput
from ..inputs.arguments import Op, as_array, as_degrees, as_expected, as_n, as_name, as_rank, resolve_op
from ..inputs.settings import truth
from ..planning.explanation import WHY_PARTS, WHY_SCHEDULE, Told, explanation_of
from ..vectors.booleans import as_room, as_sent, result_type, settled
from ..vectors.kinds import is_number, is_vector, open_vector
from ..vectors.scipy_kinds import matrix_shape
from ..vectors.sparse_vector import SparseVector
from ..work import perform
from .agreement import agree_arguments, collective, tell
from .objects import allgather_objects, alltoall_objects, gather_objects, scatter_objects
from .python_numbers import reduce_numbers

if TYPE_CHECKING:
    from .. import _skyphos
    from ..comm import Comm

__all__ = ["VectorCollectives"]

Schedule = Literal["auto", "direct", "ring", "recursive_doubling", "bruck", "neighbour_exchange", "dissemination"]
_Parts = tuple[npt.NDArray[Any] | None, npt.NDArray[Any], npt.NDArray[Any] | None]


class VectorCollectives:
    """The part of a :class:`skyphos.Comm` that moves and reduces vectors."""

    _native: _skyphos.Comm

    @property
    def rank(self) -> int:
        """This process's number in the group, from 0."""
        return self._native.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._native.size

    def owned_range(self, n: int, rank: int | None = None) -> range:
        """Indices that a rank (this one, if None) owns of ``n``: an even, contiguous share. Not collective.

        Examples
        --------
        >>> import skyphos as sky
        >>> with sky.init() as comm:
        ...     comm.owned_range(10)
        range(0, 10)
        """
        rank = self.rank if rank is None else as_rank(rank, self.size)
        n = as_n(n)
        return range(n * rank // self.size, n * (rank + 1) // self.size)

    @collective()
    def reduce_scatter(
        self,
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
            As in :meth:`allreduce`. A sparse matrix of several rows is dealt out by rows, with op ``sum`` or ``mean``,
            a list of numbers as an array is; a single number has no parts.
        degrees : sequence of int, optional
            Layers of the butterfly for sparse vectors; their product is the group's size. None: those that are
            predicted to take the least time, as for an :meth:`allreduce` by ``auto``. In the first layer ranks that are
            far apart talk to each other, so that each ends with its own range.
        expected_nnz : int, optional
            Entries that the whole reduction should have, as in :meth:`allreduce`.
        explain : bool
            Also return an :class:`Explanation` (of sparse vectors).

        Returns
        -------
        The kind that came in. A SparseVector has the entries of :meth:`owned_range`, which its ``owned`` says; of a
        dense array it is the array of the owned part (of the flattened array). With ``explain`` a tuple: that, and the
        explanation.

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
            return reduce_numbers(self, x, op, "reduce_scatter", async_op=async_op)
        vector, back, kind, op_pair = self._opened(x, op, rows=True)
        self._agree_on_shape("reduce_scatter", x)
        if isinstance(vector, np.ndarray):
            if layers or explain:
                raise BadInput("degrees= and explain= are for sparse vectors")
            out = np.empty(len(self.owned_range(vector.size)), kind)
            arrays = as_sent(vector, kind), as_room(out)
            done = native.reduce_arrays(self._native, *arrays, *op_pair, None, async_op)
            return perform(done, async_op, lambda _: back(settled(out, kind)))
        call = (self._native, vector.n, vector.width, _arrays(vector, kind), *op_pair, layers, expected)
        done = native.reduce_scatter(*call, explain, async_op)

        def finish(result: tuple[_Parts, tuple[int, int], Told]) -> Any:
            parts, (low, high), told = result
            part = _vector(parts, vector, kind)
            part._owned = range(low, high)
            returned = back(part)
            if not explain:
                return returned
            asked = "auto" if layers is None else "degrees"
            how = explanation_of(asked, told, vector.nnz, part.nnz, is_dense=part.is_dense, why=WHY_PARTS)
            return returned, how

        return perform(done, async_op, finish)

    @collective()
    def reduce(self, x: Any, *, root: int = 0, op: Op = "sum", async_op: bool = False) -> Any:
        """Reduce the vectors of all ranks on one of them. Collective.

        Parameters
        ----------
        x, op, async_op
            As in :meth:`allreduce`.
        root : int
            The rank that gets the result.

        Returns
        -------
        On ``root`` the kind that came in; None on the others.

        Examples
        --------
        >>> import numpy as np, skyphos as sky
        >>> with sky.init() as comm:
        ...     comm.reduce(sky.SparseVector([3], np.array([1.0]), n=10), root=0)
        SparseVector(n=10, nnz=1, float64)
        """
        number, async_op = as_rank(root, self.size, "root"), truth(async_op, "async_op")
        if is_number(x):
            return reduce_numbers(self, x, op, "reduce", root=number, async_op=async_op)
        vector, back, kind, op_pair = self._opened(x, op)
        self._agree_on_shape("reduce", x)
        if isinstance(vector, np.ndarray):
            out = np.empty(vector.shape if self.rank == number else 0, kind)
            arrays = as_sent(vector, kind), as_room(out)
            done = native.reduce_arrays(self._native, *arrays, *op_pair, number, async_op)
            return perform(done, async_op, lambda _: back(settled(out, kind)) if self.rank == number else None)
        parts = _arrays(vector, kind)
        done = native.reduce(self._native, vector.n, vector.width, parts, *op_pair, number, async_op)

        def finish(parts: _Parts | None) -> Any:
            return None if parts is None else back(_vector(parts, vector, kind))

        return perform(done, async_op, finish)

    @collective()
    def allgather(self, x: Any, *, algorithm: Schedule = "auto", explain: bool = False, async_op: bool = False) -> Any:
        """Get the vectors or objects of all ranks. Collective.

        Parameters
        ----------
        x : SparseVector, array, SciPy sparse array, torch tensor, or any other object
            Of vectors all ranks pass the same n, width and dtype (of arrays the same shape). Other objects, numbers and
            lists among them, may differ; they are pickled as by :meth:`broadcast`. If one rank has an array and another
            an object it is a :class:`Mismatch`: ``[array]`` is an object.
        algorithm : str
            ``direct`` (one round), ``ring``, ``recursive_doubling``, ``bruck``, ``neighbour_exchange`` or
            ``dissemination``; the last four move more at a time in fewer messages. ``auto``: ``ring`` for arrays of
            128 KB or more, else what is predicted to take the least time; of sparse vectors for items as large as the
            last blocking call's of this n and dtype brought.
        explain : bool
            Also return an :class:`Explanation`.
        async_op : bool
            As in :meth:`allreduce`.

        Returns
        -------
        list, one a rank; of arrays one array with a new first axis of length P. With ``explain`` a tuple: that, and the
        explanation.

        Examples
        --------
        >>> import numpy as np, skyphos as sky
        >>> with sky.init() as comm:
        ...     comm.allgather(np.array([1.0, 2.0])), comm.allgather({"rank": comm.rank})
        (array([[1., 2.]]), [{'rank': 0}])
        """

        def told_too(result: Any, told: Told, entries: int, gathered: int, is_dense: bool) -> Any:
            if not explain:
                return result
            return result, explanation_of(algorithm, told, entries, gathered, is_dense=is_dense, why=WHY_SCHEDULE)

        as_name(algorithm, "algorithm")
        explain, async_op = truth(explain, "explain"), truth(async_op, "async_op")
        if not is_vector(x):
            return allgather_objects(self, x, algorithm, explain=explain, async_op=async_op)
        vector, back, kind, _ = self._opened(x)
        self._agree_on_shape("allgather", x)
        if isinstance(vector, np.ndarray):
            array, out = vector, np.empty((self.size, *vector.shape), kind)
            arrays = as_sent(array, kind), as_room(out)
            done = native.move_arrays(self._native, "allgather", *arrays, 0, algorithm, async_op)
            return perform(
                done, async_op, lambda told: told_too(back(settled(out, kind)), told, array.size, out.size, True)
            )
        call = (self._native, vector.n, vector.width, _arrays(vector), algorithm, async_op)
        done = native.allgather(*call)

        def finish(result: tuple[list[_Parts], Told]) -> Any:
            all_parts, told = result
            gathered = [_vector(parts, vector) for parts in all_parts]
            entries = sum(one.nnz for one in gathered) if explain else 0
            return told_too([back(one) for one in gathered], told, vector.nnz, entries, False)

        return perform(done, async_op, finish)

    @collective()
    def gather(self, x: Any, *, root: int = 0, async_op: bool = False) -> Any:
        """Get the vectors or objects of all ranks on one of them. Collective.

        Parameters
        ----------
        x, async_op
            As in :meth:`allgather`.
        root : int
            The rank that gets them.

        Returns
        -------
        On ``root`` as :meth:`allgather`; None on the others.

        Examples
        --------
        >>> import numpy as np, skyphos as sky
        >>> with sky.init() as comm:
        ...     comm.gather(sky.SparseVector([3], np.array([1.0]), n=10))
        [SparseVector(n=10, nnz=1, float64)]
        """
        root, async_op = as_rank(root, self.size, "root"), truth(async_op, "async_op")
        if not is_vector(x):
            return gather_objects(self, x, root, async_op=async_op)
        vector, back, kind, _ = self._opened(x)
        self._agree_on_shape("gather", x)
        if isinstance(vector, np.ndarray):
            out = np.empty((self.size if self.rank == root else 0, *vector.shape), kind)
            arrays = as_sent(vector, kind), as_room(out)
            done = native.move_arrays(self._native, "gather", *arrays, root, "direct", async_op)
            return perform(done, async_op, lambda _: back(settled(out, kind)) if self.rank == root else None)
        done = native.gather(self._native, vector.n, vector.width, _arrays(vector), root, async_op)

        def finish(all_parts: list[_Parts]) -> Any:
            return [back(_vector(parts, vector)) for parts in all_parts] if self.rank == root else None

        return perform(done, async_op, finish)

    @collective()
    def alltoall(self, xs: Sequence[Any], *, async_op: bool = False) -> Any:
        """Give each rank a vector or object of its own; get one from each. Collective.

        Parameters
        ----------
        xs : sequence, one vector a rank
            All of the same kind, n, width and dtype, on all ranks. Arrays best as one, whose first axis is the rank. Or
            objects that are no vectors, on all ranks, as in :meth:`allgather`.
        async_op : bool
            As in :meth:`allreduce`.

        Returns
        -------
        list, one a rank: what it had for this one; of arrays one array with a new first axis.

        Examples
        --------
        >>> import numpy as np, skyphos as sky
        >>> with sky.init() as comm:
        ...     comm.alltoall([np.array([1.0, 2.0])])
        array([[1., 2.]])
        """
        async_op = truth(async_op, "async_op")
        self._check_count(xs)
        if not isinstance(xs, np.ndarray) and not any(map(is_vector, xs)):
            return alltoall_objects(self, xs, async_op=async_op)
        opened = [] if isinstance(xs, np.ndarray) else [open_vector(x) for x in xs]
        if all(isinstance(vector, np.ndarray) for vector, _ in opened):
            stacked, back = _stacked(xs, opened)
            out = np.empty_like(stacked)
            arrays = as_sent(stacked, stacked.dtype), as_room(out)
            done = native.move_arrays(self._native, "alltoall", *arrays, 0, "direct", async_op)
            return perform(done, async_op, lambda _: back(settled(out, out.dtype)))
        vectors, back = _alike(opened)
        shapes = {matrix_shape(x) for x in xs} - {None}
        if len(shapes) > 1:
            raise BadInput(f"matrices of shapes {' and '.join(map(str, shapes))} in one alltoall: all have the same")
        self._agree_on_shape("alltoall", xs[0])
        first = vectors[0]
        parts = [_arrays(vector) for vector in vectors]
        like = as_sent(first._values, first.dtype)
        done = native.alltoall(self._native, first.n, first.width, parts, None, like, async_op)
        return perform(done, async_op, lambda all_parts: [back(_vector(parts, first)) for parts in all_parts])

    @collective()
    def scatter(self, xs: Sequence[Any] | None, like: Any = None, *, root: int = 0, async_op: bool = False) -> Any:
        """Give each rank one of ``root``'s vectors or objects. Collective.

        Parameters
        ----------
        xs : sequence, one vector a rank, or None
            On ``root``; what others pass is ignored.
        like : SparseVector, array …
            On every rank a vector of the same n, width and dtype as those of root (its entries do not matter). None, on
            all ranks: objects of any kind, as in :meth:`allgather`.
        root : int
            The rank that has the vectors.
        async_op : bool
            As in :meth:`allreduce`.

        Examples
        --------
        >>> import numpy as np, skyphos as sky
        >>> with sky.init() as comm:
        ...     comm.scatter([np.array([1.0, 2.0])], like=np.empty(2))
        array([1., 2.])
        """
        root, async_op = as_rank(root, self.size, "root"), truth(async_op, "async_op")
        if self.rank == root:
            self._check_count(xs)
        if like is None or not is_vector(like):
            return scatter_objects(self, xs, root, async_op=async_op)
        shape, back, kind, _ = self._opened(like)
        self._agree_on_shape("scatter", like)
        if isinstance(shape, np.ndarray):
            stacked = self._stacked_like(xs, shape) if self.rank == root else np.empty(0, kind)
            out = np.empty_like(shape)
            arrays = as_sent(stacked, kind), as_room(out)
            done = native.move_arrays(self._native, "scatter", *arrays, root, "direct", async_op)
            return perform(done, async_op, lambda _: back(settled(out, kind)))
        vectors = _alike([open_vector(x) for x in (*(xs or ()), like)])[0][:-1] if self.rank == root else []
        parts = [_arrays(vector) for vector in vectors]
        form = as_sent(shape._values, kind)
        done = native.alltoall(self._native, shape.n, shape.width, parts, root, form, async_op)
        return perform(done, async_op, lambda all_parts: back(_vector(all_parts[0], shape)))

    @contextmanager
    def fuse(self) -> Iterator[None]:
        """Let non-blocking calls travel together.

        Calls made with ``async_op=True`` inside the block start at its end (or when this rank waits for anything), all
        at once: the messages that each of their rounds sends to a rank leave in one write, and their rounds overlap. So
        many small calls take little longer than one. Results are those of the calls alone, to the bit. Not collective,
        but only useful if all ranks do so.

        Examples
        --------
        >>> import numpy as np, skyphos as sky
        >>> with sky.init() as comm:
        ...     with comm.fuse():
        ...         works = [comm.allreduce(np.full(2, k), async_op=True) for k in range(3)]
        ...     [work.wait().tolist() for work in works]
        [[0, 0], [1, 1], [2, 2]]
        """
        self._native.hold()
        try:
            yield
        finally:
            self._native.release()

    def _opened(
        self, x: Any, op: Op | None = None, *, rows: bool = False
    ) -> tuple[SparseVector | npt.NDArray[Any], Any, np.dtype[Any], tuple[Any, Any]]:
        """The vector or contiguous array inside, the way back to the caller's kind, the type of the result, and the
        operation for the native library; without one the vector is moved."""
        pair = resolve_op("sum" if op is None else op)
        vector, back = open_vector(x, rows=rows)
        if isinstance(vector, np.ndarray):
            vector = as_array(vector)
        elif rows and vector.width > 1 and not isinstance(x, SparseVector) and op not in ("sum", "mean"):
            raise BadInput(f"reduce_scatter of a matrix takes op sum or mean, not {op!r}: pass a SparseVector")
        return vector, back, vector.dtype if op is None else result_type(op, vector.dtype), pair

    def _agree_on_shape(self, function: str, x: Any) -> None:
        """Raise :class:`Mismatch` on all ranks if they pass matrices of different shapes, whose vectors of entries may
        be equally long."""
        shape = matrix_shape(x)
        if shape is not None:
            agree_arguments(cast("Comm", self), function, shape=shape)

    def _stacked_like(self, xs: Sequence[Any] | None, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """One array of those that this rank scatters."""
        opened = [] if isinstance(xs, np.ndarray) else [open_vector(x) for x in xs or ()]
        stacked, _ = _stacked(xs, opened)
        if (stacked.dtype, stacked.shape[1:]) != (like.dtype, like.shape):
            raise BadInput(
                f"arrays of {stacked.dtype} of shape {stacked.shape[1:]} where like= is {like.dtype} of {like.shape}"
            )
        return stacked

    def _check_count(self, xs: Sequence[Any] | None) -> None:
        """Refuse other than one vector or object a rank."""
        if xs is None:
            raise BadInput(f"0 vectors for {self.size} ranks: pass one a rank")
        if isinstance(xs, (dict, set, frozenset, str, bytes)) or not hasattr(xs, "__getitem__") or _is_single(xs):
            raise BadInput(f"pass a list of one vector or object a rank, not {type(xs).__name__}")
        if len(xs) != self.size:
            raise BadInput(f"{len(xs)} vectors for {self.size} ranks: pass one a rank")

    def _fail(self, error: BaseException, *, goes_on: bool = False) -> NoReturn:
        """Raise an error found before the call could begin, on all ranks. ``goes_on``: see :func:`tell`."""
        raise tell(cast("Comm", self), error, goes_on=goes_on) from None


def _is_single(xs: Any) -> bool:
    """An array of one number, which has no first axis."""
    return isinstance(xs, np.generic) or (isinstance(xs, np.ndarray) and xs.ndim == 0)


def _alike(opened: list[Any]) -> tuple[list[SparseVector], Any]:
    """Vectors that differ only in their entries."""
    vectors = [_as_vector(vector) for vector, _ in opened]
    for vector in vectors[1:]:
        first = vectors[0]
        if (vector.n, vector.width, vector.dtype) != (first.n, first.width, first.dtype):
            raise BadInput(f"vectors must have the same n, width and dtype: {first} and {vector}")
    return vectors, opened[0][1]


def _stacked(xs: Any, opened: list[Any]) -> tuple[npt.NDArray[Any], Any]:
    """Arrays of one shape as one contiguous array, and the way back to the caller's kind."""
    if isinstance(xs, np.ndarray):
        array, back = open_vector(xs)
        assert isinstance(array, np.ndarray)
        return as_array(array), back
    arrays = [np.asarray(array) for array, _ in opened]
    for array in arrays[1:]:
        if (array.dtype, array.shape) != (arrays[0].dtype, arrays[0].shape):
            raise BadInput(
                f"arrays must have the same shape and dtype: {arrays[0].dtype} of {arrays[0].shape}, {array.dtype} of "
                f"{array.shape}"
            )
    return as_array(np.stack(arrays)), opened[0][1]


def _as_vector(vector: SparseVector | npt.NDArray[Any]) -> SparseVector:
    """The vector itself, or all numbers of an array."""
    if isinstance(vector, SparseVector):
        return vector
    return SparseVector.from_dense(as_array(vector).reshape(-1), keep_zeros=True)


def _arrays(vector: SparseVector, kind: np.dtype[Any] | None = None) -> _Parts:
    """For the native library, where the result is of this type; None: of the vector's."""
    values = as_sent(vector._values, vector.dtype if kind is None else kind)
    return vector._indices, values if values.ndim == 1 else values.reshape(-1), vector._present


def _vector(parts: _Parts, like: SparseVector, kind: np.dtype[Any] | None = None) -> SparseVector:
    """From the native library, with the index type and shape of the vector that went in."""
    indices, rows, present = parts
    if indices is not None and like._indices is not None and indices.dtype != like._indices.dtype:
        indices = indices.view(like._indices.dtype) if indices.itemsize == like._indices.itemsize else indices
    rows = settled(rows, like.dtype if kind is None else kind)
    shape = like._values.shape[1:]
    return SparseVector._of(indices, rows.reshape(-1, *shape) if shape else rows, present, like._n)
