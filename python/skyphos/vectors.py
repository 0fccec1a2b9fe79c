"""Collectives that move vectors, and reductions that leave each rank a part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import index
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from . import _skyphos as native
from .arguments import Op, as_array, identity_of, resolve_op
from .errors import BadInput
from .kinds import open_vector
from .sparse_vector import SparseVector
from .work import perform

if TYPE_CHECKING:
    from . import _skyphos

__all__ = ["VectorCollectives"]

Schedule = Literal["direct", "ring", "recursive_doubling", "bruck", "neighbour_exchange", "dissemination"]
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

    def reduce_scatter(self, x: Any, *, op: Op = "sum", async_op: bool = False) -> Any:
        """Reduce the vectors of all ranks; each rank gets the part that it owns. Collective.

        Parameters
        ----------
        x, op, async_op
            As in :meth:`allreduce`.

        Returns
        -------
        The kind that came in. A SparseVector has the entries of :meth:`owned_range`, which its ``owned`` says; of a
        dense array it is the array of the owned part (of the flattened array).

        Examples
        --------
        >>> import numpy as np, skyphos as sky
        >>> with sky.init() as comm:
        ...     y = comm.reduce_scatter(sky.SparseVector([3], np.array([1.0]), n=10))
        >>> y, y.owned
        (SparseVector(n=10, nnz=1, float64), range(0, 10))
        """
        vector, back, op_pair = self._opened(x, op)
        arrays = _arrays(vector)
        done = native.reduce_scatter(self._native, vector.n, vector.width, arrays, *op_pair, "even", async_op)

        def finish(result: tuple[_Parts, tuple[int, int]]) -> Any:
            parts, (low, high) = result
            part = _vector(parts, vector)
            part._owned = range(low, high)
            if isinstance(x, np.ndarray):
                return part.to_dense(identity_of(op, part.dtype))[low:high].reshape(-1)
            return back(part)

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
        vector, back, op_pair = self._opened(x, op)
        number, arrays = self._root(root), _arrays(vector)
        done = native.reduce(self._native, vector.n, vector.width, arrays, *op_pair, number, async_op)

        def finish(parts: _Parts | None) -> Any:
            if parts is None:
                return None
            return self._closed(_vector(parts, vector), x, back, identity_of(op, vector.dtype))

        return perform(done, async_op, finish)

    def allgather(self, x: Any, *, algorithm: Schedule = "direct", async_op: bool = False) -> Any:
        """Get the vectors of all ranks. Collective.

        Parameters
        ----------
        x : SparseVector, array, SciPy sparse array or torch tensor
            All ranks pass the same n, width and dtype (arrays: the same shape).
        algorithm : str
            ``direct`` (one round), ``ring``, ``recursive_doubling``, ``bruck``, ``neighbour_exchange`` or
            ``dissemination``; the last four move more at a time in fewer messages.
        async_op : bool
            As in :meth:`allreduce`.

        Returns
        -------
        list, one a rank; of arrays one array with a new first axis of length P.

        Examples
        --------
        >>> import numpy as np, skyphos as sky
        >>> with sky.init() as comm:
        ...     comm.allgather(np.array([1.0, 2.0]))
        array([[1., 2.]])
        """
        vector, back, _ = self._opened(x, "sum")
        arrays = _arrays(vector)
        done = native.gather(self._native, vector.n, vector.width, arrays, None, algorithm, async_op)
        return perform(done, async_op, lambda all_parts: self._list(all_parts, vector, x, back))

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
        vector, back, _ = self._opened(x, "sum")
        root = self._root(root)
        done = native.gather(self._native, vector.n, vector.width, _arrays(vector), root, "direct", async_op)

        def finish(all_parts: list[_Parts]) -> Any:
            return self._list(all_parts, vector, x, back) if self.rank == root else None

        return perform(done, async_op, finish)

    def alltoall(self, xs: Sequence[Any], *, async_op: bool = False) -> Any:
        """Give each rank a vector of its own; get one from each. Collective.

        Parameters
        ----------
        xs : sequence, one vector a rank
            All of the same kind, n, width and dtype, on all ranks.
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
            if len(xs) != self.size:
                raise BadInput(f"{len(xs)} vectors for {self.size} ranks: pass one a rank")
            vectors, back = self._alike(xs)
        except Exception as error:
            self._fail(error)
        first = vectors[0]
        arrays = [_arrays(vector) for vector in vectors]
        done = native.alltoall(self._native, first.n, first.width, arrays, None, first._values, async_op)
        return perform(done, async_op, lambda all_parts: self._list(all_parts, first, xs[0], back))

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
        shape, back, _ = self._opened(like, "sum")
        try:
            vectors = self._alike([*(xs or []), like])[0][:-1] if self.rank == root else []
        except Exception as error:
            self._fail(error)
        arrays = [_arrays(vector) for vector in vectors]
        done = native.alltoall(self._native, shape.n, shape.width, arrays, root, shape._values, async_op)
        return perform(done, async_op, lambda all_parts: self._closed(_vector(all_parts[0], shape), like, back, 0))

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

    def _closed(self, vector: SparseVector, x: Any, back: Any, identity: Any) -> Any:
        """The caller's kind."""
        if _is_dense_kind(x):
            return back(vector.to_dense(identity).reshape(x.shape))
        return back(vector)

    def _list(self, all_parts: list[_Parts], like: SparseVector, x: Any, back: Any) -> Any:
        vectors = [_vector(parts, like) for parts in all_parts]
        if not _is_dense_kind(x):
            return [back(vector) for vector in vectors]
        return back(np.stack([vector.to_dense().reshape(x.shape) for vector in vectors]))

    def _root(self, root: int) -> int:
        try:
            number = index(root)
            if not 0 <= number < self.size:
                raise BadInput(f"root={root} is no rank of a group of {self.size}")
            return number
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> NoReturn:
        """Raise an error found before the call could begin, on all ranks."""
        if not isinstance(error, BadInput):
            error = BadInput(str(error))
        if self.size > 1 and not self._native.closed:
            raise self._native.fail_call(str(error)) from None
        raise error from None


def _is_dense_kind(x: Any) -> bool:
    """An array or a dense tensor."""
    return isinstance(x, np.ndarray) or (hasattr(x, "is_sparse") and not x.is_sparse)


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
