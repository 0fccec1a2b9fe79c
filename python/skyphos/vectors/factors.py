"""Factors of outer products as callers pass them: arrays, tensors, SciPy's sparse arrays, sparse vectors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _skyphos as native
from ..errors import BadInput
from ..inputs.arrays import as_numpy, plain_array, refuse_masked
from .kinds import open_vector
from .sparse_vector import SparseVector

__all__ = ["DenseFactors", "SparseFactors", "open_factors"]

_TYPES = ("bfloat16", "float16", "float32", "float64")


@dataclass(frozen=True)
class DenseFactors:
    """Contiguous arrays of ``pairs`` rows of ``n`` and ``m`` numbers, and the conversion of the result."""

    a: npt.NDArray[Any]
    b: npt.NDArray[Any]
    back: Callable[[Any], Any]

    @property
    def pairs(self) -> int:
        return int(self.a.shape[0])

    @property
    def n(self) -> int:
        return int(self.a.shape[1])

    @property
    def m(self) -> int:
        return int(self.b.shape[1])

    def matrix(self, rows: int, out: Any) -> npt.NDArray[Any]:
        """The array for the sum: ``out`` if it fits, a new one if it is None."""
        shape = (rows, self.m)
        if out is None:
            try:
                return np.empty(shape, self.a.dtype)
            except (MemoryError, ValueError) as error:
                raise BadInput(
                    f"a sum of {rows} by {self.m} numbers of {self.a.dtype} does not fit the memory ({error}): "
                    "scatter=True keeps only a rank's own rows, factors=True only the factors"
                ) from None
        refuse_masked(out, "out")
        out = out if isinstance(out, np.ndarray) else _memory_of(out)
        if out.dtype != self.a.dtype or out.shape != shape:
            raise BadInput(f"out must be a {self.a.dtype} array of shape {shape}, not {out.dtype} of shape {out.shape}")
        if not (out.flags.c_contiguous and out.flags.aligned and out.flags.writeable):
            raise BadInput("out must be a writable, aligned, C-contiguous array")
        if np.may_share_memory(out, self.a) or np.may_share_memory(out, self.b):
            raise BadInput("out must not share memory with the factors")
        plain_array(out, "out")  # refuses classes with other arithmetic
        matrix: npt.NDArray[Any] = out
        return matrix


@dataclass(frozen=True)
class SparseFactors:
    """Sparse factors: ascending indices k N + i and k M + j of uint64, with their values.

    Results have the kind of ``kind``, the caller's sparse factor.
    """

    a: tuple[npt.NDArray[np.uint64], npt.NDArray[Any]]
    b: tuple[npt.NDArray[np.uint64], npt.NDArray[Any]]
    pairs: int
    n: int
    m: int
    kind: Any

    def back(self, found: native.Vector, rows: int) -> Any:
        """Convert a sum of ``rows`` rows to the caller's kind."""
        indices, values, present = found.indices, found.values, found.present
        if isinstance(self.kind, SparseVector):
            return SparseVector._of(indices, values, present, rows * self.m)
        if indices is None:
            indices = np.arange(values.size, dtype=np.uint64)
            if present is not None:
                stored = np.unpackbits(present.view(np.uint8), bitorder="little")[: values.size].astype(bool)
                indices, values = indices[stored], values[stored]
        return self.matrix_of((indices, values), rows, self.m)

    def matrix_of(self, entries: tuple[npt.NDArray[Any], npt.NDArray[Any]], rows: int, width: int) -> Any:
        """A sparse array of the caller's kind; SciPy's CSR if that is a vector."""
        indices, values = entries
        row_of, cols = np.divmod(indices.astype(np.int64), max(width, 1))
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(self.kind, torch.Tensor):
            positions = torch.from_numpy(np.stack([row_of, cols]))
            return torch.sparse_coo_tensor(
                positions, torch.from_numpy(values), (rows, width), is_coalesced=True, check_invariants=False
            ).to(self.kind.device)
        from scipy.sparse import csr_array, csr_matrix, spmatrix

        starts = np.searchsorted(row_of, np.arange(rows + 1))
        kind: Any = csr_matrix if isinstance(self.kind, spmatrix) else csr_array
        made = kind((values, cols, starts), shape=(rows, width))
        made.has_canonical_format = True
        return made if isinstance(self.kind, SparseVector) else made.asformat(self.kind.format)


