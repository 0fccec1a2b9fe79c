"""Keys: conversion from what callers pass to the native table, and back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .. import _skyphos as native
from ..errors import BadInput
from ..inputs.arrays import as_numpy

__all__ = [
    "FORMS",
    "KeyArrays",
    "Keys",
    "arrays_of",
    "as_list",
    "joined",
    "listed",
    "open_hashable",
    "open_keys",
    "select",
]

#: Keys of the native table: numbers in 64 bits; or offsets of strings, and their bytes.
KeyArrays = npt.NDArray[np.uint64] | tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

#: Forms of keys, by the number that ranks exchange.
FORMS = (*_INTEGERS, "str", "bytes")


@dataclass(frozen=True)
class Keys:
    """Keys of a batch.

    Attributes
    ----------
    form : str
        ``str``, ``bytes``, or the integers' dtype.
    arrays
        The keys as the native table takes them.
    count : int
        Number of keys.
    back : callable
        Converts native arrays to the caller's kind: NumPy, Arrow or a list.
    signs : {"any", "signed", "unsigned"} or None
        For a list of integers, which has no type: whether int64, uint64 or both can hold it. None for other keys.
    """

    form: str
    arrays: KeyArrays
    count: int
    back: Callable[[Any], Any]
    signs: Literal["any", "signed", "unsigned"] | None = None

    def __len__(self) -> int:
        return self.count

    def tolist(self) -> list[Any]:
        """The keys as Python objects."""
        return listed(self.back(self.arrays))


def open_keys(keys: Any) -> Keys:
    """The keys of a NumPy or Arrow array or a list, of integers, ``str`` or ``bytes``, or from :func:`words`.

    Examples
    --------
    >>> from skyphos.shuffle.keys import open_keys
    >>> keys = open_keys(["b", "a"])
    >>> keys.form, keys.count, keys.back(keys.arrays)
    ('str', 2, ['b', 'a'])
    """
    if isinstance(keys, Keys):
        return keys
    arrow = sys.modules.get("pyarrow")
    if arrow is not None and isinstance(keys, (arrow.Array, arrow.ChunkedArray)):
        return _of_arrow(arrow, keys)
    is_list = isinstance(keys, (list, tuple))
    if is_list and keys and isinstance(keys[0], (str, bytes)):
        return _of_listed_strings(list(keys))
    if is_list and keys and all(isinstance(key, (int, np.integer)) for key in keys):
        return _of_listed_integers(keys)
    if isinstance(keys, (str, bytes)):
        raise BadInput(f"keys must be a list, not one {type(keys).__name__}: pass [key]")
    array = as_numpy(keys, "keys")
    if array.ndim != 1:
        fix = "[key] is a list of one" if array.ndim == 0 else "rows as keys: [repr(row) for row in keys], or bytes"
        raise BadInput(f"keys must be in one dimension, not of shape {array.shape}: {fix}")
    if array.size == 0 and array.dtype.kind not in "iuSUT":  # an empty list
        array = array.astype(np.int64)
    opened = _of_array(array, is_list)
    if opened is None:
        raise BadInput(f"keys must be integers, str or bytes, not {_kinds(keys, array)}{_advice(array)}")
    return opened


def _of_array(array: npt.NDArray[Any], is_list: bool) -> Keys | None:
    """The keys of an array; None if its type is not one of keys."""
    if array.dtype.kind in "iu":
        return _of_integers(array, is_list)
    if array.dtype.kind in "SU" and not is_list:
        return _of_text(array)
    if array.dtype.kind in "OT" and all(isinstance(key, (str, bytes)) for key in array):
        return _of_listed_strings(array.tolist())
    if array.dtype == object and all(isinstance(key, (int, np.integer)) for key in array):
        return _of_listed_integers(array.tolist())
    return None


def _kinds(keys: Any, array: npt.NDArray[Any]) -> str:
    if array.dtype != object and array.dtype.kind not in "SU":
        return str(array.dtype)
    return " and ".join(sorted({type(key).__name__ for key in keys}))


def _advice(array: npt.NDArray[Any]) -> str:
    """Advice on how to convert values to keys."""
    fixes = {"f": ".astype(np.int64) where they are whole", "b": ".astype(np.uint8)", "m": ".view(np.int64)"}
    fixes |= {"M": ".view(np.int64)", "O": "[repr(key) for key in keys]", "S": "[str(key) for key in keys]"}
    fixes["U"] = fixes["S"]
    fix = fixes.get(array.dtype.kind)
    return f": pass {fix}" if fix else ""


def _of_listed_integers(keys: Any) -> Keys:
    """Keys of a list of integers: int64, or uint64 if one exceeds that."""
    least, most = int(min(keys)), int(max(keys))
    if least < -(2**63) or most >= 2**64 or (least < 0 and most >= 2**63):
        wrong = least if least < -(2**63) or most < 2**64 else most
        raise BadInput(
            f"keys must be integers, str or bytes, and integers must all fit int64, or all uint64: {wrong} does not go "
            "with the others: pass [str(key) for key in keys]"
        )
    opened = _of_integers(np.array(keys, np.uint64 if most >= 2**63 else np.int64), True)
    signs: Literal["any", "signed", "unsigned"] = "unsigned" if most >= 2**63 else "signed" if least < 0 else "any"
    return replace(opened, signs=signs)


def _of_integers(array: npt.NDArray[Any], is_list: bool) -> Keys:
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    dtype = array.dtype
    wide = np.ascontiguousarray(array, np.uint64 if dtype.kind == "u" else np.int64).view(np.uint64)

    def back(numbers: npt.NDArray[np.uint64]) -> Any:
        own = numbers.view(np.int64 if dtype.kind == "i" else np.uint64).astype(dtype, copy=False)
        return own.tolist() if is_list else own

    return Keys(dtype.name, wide, len(array), back)


def _of_listed_strings(strings: list[Any]) -> Keys:
    kind = str if isinstance(strings[0], str) else bytes
    if not all(type(key) is kind for key in strings):
        if not all(isinstance(key, kind) for key in strings):
            mixed = " and ".join(sorted({type(key).__name__ for key in strings}))
            raise BadInput(f"keys must be all str or all bytes, not {mixed}")
        strings = [_exactly(kind, key) for key in strings]
    try:
        arrays = native.strings_of(strings)
    except UnicodeEncodeError as error:
        raise BadInput(f"a key is not text that can be sent: {error}") from None
    return Keys(kind.__name__, arrays, len(strings), lambda native_keys: as_list(native_keys, kind is str))


def _exactly(kind: type, key: Any) -> Any:
    """A key of a subclass of ``str`` or ``bytes``, such as NumPy's, as one of those."""
    return str.__str__(key) if kind is str else bytes.__getitem__(key, slice(None))


