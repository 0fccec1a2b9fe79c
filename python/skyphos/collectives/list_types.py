"""Dtypes of lists: ranks agree on one if NumPy gives their lists different ones.

NumPy converts ``[1]`` to int64, ``[2**63]`` to uint64 and ``[]`` to float64. A call whose ranks differ only in that
ends with :class:`Mismatch` on all of them. Then ranks exchange the dtypes that their lists can have, and repeat the
call with the first dtype that holds all numbers exactly: that of the arrays, if some ranks pass arrays; else int64,
uint64 or float64.

Cost: nothing if dtypes agree; else the failed call, one exchange of a number, and the call again.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import BadInput, Mismatch, mark_raised_by_all
from ..vectors.dtype_names import type_named
from .agreement import gather_numbers, together

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["retyped"]

Array = npt.NDArray[Any]

_TYPES = ("bool", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64")
#: Types that a list may take, in order of preference.
_OF_LISTS = ("int64", "uint64", "float64")
# A rank's report to the others, in one number: a type, whether it is that of an array, whether there are no values,
# the types that the list may take, and the width.
_IS_ARRAY, _IS_EMPTY, _MAY_BE, _WIDTH = 1 << 4, 1 << 5, 1 << 6, 1 << 9


def retyped(comm: Comm, error: Mismatch, array: Array, *, is_list: bool) -> Array:
    """After a failed call, this rank's values in a type that holds the lists of all ranks. Collective.

    Parameters
    ----------
    comm : Comm
    error : Mismatch
        The error of the call.
    array : array of shape (rows,) or (rows, width)
        This rank's values, before they were sent.
    is_list : bool
        Whether the caller passed a list or tuple.

    Raises
    ------
    Mismatch
        ``error`` with advice, if ranks differ in more than types, or no type holds the numbers of all ranks.
    """
    if not _differ_only_in_type(str(error)):
        raise error
    kind, width = _agreed(gather_numbers(comm, _encoded(array, is_list)))
    if kind is None:
        raise _with_advice(error, array) if is_list else error
    return together(comm, lambda: _as(array, kind, width) if is_list else array)


def _differ_only_in_type(message: str) -> bool:
    """True if two ranks are in calls that differ only in dtype and width."""
    calls = re.fullmatch(r"ranks disagree: rank \d+ is in (.*), rank \d+ is in (.*)", message)
    if calls is None:
        return False
    left, right = (re.sub(r"(, )?\b(dtype|width)=\w+", "", call) for call in calls.groups())
    return left == right


def _encoded(array: Array, is_list: bool) -> int:
    """This rank's possible types, as a number for the others."""
    encoded = _TYPES.index(array.dtype.name)
    if not is_list:
        encoded |= _IS_ARRAY
    elif array.size == 0:
        encoded |= _IS_EMPTY
    else:
        encoded |= sum(_MAY_BE << bit for bit, kind in enumerate(_OF_LISTS) if _fits(array, np.dtype(kind)))
    return encoded + _WIDTH * (array.shape[1] if array.ndim == 2 else 1)


def _agreed(encoded: npt.NDArray[np.int64]) -> tuple[np.dtype[Any] | None, int]:
    """The type and width for all ranks; None if no type holds all numbers."""
    filled = encoded[(encoded & _IS_EMPTY) == 0]
    widths, types = np.unique(filled // _WIDTH), np.unique(filled % _IS_ARRAY)
    if len(widths) != 1:
        return None, 1
    of_arrays = np.unique(filled[(filled & _IS_ARRAY) != 0] % _IS_ARRAY)
    for some in (types, of_arrays):
        if len(some) == 1:
            return type_named(_TYPES[some[0]]), int(widths[0])
    has_floats = _TYPES.index("float64") in types
    for bit, name in enumerate(_OF_LISTS):
        if (filled & _MAY_BE << bit).all() and (name != "float64" or has_floats):
            return np.dtype(name), int(widths[0])
    return None, 1


def _fits(array: Array, kind: np.dtype[Any]) -> bool:
    """True if a type holds the numbers of a list exactly."""
    if array.dtype == kind or array.size == 0:
        return True
    if array.dtype.kind == "b" or kind.kind == "b":
        return False
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        is_whole = array.dtype.kind in "iu"
        return is_whole and int(limits.min) <= int(array.min()) and int(array.max()) <= int(limits.max)
    with np.errstate(all="ignore"):
        returned = array.astype(kind).astype(np.float64).reshape(-1).tolist()
    # Python compares integers with floats exactly.
    pairs = zip(array.reshape(-1).tolist(), returned, strict=True)
    return all(one == other or math.isnan(one) for one, other in pairs)


def _as(array: Array, kind: np.dtype[Any], width: int) -> Array:
    """A list's values in the agreed type."""
    if not _fits(array, kind):
        raise BadInput(f"a list of {array.dtype} where other ranks pass {kind}: pass np.array(values, dtype)")
    return array.astype(kind).reshape((0, width) if array.size == 0 and width > 1 else array.shape)


def _with_advice(error: Mismatch, array: Array) -> Mismatch:
    """The error, with advice for a list whose type NumPy chose."""
    what, fix = "a list", "np.array(values, dtype)"
    if array.size == 0:
        what, fix = "an empty list", "np.empty(0, dtype), or np.empty((0, width), dtype),"
    text = f"{error}; {what} was taken for {array.dtype}: pass {fix} with the dtype of the other ranks"
    return mark_raised_by_all(Mismatch(text))
