"""SciPy's sparse arrays and matrices as vectors, and back to their class, format and shape. Nothing is written to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ..errors import BadInput
from ..inputs.arrays import supported, unsupported
from .sparse_vector import SparseVector

__all__ = ["matrix_shape", "open_scipy", "rows_of_scipy"]


def open_scipy(x: Any, *, rows: bool = False) -> tuple[SparseVector, Callable[[SparseVector], Any]]:
    """The vector of a sparse array's entries, in C order, and what makes such an array of a result.

    Entries that are stored more than once are summed, as SciPy means them. With ``rows`` a matrix of several rows is
    the vector of its rows instead.

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
    if not supported(x.dtype):
        raise unsupported(np.empty(0, x.dtype), "values")
    if rows and x.ndim == 2 and x.shape[0] > 1:
        return rows_of_scipy(x), lambda result: _of_entries(_entries_of_rows(result), x)
    if prod(x.shape) > 2**63:
        raise BadInput(f"a sparse array of shape {x.shape} has more than 2^63 places: fewer can be numbered")
    coo = x.tocoo()  # of a COO itself: nothing below writes to it
    places = np.zeros(len(coo.data), np.int64)
    for length, coords in zip(x.shape, _coords(coo), strict=True):
        places = places * length + coords
    vector = SparseVector(places, _native(coo.data), prod(x.shape))
    return vector, lambda result: _of_entries(result, x)


def matrix_shape(x: Any) -> tuple[int, ...] | None:
    """The shape of a sparse matrix of several rows, which all ranks must pass alike; None of anything else.

    A matrix of one row goes with vectors of as many entries.

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


def rows_of_scipy(x: Any) -> SparseVector:
    """The vector of a matrix's rows: an entry, with all its numbers, for each row that stores anything."""
    coo = x.tocoo()
    row, column = _coords(coo)
    held, at = np.unique(np.asarray(row, np.int64), return_inverse=True)
    dense = np.zeros((len(held), x.shape[1]), x.dtype.newbyteorder("="))
    add = np.logical_or if dense.dtype == np.bool_ else np.add
    add.at(dense, (at.reshape(-1), column), _native(coo.data))
    if x.shape[1] == 0:
        raise BadInput(f"a matrix of shape {x.shape} has no numbers")
    return SparseVector._of(held, dense, None, x.shape[0])


def _coords(coo: Any) -> Any:
    return coo.coords if hasattr(coo, "coords") else (coo.row, coo.col)  # SciPy before 1.13


def _native(data: Any) -> Any:
    return data if data.dtype.isnative else data.astype(data.dtype.newbyteorder("="))


def _entries_of_rows(rows: SparseVector) -> SparseVector:
    """The entries of a vector of rows that are not zero."""
    dense, width = rows.values, rows.width
    held, column = np.nonzero(dense.reshape(-1, width))
    places = np.asarray(rows.indices, np.int64)[held] * width + column
    return SparseVector._of(places, dense.reshape(-1, width)[held, column], None, rows.n * width)


def _of_entries(result: SparseVector, like: Any) -> Any:
    """A sparse array of the class, the format and the shape of another, of a vector of entries in C order."""
    import scipy.sparse

    if result._indices is None and result._present is None:
        result = result.prune()
    places = np.asarray(result.indices, np.int64)
    coords = []
    for length in reversed(like.shape[1:]):
        places, at = np.divmod(places, max(1, length))
        coords.append(at)
    coords.append(places)
    is_matrix = isinstance(like, scipy.sparse.spmatrix)
    kind: Any = scipy.sparse.coo_matrix if is_matrix else scipy.sparse.coo_array
    coo = kind((result.values, tuple(reversed(coords))), shape=like.shape)
    coo.has_canonical_format = True
    if like.format == "bsr":
        return coo.tobsr(blocksize=like.blocksize)
    return coo if like.format == "coo" else coo.asformat(like.format)
