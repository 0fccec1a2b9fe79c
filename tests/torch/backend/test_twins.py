"""Twins of PyTorch's own tests of a CPU backend, through the public calls: many calls at once, sparse sums of growing
index sets, and PyTorch's own communication hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from torch_ranks import Ranks  # noqa: E402


def me() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def many_at_once(count: int) -> None:
    """Several calls of each kind under way, waited for from the last to the first."""
    rank, size = me()
    sums = [torch.tensor([float(i + rank)]) for i in range(count)]
    works = [dist.all_reduce(x, async_op=True) for x in sums]
    roots = [torch.tensor([float(i * size + rank)]) for i in range(count)]
    works += [dist.broadcast(x, i % size, async_op=True) for i, x in enumerate(roots)]
    all_of = [[torch.zeros(1) for _ in range(size)] for _ in range(count)]
    works += [dist.all_gather(out, torch.tensor([float(i + rank)]), async_op=True) for i, out in enumerate(all_of)]
    to_one = [torch.tensor([float(i + rank)]) for i in range(count)]
    works += [dist.reduce(x, i % size, async_op=True) for i, x in enumerate(to_one)]
    for work in reversed(works):
        work.wait()
    total = size * (size - 1) / 2
    for i in range(count):
        assert sums[i].item() == i * size + total
        assert roots[i].item() == i * size + i % size
        assert [x.item() for x in all_of[i]] == [i + r for r in range(size)]
        assert to_one[i].item() == (i * size + total if i % size == rank else i + rank)


@pytest.mark.parametrize("size", [2, 4])
def test_many_at_once(ranks: Callable[[int], Ranks], size: int) -> None:
    ranks(size).run(many_at_once, 300)


def growing(rank: int, size: int, sparse: int, dense: int) -> Any:
    """Ones of rank r: at indices 0 to r of the first sparse dimension, and at index 0 of the other sparse ones."""
    indices = torch.cat([torch.arange(rank + 1)[None], torch.zeros(sparse - 1, rank + 1, dtype=torch.int64)])
    shape = [size] * sparse + [2] * dense
    return torch.sparse_coo_tensor(indices, torch.ones(rank + 1, *[2] * dense), shape, check_invariants=True)


def sparse_sums(sparse: int, dense: int) -> None:
    rank, size = me()
    want = sum(growing(r, size, sparse, dense).to_dense() for r in range(size))
    mine = growing(rank, size, sparse, dense)
    dist.all_reduce(mine)
    assert torch.equal(mine.to_dense(), want)
    # Repeated indices, in a call under way beside one with a dense tensor.
    twice = growing(rank, size, sparse, dense) + growing(rank, size, sparse, dense)
    beside = torch.ones(5)
    works = [dist.all_reduce(twice, async_op=True), dist.all_reduce(beside, async_op=True)]
    (received,) = works[0].get_future().wait()
    works[1].wait()
    assert (
        received.is_sparse
        and torch.equal(received.to_dense(), 2 * want)
        and torch.equal(beside, torch.full((5,), 1.0 * size))
    )
    # 32-bit indices; rank 0 has none.
    empty = torch.sparse_coo_tensor(
        torch.zeros(sparse, 0, dtype=torch.int32), torch.ones(0, *[2] * dense), want.shape, check_invariants=True
    )
    mine = growing(rank, size, sparse, dense)
    narrow = torch.sparse_coo_tensor(mine._indices().to(torch.int32), mine._values(), mine.shape, check_invariants=True)
    some = empty if rank == 0 else narrow
    dist.all_reduce(some)
    assert torch.equal(some.to_dense(), want - growing(0, size, sparse, dense).to_dense())


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("dims", [(1, 0), (1, 1), (2, 0), (2, 2), (3, 1)], ids=str)
def test_sparse_sums(ranks: Callable[[int], Ranks], size: int, dims: tuple[int, int]) -> None:
    ranks(size).run(sparse_sums, *dims)


def mixed_layouts() -> None:
    """A sparse tensor on one rank and a dense one on another: an error on both, and the group is usable."""
    rank, size = me()
    tensor = torch.eye(4) if rank else torch.eye(4).to_sparse()
    with pytest.raises(Exception, match="rank"):
        dist.all_reduce(tensor)
    x = torch.ones(2)
    dist.all_reduce(x)
    assert x.tolist() == [size, size]


def test_mixed_layouts(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(mixed_layouts)


def gradients_of(hook: str) -> None:
    """One of PyTorch's hooks over this backend, or one that chains futures, gives the mean gradient."""
    rank, size = me()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 5))
    model = DistributedDataParallel(net)
    if hook == "power_sgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=8, start_powerSGD_iter=2, min_compression_rate=1
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook == "chained":

        def halved(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
            return future.then(lambda done: done.value()[0] / size)

        halved.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
        model.register_comm_hook(None, halved)
    else:
        model.register_comm_hook(None, getattr(default_hooks, hook))

    def loss_of(source: int, step: int, module: Any) -> Any:
        x = torch.randn(6, 30, generator=torch.Generator().manual_seed(10 * step + source))
        return (module(x) ** 2).mean()

    for step in range(3):
        net.zero_grad()
        loss_of(rank, step, model).backward()
        for parameter in net.parameters():
            theirs = sum(torch.autograd.grad(loss_of(source, step, net), parameter)[0] for source in range(size)) / size
            close = 0.3 if hook == "power_sgd" else 0.02 if "compress" in hook else 1e-5
            assert (parameter.grad - theirs).norm() <= close * theirs.norm() + 1e-6


@pytest.mark.parametrize("hook", ["allreduce_hook", "fp16_compress_hook", "bf16_compress_hook", "chained", "power_sgd"])
def test_hooks_of_torch(ranks: Callable[[int], Ranks], hook: str) -> None:
    ranks(3).run(gradients_of, hook)


def failing_hook() -> None:
    """The error of a hook's future is raised by backward, and the next model trains."""
    rank, size = me()

    def failing(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        def fail(_: Any) -> Any:
            raise RuntimeError("on purpose")

        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(fail)

    failing.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    model = DistributedDataParallel(nn.Linear(3, 2))
    model.register_comm_hook(None, failing)
    with pytest.raises(RuntimeError, match="on purpose"):
        model(torch.ones(1, 3)).sum().backward()
    fresh = DistributedDataParallel(nn.Linear(3, 2))
    fresh(torch.full((1, 3), float(rank))).sum().backward()
    assert torch.allclose(fresh.module.weight.grad, torch.full((2, 3), (size - 1) / 2))


def test_failing_hook(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(failing_hook)
