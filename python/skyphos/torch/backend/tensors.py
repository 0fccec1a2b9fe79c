"""Conversion between tensors and the arrays that collectives move and reduce."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...errors import BadInput
from ...vectors.sparse_vector import SparseVector

__all__ = [
    "as_bytes",
    "as_moved",
    "as_numbers",
    "as_vector",
    "check",
    "check_written",
    "fill_sparse",
    "is_plain",
    "of_array",
    "of_numbers",
]

#: Types that are reduced as a wider one. Cut back to the narrow type, sums wrap around as they would in it.
_WIDENED = {torch.int8: torch.int32, torch.int16: torch.int32}
_NUMBERS = (torch.float16, torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8)


def check(tensors: list[torch.Tensor]) -> None:
    """Refuse tensors that are not on the CPU, and layouts other than strided and COO."""
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise BadInput(
                f"the backend skyphos takes tensors of the CPU, not of {tensor.device}: "
                'init_process_group("cpu:skyphos,cuda:nccl") has NCCL for those'
            )
        if tensor.layout not in (torch.strided, torch.sparse_coo):
            raise BadInput(f"a tensor of layout {tensor.layout}: the backend skyphos takes strided and sparse_coo")


def check_written(tensors: Sequence[torch.Tensor]) -> None:
    """Refuse expanded tensors as outputs: several of their elements share one memory location."""
    for tensor in tensors:
        if tensor.layout == torch.strided and any(
            stride == 0 and length > 1 for stride, length in zip(tensor.stride(), tensor.shape, strict=True)
        ):
            raise BadInput(
                f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} is expanded, so its elements "
                "share memory and cannot take a result: pass .clone()"
            )


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory holds its elements in order. Conjugate and negative views are not plain."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def as_bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """A plain tensor's memory as bytes; of another tensor, the memory of a copy."""
    if tensor.numel() == 0:
        return np.empty(0, np.uint8)
    plain = tensor.detach().resolve_conj().resolve_neg()
    flat: npt.NDArray[np.uint8] = plain.reshape(-1).contiguous().view(torch.uint8).numpy()
    return flat


def as_moved(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A tensor's memory in its own type if NumPy has that, else as bytes. With types, ranks notice if theirs differ."""
    is_number = tensor.dtype in _NUMBERS or tensor.dtype == torch.bfloat16
    return as_numbers(tensor) if is_number else as_bytes(tensor)


def as_numbers(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A flat array that can be reduced.

    It shares the tensor's memory if that is contiguous and its type can be reduced. Otherwise it is a copy.
    """
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous()
    if flat.dtype == torch.bfloat16:
        import ml_dtypes  # NumPy has no bfloat16

        return _numpy(flat.view(torch.int16)).view(ml_dtypes.bfloat16)
    if flat.dtype == torch.bool:
        return _numpy(flat.view(torch.uint8))
    if flat.dtype.is_complex:
        return _numpy(torch.view_as_real(flat).reshape(-1))
    if flat.dtype in _WIDENED:
        flat = flat.to(_WIDENED[flat.dtype])
    elif flat.dtype not in _NUMBERS:
        raise BadInput(f"tensors of {tensor.dtype} cannot be reduced")
    return _numpy(flat)


def _numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = tensor.numpy()
    return array


def as_vector(tensor: torch.Tensor) -> SparseVector:
    """A sparse tensor as a sparse vector: its sparse dimensions are the index space, its dense ones a row of values.

    Values at one index are added up.
    """
    dims = tensor.sparse_dim()
    shape = tensor.shape[:dims]
    width = math.prod(tensor.shape[dims:])
    if math.prod(shape) >= 1 << 63:
        raise BadInput(
            f"a sparse tensor of shape {tuple(tensor.shape)}: its sparse dimensions have 2^63 indices or more"
        )
    indices, values = tensor._indices(), tensor._values().detach().contiguous()
    flat = indices[0].numpy() if dims else np.zeros(indices.shape[1], np.int64)
    for dim, length in enumerate(shape[1:], 1):
        flat = flat * length + indices[dim].numpy()
    numbers = as_numbers(values)
    row_length = 2 * width if values.dtype.is_complex else width
    # Rows of length 0 get one zero each, so that the indices are still united.
    rows = numbers.reshape(-1, row_length) if row_length else np.zeros((len(flat), 1), numbers.dtype)
    return SparseVector(flat, rows if row_length > 1 else rows[:, 0], math.prod(shape))


def fill_sparse(tensor: torch.Tensor, vector: SparseVector) -> None:
    """Replace a sparse tensor's entries by a vector's, without a copy."""
    dims = tensor.sparse_dim()
    flat = np.asarray(vector.indices, np.int64)
    indices = np.empty((dims, len(flat)), np.int64)
    for dim in reversed(range(1, dims)):
        length = max(1, tensor.shape[dim])
        flat, indices[dim] = np.divmod(flat, length)
    indices[:1] = flat
    shape = (indices.shape[1], *tensor.shape[dims:])
    numbers = np.ascontiguousarray(vector.values) if math.prod(shape[1:]) else vector.values[:0]
    values = of_numbers(numbers, tensor.dtype).reshape(shape)
    result = torch.sparse_coo_tensor(
        torch.from_numpy(indices), values, tensor.shape, is_coalesced=True, check_invariants=False
    )
    # Set `data` of the tensor itself, because `detach` returns one with its own entries. The view of real and imaginary
    # parts that `torch.distributed` makes of a complex tensor has its own entries too, so its base is set as well.
    caller = tensor._base if tensor._is_view() else None
    if caller is not None and caller.is_complex() and not tensor.is_complex():
        caller.data = torch.sparse_coo_tensor(
            result.indices(),
            torch.view_as_complex(result.values()),
            caller.shape,
            is_coalesced=True,
            check_invariants=False,
        )
        torch.autograd.graph.increment_version(caller)
    tensor.data = result
    torch.autograd.graph.increment_version(tensor)


def of_array(array: npt.NDArray[Any], like: torch.Tensor) -> torch.Tensor:
    """A tensor with the shape and type of ``like``, from its bytes or numbers in ``array``."""
    if array.dtype == np.uint8 and like.dtype not in (torch.uint8, torch.bool):
        if like.numel() == 0:
            return like
        flat = torch.from_numpy(array.reshape(-1)).view(like.dtype)
    else:
        flat = of_numbers(array, like.dtype)
    return flat.reshape(like.shape)


def of_numbers(numbers: npt.NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    """A flat tensor of a type, from the array that :func:`as_numbers` made of such a tensor."""
    if dtype == torch.bfloat16:
        return torch.from_numpy(numbers.reshape(-1).view(np.int16)).view(torch.bfloat16)
    flat = torch.from_numpy(numbers.reshape(-1))
    if dtype.is_complex:
        return torch.view_as_complex(flat.reshape(-1, 2))
    return flat.to(dtype)
