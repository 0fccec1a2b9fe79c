"""SciPy's sparse arrays and matrices as vectors, and conversion back to their class, format and shape."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from .scipy_arrays import entries_of, rows_of
from .sparse_vector import SparseVector

__all__ = ["matrix_shape", "open_scipy"]


def open_scipy(x: Any, *, rows: bool = False) -> tuple[SparseVector, Callable[[SparseVector], Any]]:
    """The vector of a sparse array's entries, in C order, and the conversion of a result to such an array.

    Repeated entries are summed, as SciPy does. With ``rows``, each row of a matrix of several rows is one entry.

    Examples
    --------
    >>> import numpy as np, scipy.sparse
    >>> from skyphos.vectors.scipy_kinds import open_scipy
    >>> x, back = open_scipy(scipy.sparse.csr_matrix(np.array([[0.0, 5.0], [7.0, 0.0]])))
    >>> x.indices, x.values
    (array([1, 2]), array([5., 7.]))
    >>> type(back(x)).__name__
    'csr_matrix'
    """
    if rows and x.ndim == 2 and x.shape[0] > 1:
        vector = SparseVector._of(*rows_of(x), None, x.shape[0])
        return vector, lambda result: _of_entries(_entries_of_rows(result), x)
    return SparseVector(*entries_of(x), prod(x.shape)), lambda result: _of_entries(result, x)


def matrix_shape(x: Any) -> tuple[int, ...] | None:
    """The shape of a sparse matrix of several rows, which must be the same on all ranks; None for anything else.

    A matrix of one row can be reduced with vectors of the same length.

    Examples
    --------
    >>> import scipy.sparse
    >>> from skyphos.vectors.scipy_kinds import matrix_shape
    >>> matrix_shape(scipy.sparse.csr_array((2, 3))), matrix_shape(scipy.sparse.csr_array((1, 3))), matrix_shape([1.0])
    ((2, 3), None, None)
    """
    if isinstance(x, (np.ndarray, SparseVector)):
        return None
    scipy_sparse = sys.modules.get("scipy.sparse")
    if scipy_sparse is None or not scipy_sparse.issparse(x) or prod(x.shape[:-1]) == 1:
        return None
    return tuple(x.shape)


def _entries_of_rows(rows: SparseVector) -> SparseVector:
    """The nonzero entries of a vector of rows."""
    dense, width = rows.values, rows.width
    row, column = np.nonzero(dense.reshape(-1, width))
    positions = np.asarray(rows.indices, np.int64)[row] * width + column
    return SparseVector._of(positions, dense.reshape(-1, width)[row, column], None, rows.n * width)


def _of_entries(result: SparseVector, like: Any) -> Any:
    """A sparse array of the class, format and shape of ``like``, from a vector of entries in C order."""
    import scipy.sparse

    if result._indices is None and result._present is None:
        result = result.prune()
    positions = np.asarray(result.indices, np.int64)
    coords = []
    for length in reversed(like.shape[1:]):
        positions, at = np.divmod(positions, max(1, length))
        coords.append(at)
    coords.append(positions)
    is_matrix = isinstance(like, scipy.sparse.spmatrix)
    kind: Any = scipy.sparse.coo_matrix if is_matrix else scipy.sparse.coo_array
    coo = kind((result.values, tuple(reversed(coords))), shape=like.shape)
    coo.has_canonical_format = True
    if like.format == "bsr":
        return coo.tobsr(blocksize=like.blocksize)
    return coo if like.format == "coo" else coo.asformat(like.format)
