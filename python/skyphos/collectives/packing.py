"""Encoding of Python objects as a few blocks of memory, and decoding.

Arrays, bytes and SparseVectors are described in JSON and sent without conversion; :func:`pack_plain` does the same with
numbers, text and lists of numbers. Other objects are pickled by protocol 5: large buffers inside them are separate
blocks, never copied into the pickle, and become the memory of the received object.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import BadInput
from ..vectors.dtype_names import name_of, type_named
from ..vectors.sparse_vector import SparseVector

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = [
    "Bytes",
    "array_bytes",
    "described_array",
    "is_pickle",
    "joined",
    "pack",
    "pack_plain",
    "parted",
    "read_object",
    "unpack",
    "untrusted",
]

#: A block of memory.
Bytes = npt.NDArray[np.uint8]

# First byte of the first part.
_JSON, _PICKLE = b"J", b"P"

#: Types whose values JSON represents exactly.
_PLAIN = (type(None), bool, int, float, str)

#: A list of up to this many elements is described in JSON; longer lists of mixed kinds are pickled.
_MAX_LISTED = 256

#: Alignment of the parts of a joined block, which suits numbers of any type.
_ALIGN = 64

_ADVICE = "install the packages of its classes on all ranks, or send arrays"


def pack(x: Any) -> list[Bytes]:
    """Encode an object as blocks of memory: its description, then its content. Arrays are not copied.

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos.collectives.packing import pack, unpack
    >>> parts = pack({"a": np.arange(3), "b": "text"})
    >>> unpack(parts)
    {'a': array([0, 1, 2]), 'b': 'text'}
    """
    torch = sys.modules.get("torch")
    if type(x) is np.ndarray and _is_plain(x):
        return [_head_of_array(*_form(x)), array_bytes(x)]
    if type(x) is SparseVector:
        arrays = [x._indices, x._values, x._present]
        forms = [None if array is None else _form(array) for array in arrays]
        owned = x.owned if x.owned is None else [x.owned.start, x.owned.stop]
        header = {"kind": "sparse", "n": x.n, "owned": owned, "arrays": forms}
        return _described(header, *(array for array in arrays if array is not None))
    if type(x) in (bytes, bytearray):
        return _described({"kind": type(x).__name__}, np.frombuffer(x, np.uint8))
    if torch is not None and type(x) is torch.Tensor and _is_plain_tensor(x):
        array = x.detach().contiguous().numpy()
        return _described({"kind": "tensor", "array": _form(array)}, array)
    buffers: list[pickle.PickleBuffer] = []
    try:
        pickled = pickle.dumps(x, protocol=5, buffer_callback=buffers.append)
    except Exception as error:  # any error of a __reduce__
        fix = ": pass list(x)" if hasattr(x, "__next__") else ""
        raise BadInput(f"{type(x).__name__} cannot be sent, for it cannot be pickled: {error}{fix}") from error
    parts = [np.frombuffer(_PICKLE + pickled, np.uint8)]
    return parts + [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]


def described_array(x: npt.NDArray[Any]) -> bytes | None:
    """The first part of an array, its description; None if the array would be pickled."""
    return _head_of_array(*_form(x)).tobytes() if type(x) is np.ndarray and _is_plain(x) else None


def pack_plain(x: Any) -> list[Bytes]:
    """Like :func:`pack`, but without pickles for numbers, text, None and lists of them: reading them runs no code."""
    if isinstance(x, np.generic) and type(x) is x.dtype.type and name_of(x.dtype) is not None:
        return _described({"kind": "scalar", "array": _form(np.asarray(x))}, np.asarray(x))
    if type(x) is list and (array := _numbers_of(x)) is not None:
        return _described({"kind": "list", "array": _form(array)}, array)
    return _described({"kind": "plain", "value": x}) if _is_plain_data(x) else pack(x)


def is_pickle(parts: list[Bytes]) -> bool:
    """True if reading the parts runs code that the sender chose."""
    return parts[0][:1].tobytes() == _PICKLE


def read_object(comm: Comm, parts: list[Bytes]) -> Any:
    """The object that another rank sent; a pickle is refused if the group has no token."""
    if is_pickle(parts) and not comm._native.trusted:
        raise BadInput(
            f"rank {comm.rank} received a pickle, which runs code, in a group without a token: pass token= to "
            "sky.init() on all ranks, or set SKYPHOS_TOKEN, or send arrays"
        )
    return unpack(parts)


def untrusted(what: str) -> BadInput:
    """The error for pickles in a group without a token; ``what`` is a clause that ends in "which runs"."""
    return BadInput(
        f"{what} code where it is read, and the ranks of this group have proved no token: pass token= to sky.init() on "
        "all ranks, or set SKYPHOS_TOKEN, or send arrays"
    )


def unpack(parts: list[Bytes]) -> Any:
    """Decode an object. It refers to the memory of the blocks.

    Raises
    ------
    BadInput
        If the blocks are invalid, or have a pickle that cannot be read on this rank.
    """
    head, blocks = parts[0][1:], parts[1:]
    if is_pickle(parts):
        try:
            return pickle.loads(head.data, buffers=blocks)
        except Exception as error:  # such as a class that does not exist on this rank
            raise BadInput(f"an object was received that cannot be read here: {error}; {_ADVICE}") from error
    try:
        text = head.tobytes()
        is_cached = text.startswith(_ARRAY_HEAD) and len(text) < _MAX_CACHED_BYTES
        header = _read_head_of_array(text) if is_cached else json.loads(text)
        return _READERS[header["kind"]](header, blocks)
    except ImportError as error:
        raise BadInput(f"an object was received that cannot be read here: {error}; {_ADVICE}") from error
    except (KeyError, IndexError, StopIteration, TypeError, ValueError) as error:
        raise BadInput(f"the received blocks describe no object: {error!r}") from error


def _read_sparse(header: dict[str, Any], blocks: list[Bytes]) -> SparseVector:
    rest = iter(blocks)
    indices, values, present = (None if form is None else _array(form, next(rest)) for form in header["arrays"])
    if values is None:
        raise ValueError("a vector without values")
    vector = SparseVector._of(indices, values, present, header["n"])
    vector._owned = header["owned"] if header["owned"] is None else range(*header["owned"])
    return vector


def _read_tensor(header: dict[str, Any], blocks: list[Bytes]) -> Any:
    import torch

    return torch.from_numpy(_array(header["array"], blocks[0]))


#: Functions that make an object from its description and its memory, by kind.
_READERS: dict[str, Callable[[dict[str, Any], list[Bytes]], Any]] = {
    "array": lambda header, blocks: _array(header["array"], blocks[0]),
    "scalar": lambda header, blocks: _array(header["array"], blocks[0])[()],
    "list": lambda header, blocks: _array(header["array"], blocks[0]).tolist(),
    "plain": lambda header, blocks: header["value"],
    "sparse": _read_sparse,
    "tensor": _read_tensor,
    "bytes": lambda header, blocks: bytes(blocks[0].data),
    "bytearray": lambda header, blocks: bytearray(blocks[0].data),
}


def _described(header: dict[str, Any], *arrays: npt.NDArray[Any]) -> list[Bytes]:
    return [np.frombuffer(_encoded(header), np.uint8), *(array_bytes(array) for array in arrays)]


def _encoded(header: dict[str, Any]) -> bytes:
    return _JSON + json.dumps(header).encode()


#: How the description of an array begins, and the length below which it is cached.
_ARRAY_HEAD, _MAX_CACHED_BYTES = b'{"kind": "array"', 512


@lru_cache(maxsize=256)
def _head_of_array(dtype: str, shape: tuple[int, ...], by_columns: bool) -> Bytes:
    """The description of an array, cached because programs send arrays of few types and shapes repeatedly."""
    return np.frombuffer(_encoded({"kind": "array", "array": [dtype, shape, by_columns]}), np.uint8)


@lru_cache(maxsize=256)
def _read_head_of_array(text: bytes) -> dict[str, Any]:
    """The fields of an array's description. Callers must not change them."""
    header: dict[str, Any] = json.loads(text)
    return header


