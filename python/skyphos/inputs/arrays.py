"""Array arguments: NumPy arrays, and objects that convert to one without changing a value.

Objects whose meaning a conversion by NumPy would lose are refused by name: masked arrays would lose their mask, Arrow's
nulls would become NaN, sets and generators would become one object.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadInput

__all__ = ["as_numpy", "is_masked", "plain_array", "refuse_masked", "require_floats", "supported", "unsupported"]

Array = npt.NDArray[Any]

#: bfloat16 is a type of the package ml_dtypes, which is installed where there are such arrays.
_VALUE_TYPES = frozenset(["bfloat16", "float16", "float32", "float64", "int32", "int64", "uint8", "uint32", "uint64"])

#: For types that cannot be reduced: a type that holds the same values.
_INSTEAD = {
    "int8": "int32",
    "int16": "int32",
    "uint16": "uint32",
    "complex64": "float32",
    "complex128": "float64",
    "longdouble": "float64",
    "float128": "float64",
    "float96": "float64",
}


def is_masked(x: Any) -> bool:
    """True for a masked array, and for ``numpy.ma.masked``."""
    # Masked arrays exist only if the module has been imported; another thread may be importing it now.
    kind = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    return kind is not None and isinstance(x, kind)


def refuse_masked(x: Any, argument: str) -> None:
    """Raise BadInput for a masked array, and for a list that contains one."""
    if type(x) in (list, tuple) and sys.modules.get("numpy.ma") is not None:
        kinds = set(map(type, x))
        if kinds & {list, tuple} or any(issubclass(kind, np.ndarray) for kind in kinds):
            for one in x:
                refuse_masked(one, argument)
    elif is_masked(x):
        raise BadInput(
            f"{argument} must not be a masked array: masked entries would count with the value under the mask. Give "
            "them a value (.filled(0)), or leave them out (.compressed(), a SparseVector)"
        )


def plain_array(array: Array, argument: str) -> Array:
    """An array of NumPy's own class with the same memory. Classes with other arithmetic are refused."""
    if type(array) is np.ndarray:
        return array
    refuse_masked(array, argument)
    if type(array).__array_ufunc__ is not np.ndarray.__array_ufunc__:  # units, for example
        name = type(array).__name__
        lost = f"{name}, whose meaning would be lost: np.asarray(x) drops it"
        raise BadInput(f"{argument} must be a plain array, not {lost}")
    return array.view(np.ndarray)


def as_numpy(x: Any, argument: str) -> Array:
    """Convert an array, a list, or an object with ``__array__`` to an array, without a copy if possible.

    Raises
    ------
    BadInput
        For masked arrays, nulls, ragged lists, and objects that are no arrays; the text says what to pass instead.

    Examples
    --------
    >>> from skyphos.inputs.arrays import as_numpy
    >>> as_numpy([1.5, 2.0], "values")
    array([1.5, 2. ])
    >>> as_numpy({1, 2}, "values")
    Traceback (most recent call last):
    ...
    skyphos.errors.BadInput: values must be an array or a list, not set: pass sorted(x)
    """
    if isinstance(x, np.ndarray):
        return plain_array(x, argument)
    if not isinstance(x, (list, tuple)):
        _refuse_others(x, argument)
    refuse_masked(x, argument)
    try:
        return plain_array(np.asanyarray(x), argument)  # a masked array from __array__ keeps its mask
    except BadInput:
        raise
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise BadInput(f"{argument} cannot become an array: {error}") from None
        raise BadInput(f"{argument} must have rows of one length, not ragged ones: {error}") from None
    except Exception as error:  # any error of an __array__
        raise BadInput(f"{argument} of {type(x).__name__} cannot become an array: {error}") from None


