"""Collectives that move vectors, and reductions that leave each rank a part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import index
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

import numpy as np
import numpy.typing as npt

from . import _skyphos as native
from .arguments import Op, as_array, as_degrees, as_expected, as_name, resolve_op
from .errors import BadInput
from .explanation import WHY_PARTS, WHY_SCHEDULE, Told, explanation_of
from .kinds import open_vector
from .sparse_vector import SparseVector
from .together import tell
from .work import perform

if TYPE_CHECKING:
    from . import _skyphos
    from .comm import Comm

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
        rank = self.rank if rank is None else index(rank)
        if not 0 <= rank < self.size:
            raise BadInput(f"there is no rank {rank} in a group of {self.size}")
        return range(n * rank // self.size, n * (rank + 1) // self.size)

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
            As in :meth:`allreduce`.
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
        try:
            layers, expected = as_degrees(degrees), as_expected(expected_nnz)
            if _is_dense_kind(x) and (layers or explain):
                raise BadInput("degrees= and explain= are for sparse vectors")
        except Exception as error:
            self._fail(error)
        if _is_dense_kind(x):
            array, back = self._opened_array(x)
            out = np.empty(len(self.owned_range(array.size)), array.dtype)
            done = native.reduce_arrays(self._native, array, out, *self._op(op), None, bool(async_op))
            return perform(done, async_op, lambda _: back(out))
        vector, back, op_pair = self._opened(x, op)
        call = (self._native, vector.n, vector.width, _arrays(vector), *op_pair, layers, expected)
        done = native.reduce_scatter(*call, bool(explain), bool(async_op))

        def finish(result: tuple[_Parts, tuple[int, int], Told]) -> Any:
            parts, (low, high), told = result
            part = _vector(parts, vector)
            part._owned = range(low, high)
            returned = back(part)
            if not explain:
                return returned
            asked = "auto" if layers is None else "degrees"
            how = explanation_of(asked, told, vector.nnz, part.nnz, is_dense=part.is_dense, why=WHY_PARTS)
            return returned, how

        return perform(done, async_op, finish)

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
        number = self._root(root)
        if _is_dense_kind(x):
            array, back = self._opened_array(x)
            out = np.empty(array.shape if self.rank == number else 0, array.dtype)
            done = native.reduce_arrays(self._native, array, out, *self._op(op), number, bool(async_op))
            return perform(done, async_op, lambda _: back(out) if self.rank == number else None)
        vector, back, op_pair = self._opened(x, op)
        arrays = _arrays(vector)
        done = native.reduce(self._native, vector.n, vector.width, arrays, *op_pair, number, bool(async_op))

        def finish(parts: _Parts | None) -> Any:
            return None if parts is None else back(_vector(parts, vector))

        return perform(done, async_op, finish)

    def allgather(self, x: Any, *, algorithm: Schedule = "auto", explain: bool = False, async_op: bool = False) -> Any:
        """Get the vectors of all ranks. Collective.

        Parameters
        ----------
        x : SparseVector, array, SciPy sparse array or torch tensor
            All ranks pass the same n, width and dtype (arrays: the same shape).
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
        ...     comm.allgather(np.array([1.0, 2.0]))
        array([[1., 2.]])
        """

        def told_too(result: Any, told: Told, entries: int, gathered: int, is_dense: bool) -> Any:
            if not explain:
                return result
            return result, explanation_of(algorithm, told, entries, gathered, is_dense=is_dense, why=WHY_SCHEDULE)

        try:
            as_name(algorithm, "algorithm")
        except BadInput as error:
            self._fail(error)
        if _is_dense_kind(x):
            array, back = self._opened_array(x)
            out = np.empty((self.size, *array.shape), array.dtype)
            done = native.move_arrays(self._native, "allgather", array, out, 0, algorithm, bool(async_op))
            return perform(done, async_op, lambda told: told_too(back(out), told, array.size, out.size, True))
        vector, back, _ = self._opened(x, "sum")
        done = native.allgather(self._native, vector.n, vector.width, _arrays(vector), algorithm, bool(async_op))

        def finish(result: tuple[list[_Parts], Told]) -> Any:
            all_parts, told = result
            gathered = [_vector(parts, vector) for parts in all_parts]
            entries = sum(one.nnz for one in gathered)
            return told_too([back(one) for one in gathered], told, vector.nnz, entries, False)

        return perform(done, async_op, finish)

    def gather(self, x: Any, *, root: int = 0, async_op: bool = False) -> Any:
        """Get the vectors of all ranks on one of them. Collective.

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
        root = self._root(root)
        if _is_dense_kind(x):
            array, back = self._opened_array(x)
            out = np.empty((self.size if self.rank == root else 0, *array.shape), array.dtype)
            done = native.move_arrays(self._native, "gather", array, out, root, "direct", bool(async_op))
            return perform(done, async_op, lambda _: back(out) if self.rank == root else None)
        vector, back, _ = self._opened(x, "sum")
        done = native.gather(self._native, vector.n, vector.width, _arrays(vector), root, bool(async_op))

        def finish(all_parts: list[_Parts]) -> Any:
            return [back(_vector(parts, vector)) for parts in all_parts] if self.rank == root else None

        return perform(done, async_op, finish)

    def alltoall(self, xs: Sequence[Any], *, async_op: bool = False) -> Any:
        """Give each rank a vector of its own; get one from each. Collective.

        Parameters
        ----------
        xs : sequence, one vector a rank
            All of the same kind, n, width and dtype, on all ranks. Arrays best as one, whose first axis is the rank.
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
        try:
            self._check_count(xs)
            dense = all(_is_dense_kind(x) for x in xs)
            if dense:
                stacked, back = _stacked(xs)
                out = np.empty_like(stacked)
            else:
                vectors, back = self._alike(xs)
        except Exception as error:
            self._fail(error)
        if dense:
            done = native.move_arrays(self._native, "alltoall", stacked, out, 0, "direct", bool(async_op))
            return perform(done, async_op, lambda _: back(out))
        first = vectors[0]
        arrays = [_arrays(vector) for vector in vectors]
        done = native.alltoall(self._native, first.n, first.width, arrays, None, first._values, bool(async_op))
        return perform(done, async_op, lambda all_parts: [back(_vector(parts, first)) for parts in all_parts])

    def scatter(self, xs: Sequence[Any] | None, like: Any, *, root: int = 0, async_op: bool = False) -> Any:
        """Give each rank one of ``root``'s vectors. Collective.

        Parameters
        ----------
        xs : sequence, one vector a rank, or None
            On ``root``; what others pass is ignored.
        like : SparseVector, array …
            On every rank a vector of the same n, width and dtype as those of root (its entries do not matter).
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
        root = self._root(root)
        if _is_dense_kind(like):
            array, back = self._opened_array(like)
            try:
                stacked = self._stacked_like(xs, array) if self.rank == root else np.empty(0, array.dtype)
            except Exception as error:
                self._fail(error)
            out = np.empty_like(array)
            done = native.move_arrays(self._native, "scatter", stacked, out, root, "direct", bool(async_op))
            return perform(done, async_op, lambda _: back(out))
        shape, back, _ = self._opened(like, "sum")
        try:
            vectors = self._alike([*(xs or []), like])[0][:-1] if self.rank == root else []
        except Exception as error:
            self._fail(error)
        arrays = [_arrays(vector) for vector in vectors]
        done = native.alltoall(self._native, shape.n, shape.width, arrays, root, shape._values, bool(async_op))
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

    def _opened(self, x: Any, op: Op) -> tuple[SparseVector, Any, tuple[Any, Any]]:
        """The vector inside, the way back to the caller's kind, and the operation for the native library."""
        try:
            pair = resolve_op(op)
            vector, back = open_vector(x)
            return _as_vector(vector), back, pair
        except Exception as error:
            self._fail(error)

    def _alike(self, xs: Sequence[Any]) -> tuple[list[SparseVector], Any]:
        """Vectors that differ only in their entries."""
        opened = [open_vector(x) for x in xs]
        vectors = [_as_vector(vector) for vector, _ in opened]
        for vector in vectors[1:]:
            first = vectors[0]
            if (vector.n, vector.width, vector.dtype) != (first.n, first.width, first.dtype):
                raise BadInput(f"vectors must have the same n, width and dtype: {first} and {vector}")
        return vectors, opened[0][1]

    def _op(self, op: Op) -> tuple[Any, Any]:
        """The operation for the native library."""
        try:
            return resolve_op(op)
        except Exception as error:
            self._fail(error)

    def _opened_array(self, x: Any) -> tuple[npt.NDArray[Any], Any]:
        """The contiguous array inside, and the way back to the caller's kind."""
        try:
            array, back = open_vector(x)
            assert isinstance(array, np.ndarray)
            return as_array(array), back
        except Exception as error:
            self._fail(error)

    def _stacked_like(self, xs: Sequence[Any] | None, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """One array of those that this rank scatters."""
        self._check_count(xs)
        stacked, _ = _stacked(xs)
        if (stacked.dtype, stacked.shape[1:]) != (like.dtype, like.shape):
            raise BadInput(
                f"arrays of {stacked.dtype} of shape {stacked.shape[1:]} where like= is {like.dtype} of {like.shape}"
            )
        return stacked

    def _check_count(self, xs: Sequence[Any] | None) -> None:
        """Refuse other than one vector a rank."""
        if xs is None or len(xs) != self.size:
            raise BadInput(f"{0 if xs is None else len(xs)} vectors for {self.size} ranks: pass one a rank")

    def _root(self, root: int) -> int:
        try:
            number = index(root)
            if not 0 <= number < self.size:
                raise BadInput(f"root={root} is no rank of a group of {self.size}")
            return number
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> NoReturn:
        """Raise an error found before the call could begin, on all ranks."""
        raise tell(cast("Comm", self), error) from None


def _is_dense_kind(x: Any) -> bool:
    """An array or a dense tensor."""
    return isinstance(x, np.ndarray) or (hasattr(x, "is_sparse") and not x.is_sparse)


def _stacked(xs: Any) -> tuple[npt.NDArray[Any], Any]:
    """Arrays of one shape as one contiguous array, and the way back to the caller's kind."""
    if isinstance(xs, np.ndarray):
        return as_array(xs), lambda array: array
    opened = [open_vector(x) for x in xs]
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


def _arrays(vector: SparseVector) -> _Parts:
    """For the native library."""
    return vector._indices, vector._values.reshape(-1), vector._present


def _vector(parts: _Parts, like: SparseVector) -> SparseVector:
    """From the native library, with the index type and shape of the vector that went in."""
    indices, rows, present = parts
    if indices is not None and like._indices is not None and indices.itemsize == like._indices.itemsize:
        indices = indices.view(like._indices.dtype)
    return SparseVector._of(indices, rows.reshape(-1, *like._values.shape[1:]), present, like.n)
