"""Consistency checks before training: settings and models must be the same on all ranks, and parameters become so."""

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

__all__ = ["broadcast_parameter", "require_same"]

#: Number of differences in an error's text.
_SHOWN = 4


def require_same(comm: Comm, facts: Sequence[str]) -> None:
    """Raise an error on all ranks unless all ranks pass the same texts in the same order. Collective.

    Raises
    ------
    Mismatch
        Names a rank that differs from rank 0, and the texts in which it does. Or a rank makes another call.
    """
    digest = hashlib.blake2b("\n".join(facts).encode(), digest_size=8).digest()
    try:
        digests = comm.allgather(np.frombuffer(digest, np.uint64))[:, 0]
    except Mismatch as error:
        raise Mismatch(
            f"{error} (rank {comm.rank} compares {facts[0]} and more with the other ranks: do all ranks have the same "
            "hooks and calls?)"
        ) from None
    if (others := np.flatnonzero(digests != digests[0])).size:
        other = int(others[0])
        theirs, first = comm.broadcast(list(facts), other), comm.broadcast(list(facts), 0)
        pairs = [pair for pair in zip_longest(theirs, first, fillvalue="nothing more") if pair[0] != pair[1]][:_SHOWN]
        raise Mismatch(
            f"rank {other} has {', '.join(a for a, _ in pairs)}, and rank 0 {', '.join(b for _, b in pairs)}"
        )


def broadcast_parameter(comm: Comm, tensor: torch.Tensor) -> None:
    """Give all ranks rank 0's values of a parameter, in place. (DDP does so for the parameters it reduces.) Collective.

    Raises
    ------
    BadInput
        The parameter is on the device "meta", so it has no values. On all ranks.
    """
    if tensor.is_meta:
        fail(
            comm,
            BadInput(
                f"a parameter of shape {tuple(tensor.shape)} has no values, on the device meta: give it some with "
                "to_empty(device=...) and an initialisation"
            ),
        )
    received = comm.broadcast(as_bytes(tensor.detach().cpu().contiguous()) if comm.rank == 0 else None, 0)
    if comm.rank:
        with torch.no_grad():
            tensor.copy_(of_array(received, tensor))
