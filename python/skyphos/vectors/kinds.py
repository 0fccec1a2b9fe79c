"""Kinds of vector that collectives take, with the conversion back to the caller's kind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..errors import BadInput
from ..inputs.arrays import as_numpy, is_masked, plain_array, supported
from .low_rank import LowRank
from .scipy_kinds import open_scipy
from .sparse_vector import SparseVector

__all__ = ["AnyVector", "is_number", "is_vector", "open_vector"]

if TYPE_CHECKING:
    from scipy.sparse import sparray, spmatrix
    from torch import Tensor

#: A kind of vector that collectives return for the same kind of argument.
AnyVector = TypeVar("AnyVector", bound="SparseVector | np.ndarray[Any, Any] | sparray | spmatrix | Tensor")

#: Python types of numbers and of lists of them, which :mod:`skyphos.collectives.python_numbers` reduces.
_NUMBERS = frozenset([int, float, complex, bool, list, tuple])


#: Attributes by which objects give access to an array.
_ARRAY_PROTOCOLS = ("__array_interface__", "__dlpack__", "__array__")


def _unchanged(vector: Any) -> Any:
    return vector


def is_number(x: Any) -> bool:
    """True for a number of Python or NumPy, and for a list or tuple, which may contain numbers."""
    return type(x) in _NUMBERS or isinstance(x, np.generic)


def is_vector(x: Any) -> bool:
    """True if ``x`` is sent as an array or vector; bytes, tables, arrays of text and others are sent as objects."""
    if isinstance(x, np.ndarray):
        return supported(x.dtype) or is_masked(x)
    if isinstance(x, (np.generic, type, bytes, bytearray, LowRank)) or hasattr(x, "__dataframe__"):
        return False
    if isinstance(x, SparseVector) or any(hasattr(x, way) for way in _ARRAY_PROTOCOLS):
        return True
    scipy_sparse = sys.modules.get("scipy.sparse")
    if scipy_sparse is not None and scipy_sparse.issparse(x):
        return True
    try:
        memoryview(x)
    except TypeError:
        return False
    return True


def open_vector(x: Any, *, rows: bool = False) -> tuple[SparseVector | np.ndarray[Any, Any], Callable[[Any], Any]]:
    """The sparse vector or dense array of an argument, and the conversion of a result to the caller's kind.

    SparseVector, NumPy, SciPy and torch are recognised; the last two are not imported here, because an object of theirs
    exists only if they have been. Other objects that give access to an array (``__array_interface__``, DLPack,
    ``__array__``, the buffer protocol) are used without a copy, and the result is a NumPy array. A sparse matrix is the
    vector of its entries in C order; with ``rows`` the vector of its rows.
    """
    if isinstance(x, SparseVector):
        return x, _unchanged
    if isinstance(x, np.ndarray):
        array = plain_array(x, "the array")
        return array, _as_matrix if isinstance(x, np.matrix) else _unchanged
    scipy_sparse, torch = sys.modules.get("scipy.sparse"), sys.modules.get("torch")
    if scipy_sparse is not None and scipy_sparse.issparse(x):
        return open_scipy(x, rows=rows)
    if torch is not None and isinstance(x, torch.Tensor):
        from .torch_kinds import open_tensor

        return open_tensor(x)
    if isinstance(x, LowRank):
        raise BadInput("a LowRank is not a vector: pass .to_dense(), or reduce with comm.outer_product_sum")
    shown = _array_in(x)
    if shown is not None:
        return shown, _unchanged
    raise BadInput(
        "a collective takes a SparseVector, a SciPy sparse array, a torch tensor, numbers or an object that gives "
        f"access to an array, not {type(x).__name__}{_instead(x)}"
    )


def _as_matrix(result: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The result as a ``numpy.matrix``, whose ``*`` is the matrix product, if it has two dimensions."""
    return result.view(np.matrix) if result.ndim == 2 else result


def _instead(x: Any) -> str:
    if is_number(x):
        return ": pass np.asarray(x)" if isinstance(x, (list, tuple)) else ": pass [x] for one number"
    if isinstance(x, dict):
        return ": comm.allgather and comm.broadcast take any object, comm.shuffle keys and values"
    if isinstance(x, (set, frozenset)):
        return ": comm.allgather takes any object; np.array(sorted(x)) is an array"
    if hasattr(x, "__next__") or isinstance(x, range):
        return ": pass np.array(list(x))"
    if x is None:
        return ": every rank passes something, if only zeros of the others' shape"
    return ": comm.allgather, comm.gather and comm.broadcast take any object"


def _array_in(x: Any) -> np.ndarray[Any, Any] | None:
    """The array to which an object gives access, without a copy; None if it has none."""
    if isinstance(x, (np.generic, type)):
        return None
    if hasattr(x, "__array_interface__") or (hasattr(x, "null_count") and hasattr(x, "__array__")):  # Arrow's
        return as_numpy(x, "the array")
    if hasattr(x, "__dlpack__"):
        try:
            return np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            if not hasattr(x, "__array__"):
                raise BadInput(f"DLPack does not give {type(x).__name__} in the processor's memory: {error}") from None
    if hasattr(x, "__array__"):
        return as_numpy(x, "the array")
    try:
        return np.asarray(memoryview(x))
    except TypeError:
        return None
