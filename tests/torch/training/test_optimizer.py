"""Quantised top-k SGD without ``DistributedDataParallel``: the parameters that SparCML's algorithm makes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import skyphos as sky  # noqa: E402
import skyphos.torch as st  # noqa: E402
from hook_support import top_of_buckets  # noqa: E402
from torch_ranks import Ranks  # noqa: E402

RATE, K, BUCKET = 0.05, 3, 64


def net_of(seed: int) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(30, 20, dtype=torch.float64), nn.Tanh(), nn.Linear(20, 10, dtype=torch.float64))


def loss_of(net: Any, rank: int, step: int) -> Any:
    random = torch.Generator().manual_seed(100 * step + rank)
    return (net(torch.randn(4, 30, generator=random, dtype=torch.float64)) ** 2).mean()


def algorithm_2(net: Any, size: int, steps: int) -> None:
    """acc = e + a g; e = acc - TopK(acc); v = v - sum of TopK(acc)."""
    residual = [[torch.zeros(p.numel(), dtype=p.dtype) for p in net.parameters()] for _ in range(size)]
    for step in range(steps):
        sums = [torch.zeros(p.numel(), dtype=p.dtype) for p in net.parameters()]
        for rank in range(size):
            gradients = torch.autograd.grad(loss_of(net, rank, step), list(net.parameters()))
            for place, gradient in enumerate(gradients):
                acc = residual[rank][place] + RATE * gradient.reshape(-1)
                sent = top_of_buckets(acc, K, BUCKET) if len(acc) >= 15 else acc
                residual[rank][place] = acc - sent
                sums[place] += sent
        with torch.no_grad():
            for parameter, total in zip(net.parameters(), sums, strict=True):
                parameter.sub_(total.reshape(parameter.shape))


def follows_algorithm_2(named: bool) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    net, alone = net_of(rank), net_of(0)  # the optimizer gives all ranks the parameters of rank 0
    compression = st.TopK(k=K, bucket=BUCKET, levels=1, dense_below=15)
    params = net.named_parameters() if named else net.parameters()
    optimizer = st.DistributedOptimizer(params, lr=RATE, compression=compression)
    for step in range(8):
        optimizer.zero_grad()
        loss_of(net, rank, step).backward()
        optimizer.step()
    algorithm_2(alone, size, 8)
    for (name, value), found in zip(alone.named_parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")
    if named:
        assert set(optimizer.state_dict()["compression"]["residual"]) == {
            name for name, one in net.named_parameters() if one.numel() >= 15
        }


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("named", [False, True])
def test_parameters_are_those_of_algorithm_2(ranks: Callable[[int], Ranks], size: int, named: bool) -> None:
    ranks(size).run(follows_algorithm_2, named)


def resumes() -> None:
    rank = dist.get_rank()

    def fresh() -> tuple[Any, Any]:
        net = net_of(0)
        how = st.TopK(k=K, bucket=BUCKET, levels=1, dense_below=15, algorithm="allgather")
        return net, st.DistributedOptimizer(net.named_parameters(), lr=RATE, compression=how)

    def train(net: Any, optimizer: Any, steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            loss_of(net, rank, step).backward()
            optimizer.step(lambda: 0.0)

    net, optimizer = fresh()
    train(net, optimizer, range(3))
    state, weights = optimizer.state_dict(), {name: value.clone() for name, value in net.state_dict().items()}
    train(net, optimizer, range(3, 6))
    again, other = fresh()
    again.load_state_dict(weights)
    other.load_state_dict(state)
    train(again, other, range(3, 6))
    for name, value in net.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_resumes(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(resumes)


def fails() -> str:
    net = net_of(0)
    optimizer = st.DistributedOptimizer(net.named_parameters(), lr=RATE)
    loss_of(net, 0, 0).backward()
    if dist.get_rank() == 1:
        net[2].weight.grad[1, 2] = float("nan")
    try:
        optimizer.step()
    except Exception as error:
        dist.barrier()
        return str(error)
    return "nothing"


def test_values_that_are_not_finite(ranks: Callable[[int], Ranks]) -> None:
    said = ranks(3).run(fails)
    assert all("2.weight" in one and "rank 1" in one for one in said), said


def more_parameters() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    a, b = (nn.Parameter(torch.randn(8)) for _ in range(2))
    optimizer = st.DistributedOptimizer([("a", a)], lr=RATE)
    optimizer.add_param_group({"params": [("b", b)]})
    a.grad, b.grad = torch.ones(8), torch.ones(8) * rank
    optimizer.step()
    for one in (a, b):
        everywhere = [torch.empty(8) for _ in range(size)]
        dist.all_gather(everywhere, one.detach())
        assert all(torch.equal(other, everywhere[0]) for other in everywhere)
    with pytest.raises(sky.Mismatch, match=r"rank 1 has c of shape \(2,\)"):
        optimizer.add_param_group({"params": [("c", nn.Parameter(torch.zeros(1 + rank)))]})


def test_parameters_that_come_later(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(more_parameters)


def sparse_gradient() -> None:
    words = nn.Embedding(5, 3, sparse=True)
    optimizer = st.DistributedOptimizer(words.named_parameters(), lr=RATE)
    words(torch.tensor([1])).sum().backward()
    with pytest.raises(sky.errors.BadInput, match="weight has a sparse gradient"):
        optimizer.step()


def test_sparse_gradients(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(sparse_gradient)


def test_settings() -> None:
    with pytest.raises(ValueError, match="rate"):
        st.DistributedOptimizer([nn.Parameter(torch.zeros(2))], lr=0.0)


def overflows_on_one_rank() -> None:
    """A step with an infinite gradient on one rank is skipped on all, with a scaler as without one."""
    rank, size, bad = dist.get_rank(), dist.get_world_size(), 1

    def train(scaler: Any) -> Any:
        net = net_of(3)
        topk = st.TopK(k=K, bucket=BUCKET, levels=1, dense_below=0, nonfinite="skip")
        optimizer = st.DistributedOptimizer(net.named_parameters(), lr=RATE, compression=topk)
        for step in range(4):
            optimizer.zero_grad()
            loss = loss_of(net, rank, step)
            (loss if scaler is None else scaler.scale(loss)).backward()
            if step == bad and rank == size - 1:
                net[0].weight.grad[0, 0] = float("inf")
            before = [one.detach().clone() for one in net.parameters()]
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            same = [torch.equal(old, new) for old, new in zip(before, net.parameters(), strict=True)]
            assert same == [step == bad] * len(same), (step, same)
        return net

    plain, scaled = train(None), train(torch.amp.GradScaler("cpu", init_scale=2.0**8))
    for ours, theirs in zip(scaled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_grad_scaler(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(overflows_on_one_rank)


def refused_states() -> None:
    def made() -> Any:
        topk = st.TopK(k=K, bucket=BUCKET, levels=1, dense_below=0)
        return st.DistributedOptimizer(net_of(1).named_parameters(), lr=RATE, compression=topk)

    optimizer, other = made(), made()
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="state_dict"):
            copied(optimizer)
    with pytest.raises(sky.errors.BadInput, match="not a state of a DistributedOptimizer"):
        optimizer.load_state_dict(torch.optim.SGD(net_of(1).parameters(), lr=0.1).state_dict())
    for parameter in other.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    other.step()
    # A state with other parameter groups or settings is refused, and changes nothing.
    saved = other.state_dict()
    for wrong in (saved | {"param_groups": []}, saved | {"compression": saved["compression"] | {"steps": -1}}):
        given = copy.deepcopy(wrong)
        for group in given["param_groups"]:
            group["lr"] = 7.0
        with pytest.raises(ValueError):
            optimizer.load_state_dict(given)
        assert optimizer.param_groups[0]["lr"] == RATE
        assert optimizer.state_dict()["compression"]["residual"] == {} and optimizer.compression.steps == 0
    optimizer.load_state_dict(saved)
    assert optimizer.compression.steps == 1


def test_states_and_copies(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(refused_states)
