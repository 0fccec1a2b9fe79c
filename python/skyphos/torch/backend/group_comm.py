"""The :class:`skyphos.Comm` of a torch process group, whatever its backend."""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist

from ...comm import Comm
from ...errors import BadInput
from .process_group import SkyphosBackend
from .rendezvous import meet_through

__all__ = ["check_group", "comm_of", "group_of"]

#: Groups of other backends whose ranks have met.
_met: weakref.WeakKeyDictionary[Any, Comm] = weakref.WeakKeyDictionary()


def comm_of(process_group: Any = None) -> Comm:
    """The group of the ranks of a torch process group. Collective, the first time.

    Parameters
    ----------
    process_group : ProcessGroup, optional
        None: the default one. Of the backend skyphos it is that backend's group; ranks of another backend (gloo, nccl)
        meet through torch's store, once.

    Returns
    -------
    Comm
        Of the same ranks, numbered alike. It is the backend's: neither close nor free it.

    Raises
    ------
    BadInput
        There is no process group, or this process is not of it.

    Examples
    --------
    >>> import torch.distributed as dist
    >>> import skyphos.torch
    >>> store = dist.HashStore()
    >>> dist.init_process_group("skyphos", store=store, rank=0, world_size=1)
    >>> skyphos.torch.comm_of()
    Comm(rank 0 of 1, local)
    >>> dist.destroy_process_group()
    """
    if not dist.is_initialized():
        raise BadInput('there is no process group yet: call torch.distributed.init_process_group("skyphos") first')
    group = dist.group.WORLD if process_group is None else process_group
    if isinstance(group, int) or dist.get_rank(group) < 0:
        raise BadInput("this process is not a rank of that process group")
    backend = _unwrapped(group._get_backend(torch.device("cpu"))) if _has_cpu(group) else None
    if isinstance(backend, SkyphosBackend):
        return backend.comm
    comm = _met.get(group)
    if comm is None or comm._native.closed:
        name, seconds = f"skyphos of {group.group_name}", _time_out_of(group)
        comm = meet_through(name, dist.get_rank(group), dist.get_world_size(group), seconds)
        _met[group] = comm
    return comm


def check_group(process_group: Any) -> None:
    """Refuse what is no process group. (What ranks get that are not in a new one is a number, refused when used.)"""
    if not isinstance(process_group, dist.ProcessGroup | int | None):
        raise BadInput(
            f"process_group must be what torch.distributed.new_group returns, or None, not {process_group!r}"
        )


def group_of(asked: Any, model: Any) -> Any:
    """The process group in which a model's gradients are reduced: the one asked for, or else the model's.

    Raises
    ------
    BadInput
        They have other ranks.
    """
    if model is None:
        return asked
    group = dist.group.WORLD if asked is None else asked
    if isinstance(group, int) or dist.get_rank(group) < 0:
        return asked
    ranks, theirs = (sorted(dist.get_process_group_ranks(one)) for one in (group, model))
    if ranks == theirs:
        return asked
    if asked is None:
        return model
    raise BadInput(f"process_group has ranks {ranks}, and the model's DistributedDataParallel {theirs}")


def _time_out_of(group: Any) -> float:
    """Seconds that its backends wait; the shortest, if they differ."""
    backends: list[Any] = [_unwrapped(group._get_backend(device)) for device in group._device_types]
    limits = [getattr(getattr(backend, "options", None), "_timeout", None) for backend in backends]
    seconds = [float(limit.total_seconds()) for limit in limits if limit is not None]
    return min(seconds, default=dist.distributed_c10d.default_pg_timeout.total_seconds())


def _unwrapped(backend: Any) -> Any:
    """What ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` puts a wrapper around."""
    return getattr(backend, "wrapped_pg", backend)


def _has_cpu(group: Any) -> bool:
    """Whether the group has a backend for tensors of the CPU."""
    return any(device.type == "cpu" for device in group._device_types)
