"""Rendezvous of a process group's ranks, through torch's store.

A group of some ranks of the default group shares its connections and needs no rendezvous.
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

#: The default group's backend, by its time-out in seconds.
_default: dict[float, weakref.ref[SkyphosBackend]] = {}


def create(options: Any, backend_options: Any = None) -> SkyphosBackend:
    """Make the backend of a process group. ``torch.distributed`` calls it.

    Parameters
    ----------
    options : DistributedBackendOptions
        The group's store, rank, size and time-out.
    backend_options
        The caller's ``pg_options``: a mapping of further arguments of :func:`skyphos.init`.
    """
    rank, size, seconds = options.group_rank, options.group_size, options.timeout.total_seconds()
    settings, ranks = dict(backend_options or {}), list(options.global_ranks_in_group)
    if ranks and not settings and (comm := _part_of_default(ranks, seconds, options.group_id)) is not None:
        return SkyphosBackend(comm)
    backend = SkyphosBackend(_meet(options.store, rank, size, seconds, settings))
    if not ranks:
        _default.clear()
        _default[seconds] = weakref.ref(backend)
    return backend


def meet_through(name: str, rank: int, size: int, seconds: float) -> Comm:
    """The comm of a process group of another backend. Collective: its ranks pass the same name and time-out."""
    store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
    return _meet(store, rank, size, seconds, {})


def _part_of_default(ranks: list[int], seconds: float, name: str) -> Comm | None:
    """A comm over the default group's connections, or None if that has another backend or time-out."""
    reference = _default.get(seconds)
    default = None if reference is None else reference()
    if default is None or default.comm._native.closed:
        return None
    return default.comm._derived(default.comm._native.group_of(ranks, group_name(name)))


def _meet(store: Any, rank: int, size: int, seconds: float, settings: dict[str, Any]) -> Comm:
    """Join the group of the ranks that share this store."""
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
