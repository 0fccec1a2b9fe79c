"""Models, data and wrapped modules that the tests of hooks share."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from skyphos.planning import Topology

RATE = 0.5


class Net(nn.Module):
    """Layers above and below the limit of compression, and one without gradient."""

    def __init__(self, dtype: Any = torch.float64) -> None:
        super().__init__()
        self.first = nn.Linear(20, 60, dtype=dtype)
        self.second = nn.Linear(60, 40, dtype=dtype)
        self.last = nn.Linear(40, 2, dtype=dtype)
        self.unused = nn.Linear(30, 50, dtype=dtype)

    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


def samples(rank: int, step: int, dtype: Any = torch.float64) -> Any:
    random = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(5, 20, generator=random, dtype=torch.float64).to(dtype)


def loss_of(model: Any, x: Any) -> Any:
    return (model(x) ** 2).mean() + model(x).sum() / 7


def group_of(hosts: list[int] | None) -> Any:
    """A group whose ranks are on the given hosts."""
    if hosts is None:
        return dist.group.WORLD
    return dist.new_group(backend="skyphos", pg_options={"topology": Topology.of(hosts)})


def wrapped(net: Any, group: Any, **options: Any) -> Any:
    return DistributedDataParallel(net, process_group=group, find_unused_parameters=True, **options)


def top_of_buckets(acc: Any, k: int, bucket: int) -> Any:
    """The k largest values of each bucket of a layer, which are sent; zeros elsewhere."""
    sent = torch.zeros_like(acc)
    for first in range(0, len(acc), bucket):
        part = acc[first : first + bucket]
        order = sorted(range(len(part)), key=lambda i: (-abs(part[i].item()), i))
        for i in order[:k]:
            sent[first + i] = part[i]
    return sent
