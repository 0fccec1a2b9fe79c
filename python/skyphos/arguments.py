"""From what users pass to what the native library takes: contiguous arrays, checked, copied only if they must be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import BadInput

__all__ = [
    "NAMED_UFUNCS",
    "as_array",
    "as_degrees",
    "as_expected",
    "as_indices",
    "as_name",
    "as_out",
    "as_same",
    "as_values",
    "as_whole",
    "identity_of",
    "resolve_op",
]

_INDEX_TYPES = frozenset("iIlLqQ")
#: bfloat16 is the type of the package ml_dtypes: who has such an array has that package.
_VALUE_TYPES = frozenset(["bfloat16", "float16", "float32", "float64", "int32", "int64", "uint8", "uint32", "uint64"])

#: The operations that have names.
NAMES = ("sum", "prod", "min", "max", "or", "and", "mean", "mean_present")

#: Ufuncs that the native library has itself.
NAMED_UFUNCS: dict[Any, str] = {
    np.add: "sum",
    np.multiply: "prod",
    np.minimum: "min",
    np.maximum: "max",
    np.bitwise_or: "or",
    np.bitwise_and: "and",
}

Op = str | Callable[..., Any]


def _plain(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array if its memory can be used as it is, else a copy."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.require(array, requirements=["C", "A"])


def as_indices(indices: npt.ArrayLike, what: str) -> npt.NDArray[Any]:
    """A 1-D contiguous array of int32, int64, uint32 or uint64; other integers become int64."""
    array = np.asarray(indices)
    if array.ndim != 1:
        raise BadInput(f"{what} must be a 1-D array of indices, not of shape {array.shape}")
    if array.size == 0 and array.dtype.kind == "f":  # an empty list
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        raise BadInput(f"{what} must hold integers, not {array.dtype}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.char not in _INDEX_TYPES:
        array = array.astype(np.int64)
    return _plain(array)


def as_name(name: str, what: str) -> str:
    """The name of a way to do something: which there are the native library knows."""
    if not isinstance(name, str):
        raise BadInput(f"{what} must be a name in text, not {name!r}")
    return name


def as_one_of(name: str, known: Sequence[str], what: str) -> None:
    """Refuse what is none of the names of a way to do something."""
    if name not in known:
        raise BadInput(f"{what}={name!r}: one of {', '.join(known)}")


def as_whole(value: Any, what: str, least: int, most: int) -> int:
    """A whole number within bounds."""
    try:
        number = index(value)
    except TypeError:
        raise BadInput(f"{what} must be a whole number, not {value!r}") from None
    if not least <= number <= most:
        raise BadInput(f"{what} must be from {least} to {most}, not {number}")
    return number


def as_values(values: npt.ArrayLike, rows: int, width: int, what: str) -> npt.NDArray[Any]:
    """A contiguous array of ``rows`` values, or of ``rows`` rows of ``width``, of a type that can be reduced."""
    array = np.asarray(values)
    if array.dtype == np.bool_:
        array = array.view(np.uint8)
    if array.dtype.name not in _VALUE_TYPES or not array.dtype.isnative:
        known = ", ".join(sorted(_VALUE_TYPES))
        raise BadInput(f"values must be of one of the types {known}; these are {array.dtype}: use .astype(...)")
    if array.shape != (rows, width) and not (width == 1 and array.shape == (rows,)):
        expected = f"({rows},)" if width == 1 else f"({rows}, {width})"
        raise BadInput(f"values have shape {array.shape}, but {what} has shape {expected}: one row an index")
    return _plain(array)


def as_array(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A contiguous array of any shape, of a type that can be reduced."""
    return as_values(array.reshape(-1), array.size, 1, "the array").reshape(array.shape)


def as_same(out: npt.NDArray[Any], array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``out``, if it can take the result of an array of the same shape."""
    if not isinstance(out, np.ndarray) or out.shape != array.shape:
        found = f"an array of shape {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise BadInput(f"out must be an array of shape {array.shape}, not {found}")
    return as_out(out.reshape(-1), array.size, array.reshape(-1), 1).reshape(array.shape)


def as_out(
    out: npt.NDArray[Any] | None, rows: int, values: npt.NDArray[Any], width: int, *others: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """The array for the result: ``out`` if it fits, a new one if it is None."""
    shape = (rows,) if values.ndim == 1 else (rows, width)
    if out is None:
        return np.empty(shape, values.dtype)
    if not isinstance(out, np.ndarray) or out.dtype != values.dtype or out.shape != shape:
        found = f"{out.dtype} of shape {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise BadInput(f"out must be a {values.dtype} array of shape {shape}, not {found}")
    if not (out.flags.c_contiguous and out.flags.aligned and out.flags.writeable):
        raise BadInput("out must be a writable, aligned, C-contiguous array")
    if any(np.may_share_memory(out, other) for other in (values, *others)):
        raise BadInput("out must not share memory with values or indices")
    return out


def resolve_op(op: Op) -> tuple[Any, Any]:
    """The operation for the native library, and its identity if it is not one of the named.

    Parameters
    ----------
    op : str or numpy.ufunc
        A name (``sum``, ``prod``, ``min``, ``max``, ``or``, ``and``, ``mean``, ``mean_present``), or a binary
        ufunc that is associative, commutative and has an identity (``numpy.logaddexp``, ``numpy.gcd`` …).
    """
    if isinstance(op, str):
        if op not in NAMES:
            raise BadInput(f"unknown operation {op!r}: use one of {', '.join(NAMES)}, or a ufunc with an identity")
        return op, None
    if not isinstance(op, np.ufunc) or op.nin != 2 or op.nout != 1:
        raise BadInput(f"op must be a name or a binary NumPy ufunc, not {op!r}")
    if op in NAMED_UFUNCS:
        return NAMED_UFUNCS[op], None
    if op.identity is None:
        raise BadInput(f"op={op.__name__} has no identity: there would be no value for an absent index")
    return op, np.asarray(op.identity)


def identity_of(op: Op, dtype: np.dtype[Any]) -> Any:
    """What an absent index counts as."""
    name = op if isinstance(op, str) else NAMED_UFUNCS.get(op)
    least, most = -np.inf, np.inf  # of floats: also of bfloat16, which is of a kind of its own
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        least, most = limits.min, limits.max
    known = {"prod": 1, "min": most, "max": least, "and": np.array(-1).astype(dtype)}
    if name is None:
        return getattr(op, "identity", 0)
    return known.get(name, 0)


def as_degrees(degrees: Sequence[int] | None) -> list[int] | None:
    """Layers of a butterfly; the native library knows their product."""
    if degrees is None:
        return None
    try:
        layers = [index(d) for d in degrees]
    except TypeError:
        raise BadInput(f"degrees must be a list of whole numbers, not {degrees!r}") from None
    if not all(0 < d < 2**32 for d in layers):
        raise BadInput(f"degrees must be positive, not {layers}")
    return layers


def as_expected(entries: int | None) -> int | None:
    """A hint of how many entries there will be."""
    if entries is None:
        return None
    try:
        number = index(entries)
    except TypeError:
        raise BadInput(f"expected_nnz must be a whole number of entries, not {entries!r}") from None
    if not 0 <= number < 2**63:
        raise BadInput(f"expected_nnz must be a number of entries, not {entries}")
    return number
