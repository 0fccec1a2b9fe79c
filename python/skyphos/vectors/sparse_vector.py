"""SparseVector: indices and values, or all rows if that is smaller."""

from __future__ import annotations

import os
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import BadInput
from ..inputs.arguments import NAMED_UFUNCS, as_indices, as_n, as_values
from ..inputs.arrays import as_numpy, refuse_masked

if TYPE_CHECKING:
    import scipy.sparse
    import torch

__all__ = ["SparseVector"]


Array = npt.NDArray[Any]

_UFUNCS = {name: ufunc for ufunc, name in NAMED_UFUNCS.items()}


class SparseVector:
    """A vector of ``n`` numbers, or rows of ``width`` numbers, of which only some are entries.

    An index without an entry counts as the identity of the operation: 0 in a sum, infinity in a minimum. A stored zero
    is an entry. The vector is stored sparse, or dense if a collective made it so (see :attr:`is_dense`).

    Parameters
    ----------
    indices : 1-D array of int32, int64, uint32 or uint64
        Indices of the entries, 0 <= index < n, in any order. Sorted distinct ones are used without a copy.
    values : array of shape (nnz,) or (nnz, width)
        float16, float32, float64, bfloat16 (of the package ``ml_dtypes``), int32, int64, uint8, uint32, uint64 or bool.
    n : int
        Size of the index space, up to 2^63.
    op : str, default "sum"
        Combines the values of a repeated index: ``sum``, ``prod``, ``min``, ``max``, ``or`` or ``and``. The sum of
        truth values is their "or", as in SciPy's arrays; ``.astype(np.int64)`` counts them.

    Raises
    ------
    BadInput
        If an index is out of range, the arrays do not fit each other, or the type cannot be reduced.

    Notes
    -----
    SparCML, section 5.1. The arrays are not copied if they can be used as they are: do not change them while the
    vector is in use.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> x = sky.SparseVector([7, 2, 7], np.array([1.0, 2.0, 3.0]), n=10)
    >>> x
    SparseVector(n=10, nnz=2, float64)
    >>> x.indices, x.values
    (array([2, 7]), array([2., 4.]))
    >>> x.to_dense()
    array([0., 0., 2., 0., 0., 0., 0., 4., 0., 0.])
    """

    __slots__ = ("_indices", "_is_of_list", "_n", "_owned", "_present", "_values")

    def __init__(self, indices: npt.ArrayLike, values: npt.ArrayLike, n: int, *, op: str = "sum") -> None:
        if not isinstance(op, str) or op not in _UFUNCS:
            raise BadInput(f"op must be one of {', '.join(_UFUNCS)}, not {op!r}")
        positions, self._n, rows = as_indices(indices, "indices"), as_n(n), as_numpy(values, "values")
        width = rows.shape[1] if rows.ndim == 2 else 1
        if width == 0:
            raise BadInput("values must have at least one number a row")
        rows = as_values(rows, len(positions), width, "indices")
        ascending = bool((positions[1:] > positions[:-1]).all())
        ends = positions[[0, -1]] if ascending and len(positions) else positions
        if len(ends) and not (ends.min() >= 0 and ends.max() < self._n):
            bad = int(np.flatnonzero((positions < 0) | (positions >= self._n))[0])
            raise BadInput(f"indices[{bad}] = {positions[bad]} is outside the index space 0 <= index < n = {n}")
        if not ascending:
            positions, rows = _sorted(positions, rows, op)
        self._indices: Array | None = positions
        self._values = rows
        self._present: Array | None = None
        self._owned: range | None = None
        # NumPy chose the type of a list's values, not the caller.
        self._is_of_list = isinstance(values, (list, tuple))

    @classmethod
    def _of(cls, indices: Array | None, values: Array, present: Array | None, n: int) -> SparseVector:
        """A vector of parts that are known to be valid."""
        vector = cls.__new__(cls)
        vector._indices, vector._values, vector._present = indices, values, present
        vector._n, vector._owned, vector._is_of_list = n, None, False
        return vector

    @classmethod
    def from_dense(cls, array: npt.ArrayLike, *, keep_zeros: bool = False) -> SparseVector:
        """Make a vector from an array of shape (n,) or (n, width).

        Parameters
        ----------
        array : array
            Rows that are all zero become no entries.
        keep_zeros : bool
            Every row becomes an entry; the vector is then dense and shares the array's memory.

        Examples
        --------
        >>> import skyphos as sky
        >>> sky.SparseVector.from_dense([0.0, 1.5, 0.0]).indices
        array([1])
        """
        rows = as_numpy(array, "the array")
        if rows.ndim not in (1, 2):
            raise BadInput(f"a vector has 1 or 2 dimensions (rows, width), not {rows.ndim}")
        rows = as_values(rows, len(rows), rows.shape[1] if rows.ndim == 2 else 1, "the array")
        if keep_zeros:
            return cls._of(None, rows, None, len(rows))
        stored = rows != 0 if rows.ndim == 1 else (rows != 0).any(axis=1)
        positions = np.flatnonzero(stored)
        return cls._of(positions, rows[positions], None, len(rows))

    @classmethod
    def from_scipy(cls, array: Any) -> SparseVector:
        """Make a vector from a 1-D ``coo_array``, or from a matrix whose rows become rows of numbers.

        A matrix of shape (n, width) gives an entry for each row with stored entries.

        Examples
        --------
        >>> import numpy as np, scipy.sparse, skyphos as sky
        >>> x = scipy.sparse.coo_array((np.array([2.0]), (np.array([5]),)), shape=(9,))
        >>> sky.SparseVector.from_scipy(x)
        SparseVector(n=9, nnz=1, float64)
        """
        from .scipy_arrays import entries_of, rows_of

        if array.ndim != 1:
            rows, numbers = rows_of(array)
            return cls._of(rows, numbers, None, array.shape[0])
        return cls(*entries_of(array), array.shape[0])

    @classmethod
    def from_torch(cls, tensor: torch.Tensor) -> SparseVector:
        """Make a vector from a sparse COO tensor of shape (n,) or, with one dense dimension, (n, width).

        A coalesced CPU tensor is not copied.

        Examples
        --------
        >>> import skyphos as sky
        >>> import torch                                                # doctest: +SKIP
        >>> sky.SparseVector.from_torch(torch.sparse_coo_tensor([[1]], [2.0], (4,)))  # doctest: +SKIP
        SparseVector(n=4, nnz=1, float32)
        """
        from .torch_arrays import array_of, entries_of, plain

        if tensor.is_sparse and (tensor.sparse_dim() != 1 or tensor.dense_dim() > 1):
            raise BadInput(
                f"a sparse tensor needs one sparse and at most one dense dimension, not {tensor.sparse_dim()} and "
                f"{tensor.dense_dim()}"
            )
        tensor = plain(tensor)
        if tensor.is_sparse:
            return cls(*entries_of(tensor), prod(tensor.shape[: tensor.sparse_dim()]))
        return cls.from_dense(array_of(tensor), keep_zeros=True)

    @classmethod
    def from_arrow(
        cls, table: Any, n: int, *, index: str = "index", values: str = "value", op: str = "sum"
    ) -> SparseVector:
        """Make a vector from two columns of a pyarrow ``Table`` or ``RecordBatch``.

        Parameters
        ----------
        table : pyarrow.Table or pyarrow.RecordBatch
            A column of indices, and one of numbers or of lists of ``width`` numbers each (``FixedSizeList``).
        n : int
            Size of the index space.
        index, values : str
            Names of the columns.
        op : str
            Combines the values of a repeated index, as in :class:`SparseVector`.

        Raises
        ------
        BadInput
            If there is no such column, or it has nulls or other values than numbers.

        Examples
        --------
        >>> import pyarrow as pa, skyphos as sky
        >>> table = pa.table({"index": [7, 2], "value": [1.5, 0.5]})
        >>> sky.SparseVector.from_arrow(table, n=10).indices
        array([2, 7])
        """
        return cls(_column(table, index), _column(table, values), n, op=op)

    def to_arrow(self) -> Any:
        """Return a pyarrow ``Table`` of the columns ``index`` and ``value`` (lists of numbers where width is not 1)."""
        import pyarrow  # type: ignore[import-untyped, unused-ignore]

        rows = self.values
        column = pyarrow.array(rows.reshape(-1))
        if rows.ndim == 2:
            column = pyarrow.FixedSizeListArray.from_arrays(column, rows.shape[1])
        return pyarrow.table({"index": pyarrow.array(self.indices), "value": column})

    def __repr__(self) -> str:
        width = f", width={self.width}" if self._values.ndim == 2 else ""
        dense = ", dense" if self.is_dense else ""
        return f"SparseVector(n={self.n}{width}, nnz={self.nnz}, {self.dtype}{dense})"

    @property
    def n(self) -> int:
        """Size of the index space."""
        return self._n

    @property
    def width(self) -> int:
        """Numbers per index."""
        return self._values.shape[1] if self._values.ndim == 2 else 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        return self._values.dtype

    @property
    def is_dense(self) -> bool:
        """True if a row is stored for every index. A bitmap then marks the entries, unless the vector was made from an
        array or by ``split_allgather_dense``: then all rows are entries."""
        return self._indices is None

    @property
    def nnz(self) -> int:
        """Number of entries, including stored zeros."""
        if self._present is not None:
            return int(np.bitwise_count(self._present).sum())
        return len(self._values)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays inside."""
        parts = (self._indices, self._values, self._present)
        return sum(part.nbytes for part in parts if part is not None)

    @property
    def owned(self) -> range | None:
        """Indices that this rank owns in a result of ``reduce_scatter``; None for any other vector."""
        return self._owned

    @property
    def indices(self) -> Array:
        """Ascending indices of the entries. For a dense vector they are computed at each access."""
        if self._indices is not None:
            return self._indices
        if self._present is None:
            return np.arange(self._n)
        bits = np.unpackbits(self._present.view(np.uint8), bitorder="little", count=self._n)
        return np.flatnonzero(bits)

    @property
    def values(self) -> Array:
        """The entries' values, shape (nnz,) or (nnz, width)."""
        return self._values if self._present is None else self._values[self.indices]

    def to_dense(self, fill: float = 0) -> Array:
        """Return an array of shape (n,) or (n, width) in which rows without an entry are ``fill``.

        Raises
        ------
        BadInput
            If ``fill`` is not a number of this type (NaN for integers), or the array exceeds this machine's memory.
        """
        absent = _fill_of(fill, self.dtype)
        shape = (self._n, *self._values.shape[1:])
        if self._indices is None and self._present is None:
            return self._values.copy()
        _check_memory(shape, self.dtype)
        try:
            dense = np.full(shape, absent, self.dtype)
        except (MemoryError, ValueError) as error:
            raise _too_large(shape, self.dtype, str(error)) from None
        dense[self.indices] = self.values
        return dense

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """The dense array, with zeros in rows without an entry; ``np.asarray(x)`` returns it."""
        if copy is False:
            raise ValueError("a SparseVector becomes an array only by a copy")
        dense = self.to_dense()
        return dense if dtype is None else dense.astype(dtype, copy=False)

    def to_scipy(self) -> scipy.sparse.coo_array | scipy.sparse.csr_array:
        """Return a 1-D ``coo_array``; with rows of numbers a ``csr_array`` of shape (n, width).

        If the vector is dense and all its rows are entries, rows of zeros are left out.
        """
        import scipy.sparse

        if self._indices is None and self._present is None:
            return self.prune().to_scipy()
        if self._values.ndim == 1:
            return scipy.sparse.coo_array((self.values, (self.indices,)), shape=(self._n,))
        rows, width = self.values, self.width
        starts = np.zeros(self._n + 1, np.int64)
        starts[self.indices + 1] = width
        columns = np.tile(np.arange(width), len(rows))
        return scipy.sparse.csr_array((rows.ravel(), columns, starts.cumsum()), shape=(self._n, width))

    def to_torch(self) -> torch.Tensor:
        """Return a coalesced sparse COO tensor that shares the memory of the values (and of int64 indices).

        If the vector is dense and all its rows are entries, rows of zeros are left out.
        """
        import torch

        if self._indices is None and self._present is None:
            return self.prune().to_torch()
        positions = torch.from_numpy(np.ascontiguousarray(self.indices, np.int64))
        size = (self._n, *self._values.shape[1:])
        values = torch.from_numpy(self.values)
        # The invariants that torch would check hold by construction.
        return torch.sparse_coo_tensor(positions[None], values, size, is_coalesced=True, check_invariants=False)

    def prune(self, identity: float = 0) -> SparseVector:
        """Return the vector without the entries that are all ``identity``."""
        positions, rows = self.indices, self.values
        stored = rows != identity if rows.ndim == 1 else (rows != identity).any(axis=1)
        return SparseVector._of(positions[stored], rows[stored], None, self._n)