def _memory_of(tensor: Any) -> npt.NDArray[Any]:
    """The array that shares a tensor's memory."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        raise BadInput(f"out must be an array, not {type(tensor).__name__}")
    if tensor.is_cuda or tensor.is_sparse:
        raise BadInput("out must be a dense tensor in the processor's memory")
    memory: npt.NDArray[Any] = tensor.detach().numpy()
    return memory


def _is_sparse(x: Any) -> bool:
    scipy_sparse, torch = sys.modules.get("scipy.sparse"), sys.modules.get("torch")
    return (
        isinstance(x, SparseVector)
        or (scipy_sparse is not None and scipy_sparse.issparse(x))
        or (torch is not None and isinstance(x, torch.Tensor) and x.layout != torch.strided)
    )


def open_factors(a: Any, b: Any) -> DenseFactors | SparseFactors:
    """Convert and check both factors."""
    a, b = (as_numpy(x, name) if isinstance(x, (list, tuple)) else x for name, x in (("a", a), ("b", b)))
    if _is_sparse(a) or _is_sparse(b):
        return _sparse(a, b)
    opened = []
    for name, x in (("a", a), ("b", b)):
        vector, back = open_vector(x)
        if isinstance(vector, SparseVector):
            raise BadInput(f"{name} is not an array")
        opened.append((_rows(vector, name), back))
    (left, back), (right, _) = opened
    _check(left.dtype, right.dtype, left.shape[0], right.shape[0])
    return DenseFactors(left, right, back)


def _check(left: Any, right: Any, left_rows: int, right_rows: int) -> None:
    for dtype in (left, right):
        if np.dtype(dtype).name not in _TYPES or not np.dtype(dtype).isnative:
            raise BadInput(f"factors must have type {', '.join(_TYPES)}, not {dtype}: use .astype(...)")
    if left != right:
        raise BadInput(f"a has type {left} and b {right}: make them one type")
    if left_rows != right_rows:
        raise BadInput(f"a has {left_rows} rows and b {right_rows}: a pair has one of each")


def _rows(array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Contiguous rows in the machine's byte order; a vector is one row."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.ndim not in (1, 2):
        raise BadInput(f"{name} must be of shape (r, n), or (n,) for one pair, not {array.shape}")
    rows = array.reshape(1, -1) if array.ndim == 1 else array
    flags = rows.flags
    return rows if flags.c_contiguous and flags.aligned else np.require(rows, requirements=["C", "A"])


def _sparse(a: Any, b: Any) -> SparseFactors:
    left, right = _entries(a, "a"), _entries(b, "b")
    _check(left[1].dtype, right[1].dtype, left[2], right[2])
    kind = a if _is_sparse(a) else b
    return SparseFactors(left[:2], right[:2], left[2], left[3], right[3], kind)


def _entries(x: Any, name: str) -> tuple[npt.NDArray[np.uint64], npt.NDArray[Any], int, int]:
    """Ascending flat indices, values, rows and columns."""
    if isinstance(x, SparseVector):
        if x.width != 1:
            raise BadInput(f"{name} has rows of {x.width} numbers an index: a factor has one")
        return np.ascontiguousarray(x.indices, np.uint64), np.ascontiguousarray(x.values), 1, x.n
    scipy_sparse = sys.modules.get("scipy.sparse")
    if scipy_sparse is not None and scipy_sparse.issparse(x):
        if x.ndim not in (1, 2):
            raise BadInput(f"{name} must be of shape (r, n), not {x.shape}")
        if x.dtype.name not in _TYPES:
            raise BadInput(f"factors must have type {', '.join(_TYPES)}, not {x.dtype}: use .astype(...)")
        csr = x.reshape((1, x.shape[0])).tocsr() if x.ndim == 1 else x.tocsr()
        if not csr.has_canonical_format:
            csr = csr.copy()
            csr.sum_duplicates()
        rows, width = csr.shape
        at = np.repeat(np.arange(rows, dtype=np.uint64), np.diff(csr.indptr))
        return at * np.uint64(width) + csr.indices.astype(np.uint64), csr.data, rows, width
    if _is_sparse(x):  # a tensor
        coo = x if x.is_sparse else x.to_sparse_coo()
        tensor = (coo.unsqueeze(0) if coo.ndim == 1 else coo).detach().cpu().coalesce()
        if tensor.ndim != 2 or tensor.dense_dim():
            raise BadInput(f"{name} must be a sparse tensor of shape (r, n), not {tuple(x.shape)}")
        rows, width = tensor.shape
        positions = tensor.indices().numpy().astype(np.uint64)
        return positions[0] * np.uint64(width) + positions[1], tensor.values().numpy(), rows, width
    vector, _ = open_vector(x)
    assert isinstance(vector, np.ndarray)
    array = _rows(vector, name)
    return np.arange(array.size, dtype=np.uint64), array.reshape(-1), *array.shape
