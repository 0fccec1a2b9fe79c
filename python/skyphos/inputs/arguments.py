"""Arguments for the native library: contiguous arrays, checked, and copied only where necessary."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _skyphos as native
from ..errors import BadInput
from .arrays import as_numpy, is_masked, plain_array, supported, unsupported
from .settings import whole

__all__ = [
    "NAMED_UFUNCS",
    "as_array",
    "as_degrees",
    "as_expected",
    "as_indices",
    "as_n",
    "as_name",
    "as_out",
    "as_rank",
    "as_values",
    "checked_op",
    "identity_of",
    "name_of_function",
    "resolve_op",
]

_INDEX_TYPES = frozenset("iIlLqQ")

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

#: Functions of Python, with the operations that correspond to them: errors suggest these names.
_BUILTINS: dict[Any, str] = {max: "max", min: "min", sum: "sum", any: "or", all: "and"}
_BUILTINS |= {operator.add: "sum", operator.mul: "prod", operator.or_: "or", operator.and_: "and"}


def _plain(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array if its memory can be used directly, else a copy."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.require(array, requirements=["C", "A"])


def as_indices(indices: npt.ArrayLike, argument: str) -> npt.NDArray[Any]:
    """A 1-D contiguous array of int32, int64, uint32 or uint64; other integers become int64."""
    array = indices if type(indices) is np.ndarray else as_numpy(indices, argument)
    if array.ndim != 1:
        fix = f": pass [{array}]" if array.ndim == 0 and array.dtype.kind in "iu" else ""
        raise BadInput(f"{argument} must be a 1-D array of indices, not of shape {array.shape}{fix}")
    if array.size == 0 and array.dtype.kind in "fO":  # an empty list
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        raise BadInput(f"{argument} must hold integers, not {array.dtype}{_to_integers(array)}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.char not in _INDEX_TYPES:
        array = array.astype(np.int64)
    return _plain(array)


def _to_integers(array: npt.NDArray[Any]) -> str:
    """Advice on how to convert an array of another type to indices."""
    if array.dtype == np.bool_:
        return ": np.flatnonzero(mask) has the indices of a mask"
    if array.dtype.kind == "f":
        return ": use .astype(np.int64) where they are whole and below 2^53"
    if array.dtype.kind == "O":
        kinds = sorted({type(one).__name__ for one in array[:1000]})
        if kinds == ["int"]:
            return ": indices fit 64 bits, below 2^63; np.unique(ids, return_inverse=True) numbers larger ids"
        return f" ({', '.join(kinds)})"
    return ""


def as_name(name: str, argument: str) -> str:
    """The name of an algorithm or mode; the native library checks that it exists."""
    if not isinstance(name, str):
        raise BadInput(f"{argument} must be a name in text, not {name!r}")
    return name


def as_one_of(name: str, known: Sequence[str], argument: str) -> None:
    """Refuse unknown names."""
    if name not in known:
        raise BadInput(f"{argument}={name!r}: one of {', '.join(known)}")


def as_n(n: Any) -> int:
    """The size of an index space."""
    return whole(n, "n", 0, 2**63)


def as_rank(rank: Any, size: int, argument: str = "rank") -> int:
    """A rank of a group."""
    number = whole(rank, argument, -(2**63), 2**63)
    if not 0 <= number < size:
        problem = f"there is no rank {number}" if argument == "rank" else f"{argument}={number} is not a rank"
        raise BadInput(f"{problem} {'in' if argument == 'rank' else 'of'} a group of {size}: ranks are 0 to {size - 1}")
    return number


def as_values(values: npt.ArrayLike, rows: int, width: int, argument: str, *, fix: str = "") -> npt.NDArray[Any]:
    """A contiguous array of ``rows`` values, or of ``rows`` rows of ``width``, of a type that can be reduced, or bool.

    ``fix``: advice for an array of another width.
    """
    array = values if type(values) is np.ndarray else as_numpy(values, "values")
    if array.size == rows == 0 and array.ndim == 1:  # an empty list
        array = array.reshape((0, width) if width > 1 else 0)
    if not supported(array.dtype):
        raise unsupported(array, "values")
    if array.shape != (rows, width) and not (width == 1 and array.shape == (rows,)):
        expected = f"({rows},)" if width == 1 else f"({rows}, {width})"
        rest = "one row an index" if array.shape[:1] != (rows,) or not fix else fix.format(*array.shape[1:2] or (1,))
        raise BadInput(f"values have shape {array.shape}, but {argument} has shape {expected}: {rest}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return _plain(array)


def as_array(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A contiguous array of any shape, of a type that can be reduced, or bool."""
    return as_values(array.reshape(-1), array.size, 1, "the array").reshape(array.shape)


