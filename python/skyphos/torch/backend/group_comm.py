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

#: The comms of process groups of other backends.
_comms: weakref.WeakKeyDictionary[Any, Comm] = weakref.WeakKeyDictionary()


def comm_of(process_group: Any = None) -> Comm:
    """The :class:`skyphos.Comm` of a torch process group. The first call for a group is collective.

    Parameters
    ----------
    process_group : ProcessGroup, optional
        None: the default one. A group of the backend skyphos has a comm already. The ranks of another backend (gloo,
        nccl) meet through torch's store, once.

    Returns
    -------
    Comm
        The same ranks, numbered alike. The process group owns it: do not close it.

    Raises
    ------
    BadInput
        There is no process group, or this process is not in it.

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
    comm = _comms.get(group)
    if comm is None or comm._native.closed:
        name, seconds = f"skyphos of {group.group_name}", _time_out_of(group)
        comm = meet_through(name, dist.get_rank(group), dist.get_world_size(group), seconds)
        _comms[group] = comm
    return comm


def check_group(process_group: Any) -> None:
    """Refuse values that are no process group.

    ``new_group`` returns a number on ranks that are not in the group. It passes here, and is refused when it is used.
    """
    if not isinstance(process_group, dist.ProcessGroup | int | None):
        raise BadInput(
            f"process_group must be what torch.distributed.new_group returns, or None, not {process_group!r}"
        )


def group_of(requested: Any, wrapped: Any) -> Any:
    """The process group in which a model's gradients are reduced: the requested one, or else its DDP wrapper's.

    Raises
    ------
    BadInput
        The two have different ranks.
    """
    if wrapped is None:
        return requested
    group = dist.group.WORLD if requested is None else requested
    if isinstance(group, int) or dist.get_rank(group) < 0:
        return requested
    ranks, wrapped_ranks = (sorted(dist.get_process_group_ranks(one)) for one in (group, wrapped))
    if ranks == wrapped_ranks:
        return requested
    if requested is None:
        return wrapped
    raise BadInput(f"process_group has ranks {ranks}, and the model's DistributedDataParallel {wrapped_ranks}")


def _time_out_of(group: Any) -> float:
    """The time-out of the group's backends, in seconds; the shortest if they differ."""
    backends: list[Any] = [_unwrapped(group._get_backend(device)) for device in group._device_types]
    limits = [getattr(getattr(backend, "options", None), "_timeout", None) for backend in backends]
    seconds = [float(limit.total_seconds()) for limit in limits if limit is not None]
    return min(seconds, default=dist.distributed_c10d.default_pg_timeout.total_seconds())


def _unwrapped(backend: Any) -> Any:
    """The backend inside the wrapper that ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` puts around it."""
    return getattr(backend, "wrapped_pg", backend)


def _has_cpu(group: Any) -> bool:
    """Whether the group has a backend for CPU tensors."""
    return any(device.type == "cpu" for device in group._device_types)
