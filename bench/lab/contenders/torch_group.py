"""The one Gloo process group of a rank, shared by the contenders that use it."""

from __future__ import annotations

from datetime import timedelta
from importlib.util import find_spec
from typing import Any

from .base import Contender, Place


def join(place: Place) -> Any:
    """`torch.distributed`, its group joined on the first call."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{place.addresses[0]}:{place.ports[1]}",
            rank=place.rank,
            world_size=place.size,
            timeout=timedelta(seconds=600),
        )
    return dist


class OverGloo(Contender):
    """A contender that uses `torch.distributed`."""

    def missing(self) -> str | None:
        return "torch is not installed: `make lab` installs it" if find_spec("torch") is None else None

    def setup(self, place: Place) -> None:
        self.place = place
        self.dist = join(place)
        ops = self.dist.ReduceOp
        self.op = {"sum": ops.SUM, "min": ops.MIN, "max": ops.MAX}[place.op]

    def settle(self) -> None:
        self.dist.barrier()

    def close(self) -> None:
        if self.dist.is_initialized():
            self.dist.destroy_process_group()