def _column(table: Any, name: str) -> Array:
    """A column as an array, of rows if it holds lists of one length."""
    import pyarrow

    if name not in table.schema.names:
        raise BadInput(f"there is no column {name!r}: the table has {', '.join(table.schema.names)}")
    column = table.column(name)
    if isinstance(column, pyarrow.ChunkedArray):
        column = column.combine_chunks()
    if column.null_count:
        raise BadInput(f"column {name!r} has {column.null_count} nulls")
    width = getattr(column.type, "list_size", None)
    numbers = column if width is None else column.flatten()
    array: Array = np.asarray(numbers)
    if array.dtype.hasobject or (width is not None and numbers.null_count):
        raise BadInput(f"column {name!r} holds {column.type}: it must hold numbers, or lists of numbers of one length")
    return array if width is None else array.reshape(-1, width)


def _fill_of(fill: Any, dtype: np.dtype[Any]) -> Any:
    """The value of rows without an entry, in a type that can hold it."""
    refuse_masked(fill, "fill")
    try:
        (given,) = np.asarray(fill).reshape(-1).tolist()
        if isinstance(given, (str, bytes)) or given is None or isinstance(given, complex):
            raise TypeError("no real number")
        with np.errstate(all="ignore"):
            made = np.array(given).astype(dtype)[()] if dtype.kind not in "iu" else dtype.type(_whole(given))
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"fill must be a number that {dtype} can hold, not {fill!r}") from None
    beyond = dtype.kind not in "iub" and np.isfinite(float(given)) and not np.isfinite(float(made))
    if beyond or (dtype == np.bool_ and given not in (0, 1)):
        raise BadInput(f"fill must be a number that {dtype} can hold, not {fill!r}")
    return made


