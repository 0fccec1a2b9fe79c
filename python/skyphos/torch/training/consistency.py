"""What must be alike on all ranks before anything begins: models and settings, then values."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
import torch

from ...collectives.agreement import fail
from ...comm import Comm
from ...errors import BadInput, Mismatch
from ..backend.tensors import as_bytes, of_array

__all__ = ["agree", "spread"]

#: Differences that an error tells of.
_SHOWN = 4


def agree(comm: Comm, said: Sequence[str]) -> None:
    """Refuse, on all ranks, what one says otherwise than rank 0: facts, one a line, in the same order. Collective.

    Raises
    ------
    Mismatch
        Names a rank that differs, and what it and rank 0 say where they do. Or a rank does something else.
    """
    digest = hashlib.blake2b("\n".join(said).encode(), digest_size=8).digest()
    try:
        everyone = comm.allgather(np.frombuffer(digest, np.uint64))[:, 0]
    except Mismatch as error:
        raise Mismatch(
            f"{error} (rank {comm.rank} compares {said[0]} and more with the others: have all of them the same hooks "
            "and calls?)"
        ) from None
    if (others := np.flatnonzero(everyone != everyone[0])).size:
        other = int(others[0])
        theirs, first = comm.broadcast(list(said), other), comm.broadcast(list(said), 0)
        pairs = [pair for pair in zip_longest(theirs, first, fillvalue="nothing more") if pair[0] != pair[1]][:_SHOWN]
        raise Mismatch(
            f"rank {other} has {', '.join(a for a, _ in pairs)}, and rank 0 {', '.join(b for _, b in pairs)}"
        )


def spread(comm: Comm, tensor: torch.Tensor) -> None:
    """Give all ranks rank 0's values, in place, as DDP does for what it reduces. Collective.

    Raises
    ------
    BadInput
        It has none: it is on the device "meta". On all ranks.
    """
    if tensor.is_meta:
        fail(
            comm,
            BadInput(
                f"a parameter of shape {tuple(tensor.shape)} has no values, on the device meta: give the model some, "
                "with to_empty(device=...) and an initialisation"
            ),
        )
    came = comm.broadcast(as_bytes(tensor.detach().cpu().contiguous()) if comm.rank == 0 else None, 0)
    if comm.rank:
        with torch.no_grad():
            tensor.copy_(of_array(came, tensor))
