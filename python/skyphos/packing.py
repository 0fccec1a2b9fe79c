"""Python objects as a few stretches of memory, and back.

Arrays, bytes and SparseVectors are described in JSON and go as they lie in memory. Everything else is pickled, by
protocol 5: large buffers inside it are handed over beside the pickle, never copied into it, and become the memory of
what comes out.
"""

from __future__ import annotations

import json
import pickle
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import BadInput
from .sparse_vector import SparseVector

__all__ = ["Bytes", "is_pickle", "pack", "unpack", "untrusted"]

#: A stretch of memory.
Bytes = npt.NDArray[np.uint8]

# What the first part begins with.
_JSON, _PICKLE = b"J", b"P"

# Kinds of types that are numbers: a name says all of them.
_NUMBERS = "biufc"

_HOW = "install what it is made of on all ranks, or send arrays"


def pack(x: Any) -> list[Bytes]:
    """An object as memory: what describes it, then what it holds. Nothing of an array is copied.

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos.packing import pack, unpack
    >>> parts = pack({"a": np.arange(3), "b": "text"})
    >>> unpack(parts)
    {'a': array([0, 1, 2]), 'b': 'text'}
    """
    torch = sys.modules.get("torch")
    if type(x) is np.ndarray and _is_plain(x):
        return _described({"kind": "array", "array": _form(x)}, x)
    if type(x) is SparseVector:
        arrays = [x._indices, x._values, x._present]
        forms = [None if array is None else _form(array) for array in arrays]
        return _described({"kind": "sparse", "n": x.n, "arrays": forms}, *(a for a in arrays if a is not None))
    if isinstance(x, (bytes, bytearray)):
        return _described({"kind": type(x).__name__}, np.frombuffer(x, np.uint8))
    if torch is not None and type(x) is torch.Tensor and _is_plain_tensor(x):
        array = x.detach().contiguous().numpy()
        return _described({"kind": "tensor", "array": _form(array)}, array)
    buffers: list[pickle.PickleBuffer] = []
    try:
        pickled = pickle.dumps(x, protocol=5, buffer_callback=buffers.append)
    except Exception as error:  # whatever a __reduce__ raises
        raise BadInput(f"{type(x).__name__} cannot be sent, for it cannot be pickled: {error}") from error
    parts = [np.frombuffer(_PICKLE + pickled, np.uint8)]
    return parts + [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]


def is_pickle(parts: list[Bytes]) -> bool:
    """Whether reading it runs code that the sender chose."""
    return parts[0][:1].tobytes() == _PICKLE


def untrusted(what: str) -> BadInput:
    """The error for pickles in a group whose ranks have not proved who they are."""
    return BadInput(
        f"{what} code where it is read, and the ranks of this group have proved no token: pass token= to sky.init() on "
        "all ranks, or set SKYPHOS_TOKEN, or send arrays"
    )


def unpack(parts: list[Bytes]) -> Any:
    """The object. It keeps the memory, and writes to it if it is written to.

    Raises
    ------
    BadInput
        What is no object's description, or a pickle that cannot be read here.
    """
    head, held = parts[0][1:], parts[1:]
    if is_pickle(parts):
        try:
            return pickle.loads(head.data, buffers=held)
        except Exception as error:  # a class that is not here, say
            raise BadInput(f"an object came that cannot be read here: {error}; {_HOW}") from error
    try:
        told = json.loads(head.tobytes())
        kind = told["kind"]
        if kind == "array":
            return _array(told["array"], held[0])
        if kind == "sparse":
            rest = iter(held)
            indices, values, present = (None if form is None else _array(form, next(rest)) for form in told["arrays"])
            if values is None:
                raise ValueError("a vector without values")
            return SparseVector._of(indices, values, present, told["n"])
        if kind == "tensor":
            import torch

            return torch.from_numpy(_array(told["array"], held[0]))
        return {"bytes": bytes, "bytearray": bytearray}[kind](held[0].data)
    except ImportError as error:
        raise BadInput(f"an object came that cannot be read here: {error}; {_HOW}") from error
    except (KeyError, IndexError, StopIteration, TypeError, ValueError) as error:
        raise BadInput(f"what came describes no object: {error!r}") from error


def _described(told: dict[str, Any], *arrays: npt.NDArray[Any]) -> list[Bytes]:
    head = np.frombuffer(_JSON + json.dumps(told).encode(), np.uint8)
    return [head, *(_bytes_of(array) for array in arrays)]


def _is_plain(x: npt.NDArray[Any]) -> bool:
    """Whether an array is numbers, and a name says of which type."""
    return x.dtype.kind in _NUMBERS and x.dtype.isnative


def _is_plain_tensor(x: Any) -> bool:
    """Whether NumPy can say what a tensor is, which it cannot of bfloat16."""
    if x.device.type != "cpu" or x.is_sparse or x.is_quantized:
        return False
    return str(x.dtype) not in ("torch.bfloat16", "torch.complex32") and not str(x.dtype).startswith("torch.float8")


def _form(x: npt.NDArray[Any]) -> list[Any]:
    """Type, shape, and whether columns lie together."""
    return [x.dtype.str, list(x.shape), not x.flags.c_contiguous and x.flags.f_contiguous]


def _bytes_of(x: npt.NDArray[Any]) -> Bytes:
    """An array's memory, in the order in which it lies there if that has no gaps."""
    flat = x.reshape(-1, order="F") if x.flags.f_contiguous and not x.flags.c_contiguous else x.reshape(-1)
    return np.ascontiguousarray(flat).view(np.uint8)


def _array(form: list[Any], memory: Bytes) -> npt.NDArray[Any]:
    dtype, shape, by_columns = form
    kind = np.dtype(dtype)
    if kind.kind not in _NUMBERS:
        raise ValueError(f"an array of {kind}")
    array: npt.NDArray[Any] = memory.view(kind).reshape(shape, order="F" if by_columns else "C")
    return array