def _whole(number: Any) -> int:
    """A number without a fraction as ``int``."""
    whole = int(number)
    if whole != number:
        raise ValueError("a fraction")
    return whole


def _check_memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refuse an array that exceeds the machine's memory: allocating it would end the process."""
    pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    memory = pages * os.sysconf("SC_PAGE_SIZE") if pages > 0 else 2**63
    if prod(shape) * dtype.itemsize > memory:
        raise _too_large(shape, dtype, f"this machine has {memory / 1e9:,.0f} GB")


def _too_large(shape: tuple[int, ...], dtype: np.dtype[Any], why: str) -> BadInput:
    size = prod(shape) * dtype.itemsize
    return BadInput(
        f"a dense array of {dtype} of shape {shape} takes {size / 1e9:,.0f} GB ({why}): use .indices and .values"
    )


def _sorted(positions: Array, rows: Array, op: str) -> tuple[Array, Array]:
    """Sort by index and combine the values of repeated indices."""
    order = positions.argsort(kind="stable")
    positions, rows = positions[order], rows[order]
    is_first = np.empty(len(positions), bool)
    is_first[:1] = True
    np.not_equal(positions[1:], positions[:-1], out=is_first[1:])
    if is_first.all():
        return positions, rows
    starts = np.flatnonzero(is_first)
    ufunc: np.ufunc = _UFUNCS[op]
    if rows.dtype == np.bool_:
        ufunc = np.logical_and if op in ("prod", "min", "and") else np.logical_or
    return positions[starts], ufunc.reduceat(rows, starts, axis=0, dtype=rows.dtype)