def as_list(arrays: Any, text: bool) -> list[Any]:
    """Native strings as a list of ``str`` or ``bytes``."""
    offsets, letters = arrays
    return native.list_of(offsets, letters, text)


def _of_text(array: npt.NDArray[Any]) -> Keys:
    """Keys of a NumPy array of strings of fixed width."""
    text = array.dtype.kind == "U"
    arrays = native.strings_of(array.tolist())

    def back(native_keys: Any) -> Any:
        strings = as_list(native_keys, text)
        return np.array(strings, "U" if text else "S") if strings else np.empty(0, array.dtype)

    return Keys("str" if text else "bytes", arrays, len(array), back)


def _of_arrow(arrow: Any, keys: Any) -> Keys:
    chunked = isinstance(keys, arrow.ChunkedArray)
    kind, types = keys.type, arrow.types
    if keys.null_count:
        raise BadInput(f"keys must not be null, and {keys.null_count} are")
    if types.is_dictionary(kind):
        keys, kind = keys.cast(kind.value_type), kind.value_type
    if types.is_integer(kind):
        opened = _of_integers(keys.to_numpy() if chunked else keys.to_numpy(zero_copy_only=False), is_list=False)
        return Keys(opened.form, opened.arrays, opened.count, lambda native_keys: arrow.array(opened.back(native_keys)))
    text = types.is_string(kind) or types.is_large_string(kind)
    if not text and not types.is_binary(kind) and not types.is_large_binary(kind):
        raise BadInput(f"keys must be integers, strings or binary, not {kind}")
    wide = keys.cast(arrow.large_string() if text else arrow.large_binary())
    if chunked:
        wide = wide.combine_chunks()
        wide = arrow.concat_arrays(wide.chunks) if isinstance(wide, arrow.ChunkedArray) else wide
    _, offsets, data = wide.buffers()
    ends = np.zeros(1, np.int64)
    if len(wide):
        ends = np.frombuffer(offsets, np.int64)[wide.offset : wide.offset + len(wide) + 1]
    letters_of_all = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)

    def back(native_keys: tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]) -> Any:
        starts, letters = native_keys
        large = arrow.large_string() if text else arrow.large_binary()
        buffers = [None, arrow.py_buffer(starts), arrow.py_buffer(letters)]
        return arrow.Array.from_buffers(large, len(starts) - 1, buffers).cast(kind)

    return Keys("str" if text else "bytes", (ends, letters_of_all), len(wide), back)


def open_hashable(keys: Any) -> tuple[Keys, list[Any]]:
    """Keys, and the same keys as a list of hashable Python objects.

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos.shuffle.keys import open_hashable
    >>> open_hashable(np.array([3, 4]))[1]
    [3, 4]
    """
    opened = open_keys(keys)
    if isinstance(opened.arrays, tuple):
        return opened, as_list(opened.arrays, opened.form == "str")
    return opened, opened.arrays.view(np.int64 if opened.form.startswith("i") else np.uint64).tolist()


def listed(keys: Any) -> list[Any]:
    """Keys as a list of Python objects."""
    if hasattr(keys, "to_pylist"):
        return list(keys.to_pylist())
    return list(keys.tolist() if isinstance(keys, np.ndarray) else keys)


def arrays_of(form: str, keys: list[Any]) -> KeyArrays:
    """A list of keys as the native library takes them."""
    if form in ("str", "bytes"):
        return native.strings_of(keys)
    return np.array([key % 2**64 for key in keys], np.uint64)


def select(arrays: KeyArrays, mask: npt.NDArray[np.bool_]) -> KeyArrays:
    """The keys that a mask selects."""
    if not isinstance(arrays, tuple):
        return arrays[mask]
    starts, letters = arrays
    lengths = np.diff(starts)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[mask])])
    return ends, letters[int(starts[0]) : int(starts[-1])][np.repeat(mask, lengths)]


def joined(parts: list[KeyArrays]) -> KeyArrays:
    """Keys of several batches as one."""
    if len(parts) == 1:
        return parts[0]
    if not isinstance(parts[0], tuple):
        return np.concatenate([part for part in parts if not isinstance(part, tuple)])
    offsets, letters, end = [np.zeros(1, np.int64)], [], 0
    for starts, some in (part for part in parts if isinstance(part, tuple)):
        offsets.append(np.asarray(starts[1:], np.int64) + end)
        letters.append(some)
        end += len(some)
    return np.concatenate(offsets), np.concatenate(letters)
