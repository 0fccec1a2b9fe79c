"""DistMatrix: the distributed sparse matrix, and its product with a vector.

Each rank holds an arbitrary share of the entries. To multiply, it needs x at the columns of its share (Kylix's *in*
set) and contributes to y at the rows of its share (the *out* set). One configured reduce per product adds the
contributions and returns to each rank the entries that it needs (*Sparse Allreduce*, section III; Kylix, section
I.A.2). For a square matrix the result is aligned like the input, so it can be multiplied again.

Cost of a product on one rank: 2 nnz/P operations, and one reduce of |rows| values in and |index| values out. Cost of
construction: two passes of counting sort over the share, one configure with a reduce for the ownership, one configure.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..collectives.agreement import collective, reduce_number, together
from ..errors import BadInput
from ..inputs.arrays import as_numpy, refuse_masked
from .edges import Ids
from .semiring import ADD, MULTIPLY, CompactRows, count_sort

if TYPE_CHECKING:
    from .. import Comm, Plan

__all__ = ["DistMatrix"]

Array = npt.NDArray[Any]
# Largest number of rows, and of columns, of a matrix, including its slots.
_MAX_SIDE = 2**63


class DistMatrix:
    """A sparse matrix of which each rank holds some entries.

    Parameters
    ----------
    comm : Comm
        The group. The constructor and the products are collective: all ranks must call them.
    rows, columns : array_like of int, shape (m,)
        Positions of this rank's entries. Any rank may hold any entry. Entries at the same position are combined
        by the addition of the product (for plus-times: they add up, as in SciPy).
    values : array_like, shape (m,), optional
        The values of the entries; None: every entry is 1.
    shape : (int, int), optional
        Default: square, large enough for every entry of every rank.
    every_vertex : bool
        For a square matrix: whether vectors also have elements for rows and columns without entries. These take
        memory; ranges of them are distributed evenly over ranks.
    slots : int
        Number of scalars that are summed along with each product, see :meth:`matvec_with`.
    degrees : sequence of int, optional
        Degrees of the butterfly's layers, see ``Comm.configure``.

    Attributes
    ----------
    shape : (int, int)
        Shape of the whole matrix.
    index : ndarray of int64
        The sorted global columns at which this rank holds x: those of its entries, and for a square matrix also
        those that it owns.
    row_index : ndarray of int64
        The global rows at which this rank holds the result: ``index`` if the matrix is square, else the rows that it
        owns.
    owned : ndarray of bool, aligned with ``row_index``
        Each row is owned by exactly one rank, so a sum over all vertices counts owned entries only. The
        owner is a rank that has the vertex as a column, if any has.
    plan : Plan
        The configured reduce.

    Raises
    ------
    BadInput
        On all ranks, if one rank's arrays do not fit each other or the shape.

    Examples
    --------
    >>> import numpy as np
    >>> import skyphos as sky
    >>> from skyphos.graph import DistMatrix
    >>> with sky.init() as comm:
    ...     A = DistMatrix(comm, rows=[0, 1, 2], columns=[1, 2, 0], values=[1.0, 10.0, 100.0])
    ...     x = A.full(1.0)
    ...     A.matvec(A.matvec(x)), A.matvec(x, add="min", multiply="plus")
    (array([  10., 1000.,  100.]), array([  2.,  11., 101.]))
    """

    @collective(argument=1)
    def __init__(
        self,
        comm: Comm,
        rows: npt.ArrayLike,
        columns: npt.ArrayLike,
        values: npt.ArrayLike | None = None,
        *,
        shape: tuple[int, int] | None = None,
        every_vertex: bool = False,
        slots: int = 0,
        degrees: Sequence[int] | None = None,
    ) -> None:
        self.comm = comm
        row, column, value = together(comm, lambda: _check(rows, columns, values, shape, slots))
        if shape is None:
            n = reduce_number(comm, int(max(row.max(initial=-1), column.max(initial=-1))) + 1, "max", np.uint64)
            shape = (n, n)
        self.shape = shape
        self.slots = slots
        self.nnz = len(row)
        my_rows, local_row = _compact(row, shape[0])
        my_columns, local_column = _compact(column, shape[1])
        self._my_rows = my_rows
        square = shape[0] == shape[1]
        mine = self._owned_rows(my_rows, my_columns if square else None, every_vertex and square)
        self.index: Ids = _union(my_columns, mine) if square else my_columns
        self.row_index: Ids = self.index if square else mine
        self.owned: npt.NDArray[np.bool_] = _membership(self.row_index, mine)
        at = np.searchsorted(self.index, my_columns).astype(np.int32)
        self._local = _by_rows(local_row, at[local_column], value, len(my_rows), len(self.index))
        # The scalars of matvec_with are reduced as additional rows after the last one.
        extra = np.array([shape[0] + slot for slot in range(slots)], np.int64)
        self.plan: Plan = comm.configure(
            np.concatenate([my_rows, extra]),
            np.concatenate([self.row_index, extra]),
            n=shape[0] + slots,
            degrees=degrees,
            missing="identity",
        )
        self._buffers: dict[np.dtype[Any], Array] = {}

    def full(self, fill: Any, dtype: npt.DTypeLike = np.float64) -> Array:
        """Return a vector aligned with ``index``, filled with one value."""
        x = self._result_buffer(len(self.index), dtype)
        x.fill(fill)
        return x

    def empty(self, dtype: npt.DTypeLike = np.float64) -> Array:
        """Return an uninitialised vector aligned with ``row_index``, for ``out=``.

        Behind this vector there is memory for the scalars of :meth:`matvec_with`, so a product is received directly
        into it; any other vector costs a copy.
        """
        return self._result_buffer(len(self.row_index), dtype)

    def matvec(self, x: Array, *, add: str = "plus", multiply: str = "times", out: Array | None = None) -> Array:
        """Multiply: y_i = ADD over j of MULTIPLY(A_ij, x_j).

        Parameters
        ----------
        x : ndarray, aligned with ``index``
            The vector.
        add : {"plus", "times", "min", "max", "or", "and"}
            Operation that combines the terms of a row.
        multiply : {"times", "plus", "min", "max", "or", "and", "first", "second"}
            Operation that makes a term from an entry and an element of x; ``first`` is the entry, ``second`` the
            element.
        out : ndarray, aligned with ``row_index``, optional
            Receives the result; a vector from :meth:`empty` avoids a copy. Must not be ``x``.

        Returns
        -------
        ndarray, aligned with ``row_index``
            A row without entries gets the identity of the addition.

        Raises
        ------
        BadInput
            If x or out is not aligned, or the operations or their dtypes are not known.
        """
        return self.matvec_with(x, (0,) * self.slots, add=add, multiply=multiply, out=out)[0]

    @collective(lambda matrix: matrix.comm)
    def matvec_with(
        self,
        x: Array,
        numbers: Sequence[float],
        *,
        add: str = "plus",
        multiply: str = "times",
        out: Array | None = None,
    ) -> tuple[Array, list[Any]]:
        """Multiply, and reduce a few scalars over the ranks in the same messages.

        Parameters
        ----------
        x, add, multiply, out
            As in :meth:`matvec`.
        numbers : sequence of float
            This rank's ``slots`` scalars; reduced by the same addition as the rows.

        Returns
        -------
        y : ndarray, aligned with ``row_index``
        totals : list
            The reduced scalars, the same on every rank.
        """
        dtype = self._check_product(x, numbers, add, multiply, out)
        send = self._buffers.get(dtype)
        if send is None:
            send = self._buffers[dtype] = np.empty(self._local.rows + self.slots, dtype)
        self._local.product(x, add, multiply, send[: self._local.rows])
        send[self._local.rows :] = numbers
        whole = self._whole(out, dtype)
        self._reduce(send, add, whole)
        y = whole[: len(self.row_index)]
        if out is not None and not np.shares_memory(out, whole):
            out[...] = y
            y = out
        return y, whole[len(self.row_index) :].tolist()

    def column_sums(self) -> Array:
        """Return the sum of each column over all ranks, aligned with ``index``; zero where there is no entry.

        For an adjacency matrix with A_ij the weight of the edge j to i these are the out-degrees.
        """
        local = self._local
        sums = np.bincount(local.columns, weights=local.values, minlength=len(self.index)).astype(np.float64)
        return self.comm.configure_reduce(self.index, self.index, sums, n=max(1, self.shape[1]))

    def column_maxima(self) -> Array:
        """Return the largest entry of each column over all ranks, aligned with ``index``; 1 where all are 0 or less."""
        local = self._local
        largest = np.zeros(len(self.index))
        np.maximum.at(largest, local.columns, 1.0 if local.values is None else local.values)
        largest = self.comm.configure_reduce(self.index, self.index, largest, n=max(1, self.shape[1]), op="max")
        largest[largest <= 0.0] = 1.0
        return largest

    def divide_columns(self, divisors: Array) -> DistMatrix:
        """Return A diag(divisors)^-1: entry (i, j) divided by the divisor at j. Not collective.

        Shares everything but the values with this matrix.

        Parameters
        ----------
        divisors : ndarray of float64, aligned with ``index``
            Not zero where there are entries.
        """
        divided = copy.copy(self)
        values = divisors.take(self._local.columns)
        np.divide(1.0 if self._local.values is None else self._local.values, values, out=values)
        divided._local = CompactRows(self._local.starts, self._local.columns, values, self._local.width)
        divided._buffers = {}
        return divided

    def first_entry(self, mask_of: Callable[[Array], Array]) -> tuple[int, int, Any] | None:
        """Return row, column and value of the first entry of this rank that is true in ``mask_of(values)``."""
        local = self._local
        if local.values is None:
            return None
        found = np.flatnonzero(mask_of(local.values))
        if len(found) == 0:
            return None
        row = int(np.searchsorted(local.starts, found[0], side="right")) - 1
        return int(self._my_rows[row]), int(self.index[local.columns[found[0]]]), local.values[found[0]]

    @collective(lambda matrix: matrix.comm)
    def total(self, x: Array) -> float:
        """Return the sum over all vertices of a vector aligned with ``row_index``. Collective."""
        return float(reduce_number(self.comm, float(x[self.owned].sum()), dtype=np.float64))

    def _owned_rows(self, my_rows: Ids, my_columns: Ids | None, every_vertex: bool) -> Ids:
        """Agree on one owner for each row, and return the rows that this rank owns.

        Every rank with an entry in a row bids for it; the lowest bid wins. Ranks that have the row also as a column
        bid lower, and the order of the ranks rotates with the row, so that ownership is balanced.
        """
        rank, size = self.comm.rank, self.comm.size
        touched = my_rows if my_columns is None else _union(my_rows, my_columns)
        bid = ((rank + touched) % size).astype(np.int32)
        if my_columns is not None:
            bid[~_membership(touched, my_columns)] += size
        n = self.shape[0]
        mine_if_free = np.arange(n * rank // size, n * (rank + 1) // size) if every_vertex else np.empty(0, np.int64)
        want = np.concatenate([touched, mine_if_free])
        best = self.comm.configure_reduce(touched, want, bid, n=max(1, n), op="min", missing="identity")
        won = touched[best[: len(touched)] == bid]
        # A row without entries has no bids: the reduce returns the identity, and the rank whose range it is in gets it.
        free = mine_if_free[best[len(touched) :] == np.iinfo(np.int32).max]
        return _union(won, free)

    def _reduce(self, send: Array, add: str, whole: Array) -> None:
        if send.dtype != np.bool_:
            self.plan.reduce(send, op=ADD[add][1], out=whole)
            return
        # Truth values are sent as bytes. The identity of "and" for bytes is 255, which is not a truth value.
        whole_bytes = whole.view(np.uint8)
        self.plan.reduce(send.view(np.uint8), op="or" if add in ("plus", "max", "or") else "and", out=whole_bytes)
        np.minimum(whole_bytes, 1, out=whole_bytes)

    def _check_product(
        self, x: Array, numbers: Sequence[float], add: str, multiply: str, out: Array | None
    ) -> np.dtype[Any]:
        if add not in ADD or multiply not in MULTIPLY:
            raise BadInput(
                f"no product over {add!r} and {multiply!r}: add is one of {', '.join(ADD)}; "
                f"multiply one of {', '.join(MULTIPLY)}"
            )
        refuse_masked(x, "x")
        refuse_masked(out, "out")
        if x.shape != self.index.shape:
            raise BadInput(f"x has shape {x.shape}, but A.index on this rank {self.index.shape}")
        if len(numbers) != self.slots:
            raise BadInput(f"{len(numbers)} numbers, but the matrix was made with slots={self.slots}")
        dtype = self._local.result_dtype(x, multiply)
        if dtype.kind == "f" and ("or" in (add, multiply) or "and" in (add, multiply)):
            raise BadInput(f"'or' and 'and' are for whole numbers and truth values, not for {dtype}")
        if out is not None and (out.shape != self.row_index.shape or out.dtype != dtype):
            raise BadInput(f"out must have shape {self.row_index.shape} and dtype {dtype}")
        return dtype

    def _result_buffer(self, length: int, dtype: npt.DTypeLike) -> Array:
        return np.empty(length + self.slots, dtype)[:length]

    def _whole(self, out: Array | None, dtype: np.dtype[Any]) -> Array:
        """The vector that a reduce fills: ``out`` with its extra memory if it is from :meth:`empty`, else a new one."""
        length = len(self.row_index) + self.slots
        if out is not None and self.slots == 0 and out.flags.c_contiguous:
            return out
        base = None if out is None else out.base
        if out is None or not isinstance(base, np.ndarray) or base.dtype != dtype:
            return np.empty(length, dtype)
        starts_with_out = base.shape == (length,) and base.ctypes.data == out.ctypes.data
        return base if starts_with_out else np.empty(length, dtype)


def _check(
    rows: npt.ArrayLike, columns: npt.ArrayLike, values: npt.ArrayLike | None, shape: tuple[int, int] | None, slots: int
) -> tuple[Ids, Ids, Array | None]:
    checked = []
    for name, ids, side in (("rows", rows, 0), ("columns", columns, 1)):
        array = as_numpy(ids, name)
        if array.size == 0:
            array = array.astype(np.int64)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise BadInput(f"{name} must be whole numbers in one dimension, not {array.dtype} of shape {array.shape}")
        end = _MAX_SIDE - slots if shape is None else shape[side]
        if len(array) and (array.min() < 0 or int(array.max()) >= end):
            raise BadInput(f"{name} must be from 0 to {end - 1}; here they run from {array.min()} to {array.max()}")
        checked.append(array.astype(np.int64, copy=False))
    value = None if values is None else as_numpy(values, "values")
    if value is not None and value.dtype.kind not in "biuf":
        raise BadInput(f"values must be real numbers or truth values, and are of type {value.dtype}")
    if value is not None and value.ndim != 1:
        raise BadInput(f"values must be in one dimension, not of shape {value.shape}")
    lengths = [len(array) for array in checked] + ([] if value is None else [len(value)])
    if len(set(lengths)) != 1:
        raise BadInput(f"rows, columns and values must have one length, not {lengths}")
    if shape is not None and not 0 <= max(shape) <= _MAX_SIDE - slots:
        raise BadInput(f"a matrix of shape {shape} is too large: 2^63 - {slots} rows at most")
    return checked[0], checked[1], value


def _compact(ids: Ids, n: int) -> tuple[Ids, npt.NDArray[np.int32]]:
    """The sorted distinct ids, and for each id its position among them."""
    if n <= 8 * len(ids) + 65_536:
        # A table over all ids is faster than a sort, unless the ids are very sparse.
        seen = np.zeros(n, np.bool_)
        seen[ids] = True
        number = np.cumsum(seen, dtype=np.int32)
        number -= 1
        return np.flatnonzero(seen), number.take(ids)
    names, numbers = np.unique(ids, return_inverse=True)
    return names, numbers.astype(np.int32)


def _by_rows(
    row: npt.NDArray[np.int32], column: npt.NDArray[np.int32], value: Array | None, rows: int, width: int
) -> CompactRows:
    """Sort entries by row, and by column in each: two stable counting sorts, the last key first."""
    by_column, _ = count_sort(column, width)
    by_row, starts = count_sort(row.take(by_column), rows)
    order = by_column.take(by_row)
    # SciPy's kernel takes one integer type for columns and starts.
    columns = column.take(order).astype(starts.dtype, copy=False)
    return CompactRows(starts, columns, None if value is None else value.take(order), width)


def _union(a: Ids, b: Ids) -> Ids:
    """The union of two arrays of sorted distinct ids."""
    both = np.concatenate([a, b])
    both.sort(kind="stable")  # merges the two runs in one pass; np.union1d hashes every id, ten times slower
    first = np.concatenate([[True], both[1:] != both[:-1]])[: len(both)]
    union: Ids = both[first]
    return union


def _membership(sorted_ids: Ids, subset: Ids) -> npt.NDArray[np.bool_]:
    """Mask of the sorted distinct ids that are in a sorted subset of them."""
    mask = np.zeros(len(sorted_ids), np.bool_)
    mask[np.searchsorted(sorted_ids, subset)] = True
    return mask
