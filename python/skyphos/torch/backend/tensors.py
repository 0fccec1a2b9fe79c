"""Tensors as the arrays that collectives move and reduce, and back."""

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

#: What is reduced as another type: sums wrap around as they do in the narrow one once they are cut to it.
_WIDENED = {torch.int8: torch.int32, torch.int16: torch.int32}
_NUMBERS = (torch.float16, torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8)


def check(tensors: list[torch.Tensor]) -> None:
    """Refuse what is not in the processor's memory, and layouts other than strided and COO."""
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise BadInput(
                f"the backend skyphos moves tensors of the CPU, not of {tensor.device}: "
                'init_process_group("cpu:skyphos,cuda:nccl") leaves those to NCCL'
            )
        if tensor.layout not in (torch.strided, torch.sparse_coo):
            raise BadInput(f"a tensor of layout {tensor.layout}: strided and sparse_coo can be moved")


def check_written(tensors: Sequence[torch.Tensor]) -> None:
    """Refuse, before the call, tensors that cannot take a result: several elements are at one place in memory."""
    for tensor in tensors:
        if tensor.layout == torch.strided and any(
            stride == 0 and length > 1 for stride, length in zip(tensor.stride(), tensor.shape, strict=True)
        ):
            raise BadInput(
                f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} is expanded, so its elements "
                "share memory and cannot take a result: pass .clone()"
            )


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory is its elements one after the other: not of conjugate and negative views."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def as_bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """The memory of a tensor, where that is its elements one after the other; else that of a copy."""
    if tensor.numel() == 0:
        return np.empty(0, np.uint8)
    plain = tensor.detach().resolve_conj().resolve_neg()
    flat: npt.NDArray[np.uint8] = plain.reshape(-1).contiguous().view(torch.uint8).numpy()
    return flat


def as_moved(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """As :func:`as_bytes`, but as numbers of a tensor's type where NumPy has it: ranks then see if theirs differ."""
    is_number = tensor.dtype in _NUMBERS or tensor.dtype == torch.bfloat16
    return as_numbers(tensor) if is_number else as_bytes(tensor)


def as_numbers(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A flat array that can be reduced: the tensor's memory, where that is in one stretch and its type can be; else
    that of a copy, of a column for example, whose elements lie apart."""
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous()
    if flat.dtype == torch.bfloat16:
        import ml_dtypes  # NumPy's own types have none of 16 bits with 8 of exponent

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
    """A sparse tensor as a vector over its sparse dimensions, whose rows are its dense ones.

    Values of one place are added.
    """
    dims = tensor.sparse_dim()
    shape = tensor.shape[:dims]
    width = math.prod(tensor.shape[dims:])
    if math.prod(shape) >= 1 << 63:
        raise BadInput(
            f"a sparse tensor of shape {tuple(tensor.shape)}: its sparse dimensions have 2^63 places or more"
        )
    indices, values = tensor._indices(), tensor._values().detach().contiguous()
    places = indices[0].numpy() if dims else np.zeros(indices.shape[1], np.int64)
    for dim, length in enumerate(shape[1:], 1):
        places = places * length + indices[dim].numpy()
    numbers = as_numbers(values)
    wide = 2 * width if values.dtype.is_complex else width
    # Places of which each has no numbers are united all the same; one stands for them.
    rows = numbers.reshape(-1, wide) if wide else np.zeros((len(places), 1), numbers.dtype)
    return SparseVector(places, rows if wide > 1 else rows[:, 0], math.prod(shape))


def fill_sparse(tensor: torch.Tensor, vector: SparseVector) -> None:
    """Give a sparse tensor a vector's entries in place of its own. They are not copied."""
    dims = tensor.sparse_dim()
    places = np.asarray(vector.indices, np.int64)
    indices = np.empty((dims, len(places)), np.int64)
    for dim in reversed(range(1, dims)):
        length = max(1, tensor.shape[dim])
        places, indices[dim] = np.divmod(places, length)
    indices[:1] = places
    shape = (indices.shape[1], *tensor.shape[dims:])
    numbers = np.ascontiguousarray(vector.values) if math.prod(shape[1:]) else vector.values[:0]
    values = of_numbers(numbers, tensor.dtype).reshape(shape)
    came = torch.sparse_coo_tensor(
        torch.from_numpy(indices), values, tensor.shape, is_coalesced=True, check_invariants=False
    )
    # Of the tensor itself: what `detach` returns has entries of its own. So has what `torch.distributed` makes of a
    # complex one, as a view of its real and imaginary parts.
    caller = tensor._base if tensor._is_view() else None
    if caller is not None and caller.is_complex() and not tensor.is_complex():
        caller.data = torch.sparse_coo_tensor(
            came.indices(),
            torch.view_as_complex(came.values()),
            caller.shape,
            is_coalesced=True,
            check_invariants=False,
        )
        torch.autograd.graph.increment_version(caller)
    tensor.data = came
    torch.autograd.graph.increment_version(tensor)


def of_array(came: npt.NDArray[Any], like: torch.Tensor) -> torch.Tensor:
    """A tensor of the shape and type of another one, of its bytes or of what :func:`as_numbers` made of it."""
    if came.dtype == np.uint8 and like.dtype not in (torch.uint8, torch.bool):
        if like.numel() == 0:
            return like
        flat = torch.from_numpy(came.reshape(-1)).view(like.dtype)
    else:
        flat = of_numbers(came, like.dtype)
    return flat.reshape(like.shape)


def of_numbers(numbers: npt.NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    """A flat tensor of a type, of what :func:`as_numbers` made of such a one."""
    if dtype == torch.bfloat16:
        return torch.from_numpy(numbers.reshape(-1).view(np.int16)).view(torch.bfloat16)
    flat = torch.from_numpy(numbers.reshape(-1))
    if dtype.is_complex:
        return torch.view_as_complex(flat.reshape(-1, 2))
    return flat.to(dtype)
