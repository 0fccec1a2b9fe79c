"""Conversion of PyTorch tensors to NumPy arrays of entries, and of arrays to tensors."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import BadInput
from ..inputs.arrays import supported, unsupported

if TYPE_CHECKING:
    import torch

__all__ = ["array_of", "entries_of", "is_compressed", "plain", "tensor_of"]


def is_compressed(x: torch.Tensor) -> bool:
    """Whether a tensor is in one of the compressed layouts: CSR, CSC, BSR or BSC."""
    import torch

    return x.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def plain(x: torch.Tensor) -> torch.Tensor:
    """The same numbers as a strided or COO tensor."""
    import torch

    if x.is_quantized:
        raise BadInput("a quantised tensor: pass .dequantize()")
    if is_compressed(x):
        return x.to_sparse_coo()
    if x.layout not in (torch.strided, torch.sparse_coo):
        raise BadInput(f"a tensor of layout {x.layout}: pass .to_dense()")
    return x


def array_of(x: torch.Tensor) -> npt.NDArray[Any]:
    """The array of a strided tensor, without a copy if it is a contiguous CPU tensor."""
    return _numpy(_on_host(x.detach()).contiguous())


def entries_of(x: torch.Tensor) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """The flat indices of a COO tensor's entries in C order over its sparse dimensions, and their values.

    Values have shape (entries,), or (entries, width) if the tensor has dense dimensions.
    """
    dims = x.sparse_dim()
    shape, dense = tuple(x.shape[:dims]), tuple(x.shape[dims:])
    if prod(shape) > 2**63:
        raise BadInput(f"a sparse tensor of shape {tuple(x.shape)} has more than 2^63 places, too many to number")
    if prod(dense) == 0:
        raise BadInput(f"a sparse tensor of shape {tuple(x.shape)} has no numbers at a place")
    indices, values = x._indices().detach().cpu().numpy(), _numpy(x._values().detach().cpu().contiguous())
    positions = np.zeros(indices.shape[1], np.int64)
    for length, at in zip(shape, indices, strict=True):
        positions = positions * length + at
    rows = values.reshape(len(positions), -1)
    return positions, rows if dense else rows[:, 0]


def tensor_of(array: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor that shares an array's memory."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The array of a contiguous tensor's memory; bfloat16 as the type of ml_dtypes."""
    import torch

    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        try:
            import ml_dtypes
        except ModuleNotFoundError:
            raise BadInput("tensors of bfloat16 need the package ml_dtypes, or .to(torch.float32)") from None
        halves: np.ndarray[Any, Any] = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return halves
    try:
        array: np.ndarray[Any, Any] = tensor.numpy()
    except TypeError:
        raise BadInput(f"tensors of {tensor.dtype} cannot be reduced: use .to(torch.float32)") from None
    if not supported(array.dtype):
        raise unsupported(array, "a tensor's numbers", "tensor")
    return array


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the CPU; from a GPU through pinned memory, to which it copies at the bus's full rate."""
    import torch

    if not tensor.is_cuda:
        return tensor.cpu()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return host
