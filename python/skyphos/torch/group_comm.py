"""The :class:`skyphos.Comm` of a torch process group, whatever its backend."""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist

from ..comm import Comm
from ..errors import BadInput
from .backend import SkyphosBackend
from .meeting import meet_through

__all__ = ["comm_of"]

#: Groups of other backends whose ranks have met.
_met: weakref.WeakKeyDictionary[Any, Comm] = weakref.WeakKeyDictionary()


def comm_of(process_group: Any = None) -> Comm:
    """The group of the ranks of a torch process group. Collective, the first time.

    Parameters
    ----------
    process_group : ProcessGroup, optional
        None: the default one. Of the backend skyphos it is that backend's group; ranks of another backend (gloo, nccl)
        meet through torch's store, once.

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
    if dist.get_rank(group) < 0:
        raise BadInput("this process is not a rank of that process group")
    backend = group._get_backend(torch.device("cpu")) if _has_cpu(group) else None
    if isinstance(backend, SkyphosBackend):
        return backend.comm
    comm = _met.get(group)
    if comm is None or comm._native.closed:
        comm = meet_through(f"skyphos of {group.group_name}", dist.get_rank(group), dist.get_world_size(group))
        _met[group] = comm
    return comm


def _has_cpu(group: Any) -> bool:
    """Whether the group has a backend for tensors of the CPU."""
    return any(device.type == "cpu" for device in group._device_types)
