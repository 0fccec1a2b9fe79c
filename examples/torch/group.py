"""The process group of an example, for any launcher."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist

import skyphos as sky

__all__ = ["Place", "group"]


@dataclass(frozen=True)
class Place:
    """The place of this process in the group."""

    rank: int
    size: int
    local_rank: int


@contextmanager
def group(backend: str) -> Iterator[Place]:
    """Join the group that torchrun or ``skyphos run`` started; a process that neither started is a group of one."""
    if backend == "skyphos":
        import skyphos.torch  # noqa: F401  PyTorch before 2.15 learns the name from it
    if "RANK" in os.environ:
        dist.init_process_group(backend)
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    elif "SKYPHOS_RANK" in os.environ:
        rank, size = int(os.environ["SKYPHOS_RANK"]), int(os.environ["SKYPHOS_WORLD_SIZE"])
        dist.init_process_group(backend, store=_store(), rank=rank, world_size=size)
        local_rank = int(os.environ.get("SKYPHOS_LOCAL_RANK", "0"))
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        local_rank = 0
    try:
        yield Place(dist.get_rank(), dist.get_world_size(), local_rank)
    finally:
        # A wrapped model and its group refer to each other. Gloo's threads end with the last reference to the group;
        # threads that outlive the interpreter sometimes abort the process when they release tensors (PyTorch 2.15).
        gc.collect()
        dist.destroy_process_group()


def _store() -> dist.Store:
    """Torch's store, which ``skyphos run`` does not start: rank 0 opens one at an address that the others reach."""
    with sky.init() as comm:
        host = os.environ["SKYPHOS_RENDEZVOUS"].rpartition(":")[0]
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False) if comm.rank == 0 else None
        port = comm.broadcast(store.port if store else None)
        return store or dist.TCPStore(host, port, is_master=False)
