"""Gloo's allreduce of sparse tensors, through PyTorch: an allgather of padded indices and values, and a sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data import Array, Data
from .torch_group import OverGloo


class GlooSparse(OverGloo):
    """`all_reduce` of a coalesced COO tensor (64-bit indices, the only ones there are)."""

    def prepare(self, data: Data) -> Any:
        import torch

        indices, values = data.sparse()
        return torch.sparse_coo_tensor(
            torch.from_numpy(np.array(indices, np.int64))[None, :],
            torch.from_numpy(np.array(values)),
            (data.n,),
            is_coalesced=True,
            check_invariants=False,
        )

    def run(self, given: Any) -> Any:
        self.dist.all_reduce(given, self.op)
        return given

    def answer(self, result: Any) -> tuple[Array, Array]:
        result = result.coalesce()
        return result.indices()[0].numpy(), result.values().numpy()
