"""How the ranks of a process group meet: through torch's store, which all of them reach.

Groups of some ranks of the default one share its connections, and need no word between them.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

import torch.distributed as dist

from ...comm import Comm
from ...group import init
from ...launch.torch_store import meet
from .messages import group_name
from .process_group import SkyphosBackend

__all__ = ["create", "meet_through"]

_KEY = "skyphos"

#: The default group's backend, under its time-out in seconds.
_world: dict[float, weakref.ref[SkyphosBackend]] = {}


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
    settings, ranks = dict(backend_options or {}), list(options.global_ranks_in_group)
    if ranks and not settings and (comm := _of_world(ranks, seconds, options.group_id)) is not None:
        return SkyphosBackend(comm)
    backend = SkyphosBackend(_meet(options.store, rank, size, seconds, settings))
    if not ranks:
        _world.clear()
        _world[seconds] = weakref.ref(backend)
    return backend


def meet_through(name: str, rank: int, size: int, seconds: float) -> Comm:
    """Join the ranks of a process group of another backend, which pass the same name and time-out."""
    store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
    return _meet(store, rank, size, seconds, {})


def _of_world(ranks: list[int], seconds: float, name: str) -> Comm | None:
    """These ranks over the connections of the default group, where that is of this backend and waits as long."""
    found = _world.get(seconds)
    world = None if found is None else found()
    if world is None or world.comm._native.closed:
        return None
    return world.comm._derived(world.comm._native.group_of(ranks, group_name(name)))


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
