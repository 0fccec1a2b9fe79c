"""``DistributedDataParallel`` over the backend trains the same model as one process with all ranks' samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from torch_ranks import Ranks  # noqa: E402


class Words(nn.Module):
    """An embedding whose gradient is sparse, and layers whose gradients are dense."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 8, sparse=True)
        self.layers = nn.Sequential(nn.Linear(8, 300), nn.Tanh(), nn.Linear(300, 3))
        self.unused = nn.Linear(4, 4)

    def forward(self, words: Any) -> Any:
        return self.layers(self.embedding(words).mean(1))


def samples(rank: int, step: int) -> tuple[Any, Any]:
    random = torch.Generator().manual_seed(50 * step + rank)
    return torch.randint(0, 100, (6, 4), generator=random), torch.randint(0, 3, (6,), generator=random)


def steps(model: Any, size: int, mine: int | None, accumulate: int = 1) -> None:
    """Three steps of SGD with the samples of one rank, or of all."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(3):
        optimizer.zero_grad()
        for part in range(accumulate):
            ranks = range(size) if mine is None else [mine]
            pairs = [samples(rank, 10 * step + part) for rank in ranks]
            words, labels = (torch.cat(each) for each in zip(*pairs, strict=True))
            loss = nn.functional.cross_entropy(model(words), labels) / accumulate
            if mine is not None and part + 1 < accumulate:
                with model.no_sync():
                    loss.backward()
            else:
                loss.backward()
        optimizer.step()


def trains_as_one(accumulate: int, options: dict[str, Any]) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1 + rank)
    ours = Words()
    ddp = DistributedDataParallel(ours, find_unused_parameters=True, **options)
    alone = Words()
    alone.load_state_dict(ours.state_dict())  # the parameters of rank 0, which DDP gave to all ranks
    steps(ddp, size, rank, accumulate)
    steps(alone, size, None, accumulate)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, msg=lambda text, name=name: f"{name}: {text}")


def joins() -> None:
    """Ranks with more batches than others go on (``join``)."""
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = DistributedDataParallel(nn.Linear(3, 1))
    with model.join():
        for _ in range(2 + rank):
            model(torch.ones(2, 3)).sum().backward()
    weights = [torch.empty(1, 3) for _ in range(dist.get_world_size())]
    dist.all_gather(weights, model.module.weight.detach())
    assert all(torch.equal(weights[0], one) for one in weights)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(
    "options", [{}, {"bucket_cap_mb": 0.001, "gradient_as_bucket_view": True}], ids=["", "small buckets"]
)
def test_training(ranks: Callable[[int], Ranks], size: int, accumulate: int, options: dict[str, Any]) -> None:
    ranks(size).run(trains_as_one, accumulate, options)


def test_uneven_batches(ranks: Callable[[int], Ranks]) -> None:
    ranks(3).run(joins)