def joined(parts: list[Bytes]) -> Bytes:
    """Concatenate parts, preceded by their lengths."""
    lengths = np.array([len(parts), *(part.nbytes for part in parts)], np.int64).view(np.uint8)
    pieces: list[Bytes] = []
    for part in (lengths, *parts):
        pieces += [part, np.zeros(-part.nbytes % _ALIGN, np.uint8)]
    return np.concatenate(pieces)


def parted(block: Bytes) -> list[Bytes]:
    """The parts of a joined block."""
    try:
        (count,) = block[:8].view(np.int64).tolist()
        lengths = block[8 : 8 * (count + 1)].view(np.int64).tolist() if 0 <= count < len(block) else []
        if not lengths or len(lengths) != count or min(lengths) < 0:
            raise ValueError("no lengths")
        at, parts = -(-8 * (count + 1) // _ALIGN) * _ALIGN, []
        for length in lengths:
            if at + length > len(block):
                raise ValueError("too short")
            parts.append(block[at : at + length])
            at += -(-length // _ALIGN) * _ALIGN
    except ValueError as error:
        raise BadInput(f"a malformed block was received: {error}") from None
    return parts


def _numbers_of(x: list[Any]) -> npt.NDArray[Any] | None:
    """A list of floats, or of integers of 64 bits, as an array; None for any other list."""
    kinds = set(map(type, x))
    if kinds == {float}:
        return np.array(x, np.float64)
    if kinds == {int} and min(x) >= -(2**63) and max(x) < 2**63:
        return np.array(x, np.int64)
    return None


def _is_plain_data(x: Any) -> bool:
    """True for a number, text or None, or a short list of them."""
    if type(x) is str:
        return x.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in x)
    if type(x) is int:
        return -(2**63) <= x < 2**64  # Python parses numbers of many digits slowly, and refuses very long ones
    if type(x) is list:
        return len(x) <= _MAX_LISTED and all(type(one) is not list and _is_plain_data(one) for one in x)
    return type(x) in _PLAIN


def _is_plain(x: npt.NDArray[Any]) -> bool:
    """True for an array of numbers whose type and byte order have a name."""
    return name_of(x.dtype) is not None


def _is_plain_tensor(x: Any) -> bool:
    """True if NumPy has the tensor's dtype; it lacks bfloat16."""
    if x.device.type != "cpu" or x.is_sparse or x.is_quantized:
        return False
    return str(x.dtype) not in ("torch.bfloat16", "torch.complex32") and not str(x.dtype).startswith("torch.float8")


def _form(x: npt.NDArray[Any]) -> tuple[str, tuple[int, ...], bool]:
    """Type, shape, and whether the array is in Fortran order."""
    return name_of(x.dtype) or "", x.shape, not x.flags.c_contiguous and x.flags.f_contiguous


def array_bytes(x: npt.NDArray[Any]) -> Bytes:
    """An array's memory, without reordering if it is contiguous in C or Fortran order."""
    if x.flags.c_contiguous:
        return x.reshape(-1).view(np.uint8)
    flat = x.reshape(-1, order="F") if x.flags.f_contiguous and not x.flags.c_contiguous else x.reshape(-1)
    return np.ascontiguousarray(flat).view(np.uint8)


def _array(form: list[Any], memory: Bytes) -> npt.NDArray[Any]:
    dtype, shape, by_columns = form
    array: npt.NDArray[Any] = memory.view(type_named(dtype)).reshape(shape, order="F" if by_columns else "C")
    return array