def as_out(
    out: npt.NDArray[Any] | None, shape: tuple[int, ...], dtype: np.dtype[Any], *others: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """The array for the result: ``out`` if it fits, a new one if it is None."""
    if out is None:
        return np.empty(shape, dtype)
    if type(out) is not np.ndarray and isinstance(out, np.ndarray):
        if is_masked(out):
            raise BadInput(
                "out must not be a masked array, because its mask would not describe the result: pass a plain array"
            )
        plain_array(out, "out")  # refuses classes with other arithmetic
    if not isinstance(out, np.ndarray) or out.dtype != dtype or out.shape != shape:
        found = f"{out.dtype} of shape {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise BadInput(f"out must be a {dtype} array of shape {shape}, not {found}")
    if not (out.flags.c_contiguous and out.flags.aligned and out.flags.writeable):
        raise BadInput("out must be a writable, aligned, C-contiguous array")
    if any(np.may_share_memory(out, other) for other in others):
        raise BadInput("out must not share memory with values or indices")
    return out


_NAMED: dict[str, native.Operation] = {}


def resolve_op(op: Op) -> native.Operation:
    """The operation for the native library, made once for each name. ``op`` is that of :func:`checked_op`."""
    known = _NAMED.get(op) if isinstance(op, str) else None
    if known is not None:
        return known
    made = native.Operation(*checked_op(op))
    if isinstance(op, str):
        _NAMED[op] = made
    return made


def checked_op(op: Op) -> tuple[Any, Any]:
    """The operation's name, or a ufunc that has none and its identity.

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
        name = name_of_function(op)
        raise BadInput(f"op must be a name or a binary NumPy ufunc, not {op!r}{f': say {name!r}' if name else ''}")
    if op in NAMED_UFUNCS:
        return NAMED_UFUNCS[op], None
    if op.identity is None:
        raise BadInput(f"op={op.__name__} has no identity: there would be no value for an absent index")
    return op, np.asarray(op.identity)


def name_of_function(op: Any) -> str | None:
    """The name of the operation of a Python function such as ``max`` or ``operator.add``, or of an mpi4py ``Op``."""
    try:
        known = _BUILTINS.get(op)
    except TypeError:  # not hashable
        return None
    if known is None and type(op).__module__.partition(".")[0] == "mpi4py":
        mpi = sys.modules["mpi4py.MPI"]
        names = {"SUM": "sum", "PROD": "prod", "MIN": "min", "MAX": "max"}
        names |= {"BOR": "or", "LOR": "or", "BAND": "and", "LAND": "and"}
        known = next((ours for theirs, ours in names.items() if op == getattr(mpi, theirs)), None)
    return known


def identity_of(op: Op, dtype: np.dtype[Any]) -> Any:
    """The value of an absent index."""
    name = op if isinstance(op, str) else NAMED_UFUNCS.get(op)
    minimum, maximum = -np.inf, np.inf  # for floats, including bfloat16, which is not a subtype of NumPy's
    if dtype == np.bool_:
        minimum, maximum = False, True
    elif dtype.kind in "iu":
        limits = np.iinfo(dtype)
        minimum, maximum = limits.min, limits.max
    known = {"prod": 1, "min": maximum, "max": minimum, "and": np.array(-1).astype(dtype)}
    if name is None:
        return getattr(op, "identity", 0)
    return known.get(name, 0)


def as_degrees(degrees: Sequence[int] | None) -> list[int] | None:
    """Degrees of a butterfly; the native library checks their product."""
    if degrees is None:
        return None
    try:
        given = list(degrees)
    except TypeError:
        raise BadInput(f"degrees must be a list of whole numbers, not {degrees!r}") from None
    return [whole(degree, "degrees must be positive: each", 1, 2**32 - 1) for degree in given]


def as_expected(entries: int | None) -> int | None:
    """A hint for the number of entries."""
    return None if entries is None else whole(entries, "expected_nnz", 0, 2**63 - 1)
