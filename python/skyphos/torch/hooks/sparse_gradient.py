"""Reduction of sparse gradients (embeddings with ``sparse=True``): one uncompressed allreduce among all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ...collectives.agreement import fail
from ...errors import BadInput
from ...vectors.sparse_vector import SparseVector
from ..backend.tensors import as_vector, check, fill_sparse
from .non_finite import has_flag, with_flag
from .selection import describe_non_finite_row, first_non_finite
from .share_reduction import Write

if TYPE_CHECKING:
    from .hook_state import HookState

__all__ = ["start_sparse_gradient"]


def start_sparse_gradient(state: HookState, name: str, gradient: torch.Tensor) -> Write:
    """Start the allreduce of a sparse gradient. The returned function waits, and writes the mean to a sparse tensor."""
    levels = state._levels
    assert levels is not None
    check([gradient])
    vector, bad = as_vector(gradient), first_non_finite(gradient._values().reshape(-1))
    length = vector.n
    if state._nonfinite != "raise":
        vector = with_flag(vector, is_finite=bad is None)
    elif bad is not None:
        error = BadInput(f"rank {levels.comm.rank}: {describe_non_finite_row(name, gradient, bad)}")
        fail(levels.comm, error, goes_on=True)
    work = levels.comm.allreduce(vector, op="mean", explain=True, async_op=True)

    def write(into: torch.Tensor) -> None:
        reduced, how = work.wait()
        state._count(how.sent_bytes, how.received_bytes)
        if has_flag(reduced, length):
            state._is_finite = False
            rows = int(state._nonfinite == "pass")
            values = np.full((rows, *reduced.values.shape[1:]), np.nan, reduced.values.dtype)
            reduced = SparseVector._of(np.zeros(rows, reduced.indices.dtype), values, None, length)
        fill_sparse(into, reduced)

    return write
