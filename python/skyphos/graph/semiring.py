"""The local part of a distributed product: y_i = ADD over j of MULTIPLY(A_ij, x_j), for named pairs of
operations.

Plus-times runs SciPy's CSR kernel. Every other pair runs the same three NumPy passes over one block of rows at a time,
small enough that intermediate values stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadInput

__all__ = ["ADD", "MULTIPLY", "CompactRows", "count_sort"]

Array = npt.NDArray[Any]

# Additions by name: NumPy's function for one rank's share, and the reduction over ranks.
ADD: dict[str, tuple[np.ufunc, str]] = {
    "plus": (np.add, "sum"),
    "times": (np.multiply, "prod"),
    "min": (np.minimum, "min"),
    "max": (np.maximum, "max"),
    "or": (np.bitwise_or, "or"),
    "and": (np.bitwise_and, "and"),
}

# Multiplications of a matrix entry and a vector element by name; "first" is the entry, "second" the element.
MULTIPLY: dict[str, np.ufunc | None] = {
    "times": np.multiply,
    "plus": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "or": np.bitwise_or,
    "and": np.bitwise_and,
    "first": None,
    "second": None,
}

# Types that are sent as they are; a truth value is sent as a byte.
_DTYPES = tuple(np.dtype(name) for name in ("f4", "f8", "i4", "i8", "u1", "u4", "u8"))

# Entries of a block of rows in the general product: 8-byte intermediate values take 256 KB, half a usual L2 cache.
_BLOCK = 1 << 15


def count_sort(keys: npt.NDArray[np.int32], count: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Sort small integers in linear time.

    Parameters
    ----------
    keys : ndarray of int32, shape (m,)
        From 0 to ``count - 1``.
    count : int
        Number of possible keys.

    Returns
    -------
    order : ndarray of int, shape (m,)
        Positions in the order of their keys; equal keys stay in their order.
    starts : ndarray of int, shape (count + 1,)
        Key k is at ``order[starts[k]:starts[k + 1]]``.

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos.graph.semiring import count_sort
    >>> order, starts = count_sort(np.array([2, 0, 2], np.int32), 3)
    >>> order.tolist(), starts.tolist()
    ([1, 0, 2], [0, 1, 1, 3])
    """
    import scipy.sparse

    # Convert a matrix with one entry per column from columns to rows: SciPy does that by counting sort.
    m = len(keys)
    one_each = scipy.sparse.csc_array((np.empty(m, np.int8), keys, np.arange(m + 1)), shape=(count, m))
    rows = one_each.tocsr()
    return rows.indices, rows.indptr


@dataclass(frozen=True)
class CompactRows:
    """A sparse matrix by rows, none of them empty, with local numbers for rows and columns.

    Attributes
    ----------
    starts : ndarray of int, shape (rows + 1,)
        Row i holds entries ``starts[i]`` to ``starts[i + 1] - 1``, by column, equal columns in the order given.
    columns : ndarray of int, shape (entries,)
        Column of each entry.
    values : ndarray, shape (entries,), or None
        None: every entry is one.
    width : int
        Number of columns.
    """

    starts: npt.NDArray[Any]
    columns: npt.NDArray[Any]
    values: Array | None
    width: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.starts) - 1

    def result_dtype(self, x: Array, multiply: str) -> np.dtype[Any]:
        """The dtype of a product with x: by NumPy's rule, then the next larger one that can be sent.

        Raises
        ------
        BadInput
            If there is no such dtype (complex numbers, objects).
        """
        if multiply == "second" or self.values is None:
            dtype = x.dtype
        elif multiply == "first":
            dtype = self.values.dtype
        else:
            dtype = np.result_type(self.values.dtype, x.dtype)
        if dtype == np.bool_:
            return dtype
        for known in _DTYPES:
            if dtype == known:
                return known
        for known in _DTYPES:
            if dtype.kind in "fiu" and np.can_cast(dtype, known):
                return known
        raise BadInput(f"no product of {dtype} numbers: use float32/64, int32/64, uint8/32/64 or bool")

    def product(self, x: Array, add: str, multiply: str, out: Array) -> None:
        """Write the product with x to ``out``, shape (rows,), of the dtype from :meth:`result_dtype`."""
        if add == "plus" and multiply == "times" and out.dtype != np.bool_:
            self._plus_times(x.astype(out.dtype, copy=False), out)
        else:
            self._general(x, ADD[add][0], multiply, out)

    def _plus_times(self, x: Array, out: Array) -> None:
        values, x = self._values_as(out.dtype), np.ascontiguousarray(x)
        kernel = _csr_matvec()
        if kernel is None:
            import scipy.sparse

            out[...] = scipy.sparse.csr_array((values, self.columns, self.starts), (self.rows, self.width)) @ x
            return
        # SciPy's own product allocates a vector each time; its kernel adds to an existing one, without page faults.
        out.fill(0)
        kernel(self.rows, self.width, self.starts, self.columns, values, x, out)

    def _general(self, x: Array, add: np.ufunc, multiply: str, out: Array) -> None:
        combine = MULTIPLY[multiply]
        values = self._values_as(out.dtype) if multiply != "second" else None
        x = x.astype(out.dtype, copy=False)
        for low, high in self._blocks:
            entries = slice(self.starts[low], self.starts[high])
            if multiply == "first" and values is not None:
                terms = values[entries]
            else:
                terms = x.take(self.columns[entries])
                if combine is not None and values is not None:
                    combine(values[entries], terms, out=terms)
            add.reduceat(terms, self.starts[low:high] - self.starts[low], out=out[low:high])

    def _values_as(self, dtype: np.dtype[Any]) -> Array:
        cached: dict[np.dtype[Any], Array] = self._values
        if dtype not in cached:
            cached[dtype] = np.ones(len(self.columns), dtype) if self.values is None else self.values.astype(dtype)
        return cached[dtype]

    @cached_property
    def _values(self) -> dict[np.dtype[Any], Array]:
        return {} if self.values is None else {self.values.dtype: self.values}

    @cached_property
    def _blocks(self) -> list[tuple[int, int]]:
        """Ranges of rows with at most _BLOCK entries each; a row with more is a range of its own."""
        blocks, low = [], 0
        while low < self.rows:
            end = int(np.searchsorted(self.starts, self.starts[low] + _BLOCK, side="right")) - 1
            high = max(low + 1, end)
            blocks.append((low, high))
            low = high
        return blocks


@cache
def _csr_matvec() -> Callable[..., None] | None:
    """SciPy's kernel y += A x; None if a later SciPy does not have it."""
    try:
        from scipy.sparse._sparsetools import csr_matvec
    except ImportError:
        return None
    kernel: Callable[..., None] = csr_matvec
    return kernel
