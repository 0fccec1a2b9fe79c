"""PyTorch tensors as vectors and arrays, and back to their layout and device. Imported only if a tensor is passed."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from .sparse_vector import SparseVector
from .torch_arrays import array_of, entries_of, is_compressed, plain, tensor_of

if TYPE_CHECKING:
    import torch

__all__ = ["open_tensor"]


def open_tensor(x: torch.Tensor) -> tuple[SparseVector | np.ndarray[Any, Any], Callable[[Any], Any]]:
    """The vector or array of a tensor of any layout, and the conversion of a result to such a tensor.

    Examples
    --------
    >>> import torch                                                                   # doctest: +SKIP
    >>> from skyphos.vectors.torch_kinds import open_tensor                                    # doctest: +SKIP
    >>> x, back = open_tensor(torch.eye(3).to_sparse_csr())                            # doctest: +SKIP
    >>> x.indices, back(x).layout                                                      # doctest: +SKIP
    (array([0, 4, 8]), torch.sparse_csr)
    """
    import torch

    if is_compressed(x):
        vector, back = _sparse(plain(x))
        blocks = tuple(x.values().shape[-2:]) if x.layout in (torch.sparse_bsr, torch.sparse_bsc) else None
        return vector, lambda result: back(result).to_sparse(layout=x.layout, blocksize=blocks)
    if plain(x).is_sparse:
        return _sparse(x)
    return array_of(x), lambda result: tensor_of(result).to(x.device)


def _sparse(x: torch.Tensor) -> tuple[SparseVector, Callable[[SparseVector], torch.Tensor]]:
    """The vector over a COO tensor's sparse dimensions; its rows are the dense dimensions."""
    import torch

    dims = x.sparse_dim()
    shape, dense = tuple(x.shape[:dims]), tuple(x.shape[dims:])
    vector = SparseVector(*entries_of(x), prod(shape))

    def back(result: SparseVector) -> torch.Tensor:
        if result._indices is None and result._present is None:
            result = result.prune()
        left = np.asarray(result.indices, np.int64)
        coords = np.empty((dims, len(left)), np.int64)
        for dim in reversed(range(1, dims)):
            left, coords[dim] = np.divmod(left, max(1, shape[dim]))
        coords[:1] = left
        values = tensor_of(np.ascontiguousarray(result.values)).reshape(len(left), *dense)
        return torch.sparse_coo_tensor(
            torch.from_numpy(coords), values, tuple(x.shape), is_coalesced=True, check_invariants=False
        ).to(x.device)

    return vector, back
