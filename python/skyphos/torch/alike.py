"""What must be alike on all ranks before anything begins: models and settings, then values."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from ..comm import Comm
from ..errors import Mismatch
from .tensors import as_bytes, of_array

__all__ = ["agree", "spread"]


def agree(comm: Comm, said: str) -> None:
    """Refuse, on all ranks, what one says otherwise than rank 0. Collective.

    Raises
    ------
    Mismatch
        Names a rank that differs, and what it and rank 0 say.
    """
    digest = hashlib.blake2b(said.encode(), digest_size=8).digest()
    everyone = comm.allgather(np.frombuffer(digest, np.uint64))[:, 0]
    if (others := np.flatnonzero(everyone != everyone[0])).size:
        other = int(others[0])
        theirs, first = comm.broadcast(said, other), comm.broadcast(said, 0)
        raise Mismatch(f"rank {other} has {theirs}, and rank 0 {first}")


def spread(comm: Comm, tensor: torch.Tensor) -> None:
    """Give all ranks rank 0's values, in place, as DDP does for what it reduces. Collective."""
    came = comm.broadcast(as_bytes(tensor.detach().cpu().contiguous()) if comm.rank == 0 else None, 0)
    if comm.rank:
        with torch.no_grad():
            tensor.copy_(of_array(came, tensor))
