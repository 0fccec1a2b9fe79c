"""PyTorch's tensors as vectors and arrays, and back to their layout and device. Imported where there is a tensor."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadInput
from ..inputs.arrays import supported, unsupported
from .sparse_vector import SparseVector

if TYPE_CHECKING:
    import torch

__all__ = ["open_tensor"]


def open_tensor(x: torch.Tensor) -> tuple[SparseVector | np.ndarray[Any, Any], Callable[[Any], Any]]:
    """The vector or array inside a tensor of any layout, and what makes such a tensor of a result.

    Examples
    --------
    >>> import torch                                                                   # doctest: +SKIP
    >>> from skyphos.vectors.torch_kinds import open_tensor                                    # doctest: +SKIP
    >>> x, back = open_tensor(torch.eye(3).to_sparse_csr())                            # doctest: +SKIP
    >>> x.indices, back(x).layout                                                      # doctest: +SKIP
    (array([0, 4, 8]), torch.sparse_csr)
    """
    import torch

    if x.is_quantized:
        raise BadInput("a quantised tensor: pass .dequantize()")
    if x.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        vector, back = _sparse(x.to_sparse_coo())
        blocks = tuple(x.values().shape[-2:]) if x.layout in (torch.sparse_bsr, torch.sparse_bsc) else None
        return vector, lambda result: back(result).to_sparse(layout=x.layout, blocksize=blocks)
    if x.layout == torch.sparse_coo:
        return _sparse(x)
    if x.layout != torch.strided:
        raise BadInput(f"a tensor of layout {x.layout}: pass .to_dense()")
    array = _numpy(_on_host(x.detach()).contiguous())
    return array, lambda result: _tensor(result).to(x.device)


def _sparse(x: torch.Tensor) -> tuple[SparseVector, Callable[[SparseVector], torch.Tensor]]:
    """The vector over a COO tensor's sparse dimensions, whose rows are its dense ones."""
    import torch

    dims = x.sparse_dim()
    shape, dense = tuple(x.shape[:dims]), tuple(x.shape[dims:])
    if prod(shape) > 2**63:
        raise BadInput(f"a sparse tensor of shape {tuple(x.shape)} has more than 2^63 places: fewer can be numbered")
    if prod(dense) == 0:
        raise BadInput(f"a sparse tensor of shape {tuple(x.shape)} has no numbers at a place")
    indices, values = x._indices().detach().cpu().numpy(), _numpy(x._values().detach().cpu().contiguous())
    places = np.zeros(indices.shape[1], np.int64)
    for length, at in zip(shape, indices, strict=True):
        places = places * length + at
    rows = values.reshape(len(places), -1)
    vector = SparseVector(places, rows if dense else rows[:, 0], prod(shape))

    def back(result: SparseVector) -> torch.Tensor:
        if result._indices is None and result._present is None:
            result = result.prune()
        left = np.asarray(result.indices, np.int64)
        coords = np.empty((dims, len(left)), np.int64)
        for dim in reversed(range(1, dims)):
            left, coords[dim] = np.divmod(left, max(1, shape[dim]))
        coords[:1] = left
        came = _tensor(np.ascontiguousarray(result.values)).reshape(len(left), *dense)
        return torch.sparse_coo_tensor(
            torch.from_numpy(coords), came, tuple(x.shape), is_coalesced=True, check_invariants=False
        ).to(x.device)

    return vector, back


def _numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A contiguous tensor's memory; of bfloat16 as ml_dtypes has it."""
    import torch

    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        try:
            import ml_dtypes
        except ModuleNotFoundError:
            raise BadInput("tensors of bfloat16 take the package ml_dtypes, or .to(torch.float32)") from None
        halves: np.ndarray[Any, Any] = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return halves
    try:
        array: np.ndarray[Any, Any] = tensor.numpy()
    except TypeError:
        raise BadInput(f"tensors of {tensor.dtype} cannot be reduced: use .to(torch.float32)") from None
    if not supported(array.dtype):
        raise unsupported(array, "a tensor's numbers", "tensor")
    return array


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in the processor's memory; from a GPU through pinned memory, which it writes at the bus's full rate."""
    import torch

    if not tensor.is_cuda:
        return tensor.cpu()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return host
