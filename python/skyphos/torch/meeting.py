"""How the ranks of a process group meet: through torch's store, which all of them reach."""

from __future__ import annotations

import os
from typing import Any

from ..comm import Comm
from ..engines._store import meet
from ..group import init
from .backend import SkyphosBackend

__all__ = ["create"]

_KEY = "skyphos"


def create(options: Any, backend_options: Any = None) -> SkyphosBackend:
    """The backend of one process group; ``torch.distributed`` calls it.

    Parameters
    ----------
    options : DistributedBackendOptions
        The group's store, rank, size and time-out.
    backend_options
        What a caller passed as ``pg_options``: a mapping of further arguments of :func:`skyphos.init`.
    """
    rank, size, seconds = options.group_rank, options.group_size, options.timeout.total_seconds()
    comm = _meet(options.store, rank, size, seconds, dict(backend_options or {}))
    return SkyphosBackend(comm)


def _meet(store: Any, rank: int, size: int, seconds: float, settings: dict[str, Any]) -> Comm:
    """Join the group whose ranks share this store."""
    if size == 1:
        return init(rank=0, world_size=1, timeout=seconds, **settings)
    env = os.environ
    master = (env.get("MASTER_ADDR") or "127.0.0.1", int(env.get("MASTER_PORT") or 0))
    one_host = env.get("LOCAL_WORLD_SIZE") == env.get("WORLD_SIZE", "")
    address, token, listen_fd = meet(store, _KEY, rank, (*master, one_host), seconds)
    return init(
        rank=rank,
        world_size=size,
        rendezvous=address,
        token=token,
        transport="tcp",
        timeout=seconds,
        _listen_fd=listen_fd,
        **settings,
    )