def _refuse_others(x: Any, argument: str) -> None:
    """Raise BadInput for objects that NumPy would convert to one object or to other values."""
    nulls = getattr(x, "null_count", 0)
    nulls = nulls() if callable(nulls) else nulls
    if isinstance(nulls, int) and nulls:
        raise BadInput(f"{argument} must not hold nulls, and {nulls} of {type(x).__name__} are: fill or drop them")
    name = type(x).__name__
    scipy_sparse, torch = sys.modules.get("scipy.sparse"), sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return
    if scipy_sparse is not None and scipy_sparse.issparse(x):
        instead = "pass .toarray(), or a collective for sparse vectors"
        raise BadInput(f"{argument} must be a dense array, not {name}: {instead}")
    if hasattr(x, "_present") and hasattr(x, "to_dense"):  # a SparseVector
        raise BadInput(f"{argument} must be an array, not {name}: pass .values along .indices, or .to_dense()")
    if isinstance(x, (set, frozenset)):
        raise BadInput(f"{argument} must be an array or a list, not {name}: pass sorted(x)")
    if isinstance(x, dict):
        instead = "pass list(x) for its keys, or list(x.values())"
        raise BadInput(f"{argument} must be an array or a list, not {name}: {instead}")
    if hasattr(x, "__next__") or (hasattr(x, "__iter__") and not hasattr(x, "__len__") and not _shows_array(x)):
        raise BadInput(f"{argument} must be an array or a list, not {name}: pass list(x)")


def _shows_array(x: Any) -> bool:
    return hasattr(x, "__array__") or hasattr(x, "__array_interface__")


@lru_cache(maxsize=64)  # NumPy takes longer to make a type's name than a small collective takes
def supported(dtype: np.dtype[Any]) -> bool:
    """True if the native library has values of a type, in either byte order; also for bool."""
    return dtype.name in _VALUE_TYPES or dtype.kind == "b"


def require_floats(dtype: np.dtype[Any], function: str) -> None:
    """Refuse types other than the floating-point types of the native library.

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos.inputs.arrays import require_floats
    >>> require_floats(np.dtype(np.int64), "TopK")
    Traceback (most recent call last):
    ...
    skyphos.errors.BadInput: TopK takes float16, bfloat16, float32 or float64, not int64: use .astype(np.float32)
    """
    if dtype.name not in ("float16", "bfloat16", "float32", "float64"):
        raise BadInput(f"{function} takes float16, bfloat16, float32 or float64, not {dtype}: use .astype(np.float32)")


def unsupported(array: Array, argument: str, kind: str = "array") -> BadInput:
    """The error for values of a type that cannot be reduced, with the types that can, and a conversion.

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos.inputs.arrays import unsupported
    >>> str(unsupported(np.zeros(2, np.int8), "values")).partition("; ")[2]
    'these are int8: use .astype(np.int32)'
    """
    known = ", ".join(sorted(_VALUE_TYPES))
    dtype = array.dtype
    found = str(dtype)
    instead = _INSTEAD.get(dtype.name)
    convert = f".to(torch.{instead})" if kind == "tensor" else f".astype(np.{instead})"
    if dtype.kind == "c":
        fix = f"use .view(np.{instead}), which has real and imaginary parts one after the other"
    elif instead is not None:
        fix = f"use {convert}"
    elif dtype.kind in "mM":
        fix = "use .view(np.int64)"
    elif dtype.kind == "V" and dtype.names:
        fix = "pass one field at a time"
    elif dtype.kind == "O":
        kinds = sorted({type(one).__name__ for one in array.reshape(-1)[:1000]})
        found = f"objects ({', '.join(kinds)})"
        fix = "use .astype(np.float64) where they are numbers"
        if kinds == ["int"]:
            fits = all(-(2**63) <= one < 2**63 for one in array.reshape(-1).tolist())
            fix = "use .astype(np.int64)" if fits else "integers must fit 64 bits"
    elif dtype.kind in "SUT":
        fix = "text is not a number: comm.shuffle takes it as keys, comm.allgather and comm.broadcast as an object"
    else:
        fix = "use .astype(np.float32)"
    return BadInput(f"{argument} must be of one of the types {known} or bool; these are {found}: {fix}")
