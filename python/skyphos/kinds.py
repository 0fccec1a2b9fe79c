"""The kinds of vector that collectives take, and the way back to the kind that came in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import BadInput
from .sparse_vector import SparseVector

__all__ = ["open_vector"]


def _same(vector: SparseVector) -> Any:
    return vector


def open_vector(x: Any) -> tuple[SparseVector | np.ndarray[Any, Any], Callable[[Any], Any]]:
    """The vector or dense array inside, and what makes the caller's kind of a result.

    SparseVector, NumPy, SciPy and torch are known; the last two are not imported here, since an object of theirs
    means that they have been. Of anything else that shows an array (``__array_interface__``, DLPack, the buffer
    protocol) the memory is used as it is, and the result is a NumPy array.
    """
    if isinstance(x, SparseVector):
        return x, _same
    if isinstance(x, np.ndarray):
        return x, _same
    scipy_sparse, torch = sys.modules.get("scipy.sparse"), sys.modules.get("torch")
    if scipy_sparse is not None and scipy_sparse.issparse(x):
        vector = SparseVector.from_scipy(x)
        form = x.format if x.ndim == 2 else "coo"
        return vector, lambda result: result.to_scipy().asformat(form)
    if torch is not None and isinstance(x, torch.Tensor):
        if x.is_sparse:
            return SparseVector.from_torch(x), lambda result: result.to_torch().to(x.device)
        array = _on_host(x.detach()).contiguous().numpy()
        return array, lambda result: torch.from_numpy(result).to(x.device)
    array = _shown(x)
    if array is not None:
        return array, _same
    raise BadInput(
        "a collective takes a SparseVector, a SciPy sparse array, a torch tensor or what shows an array to NumPy, not "
        f"{type(x).__name__}"
    )


def _shown(x: Any) -> np.ndarray[Any, Any] | None:
    """The array that an object shows to others, without a copy; None if it shows none."""
    if isinstance(x, np.generic):
        return None
    if hasattr(x, "__array_interface__"):
        return np.asarray(x)
    if hasattr(x, "__dlpack__"):
        try:
            return np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise BadInput(f"{type(x).__name__} cannot be had by DLPack in the processor's memory: {error}") from None
    try:
        return np.asarray(memoryview(x))
    except TypeError:
        return None


def _on_host(tensor: Any) -> Any:
    """A tensor in the processor's memory; from a GPU through pinned memory, which it writes at the bus's full rate."""
    if not tensor.is_cuda:
        return tensor.cpu()
    torch = sys.modules["torch"]
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return host
