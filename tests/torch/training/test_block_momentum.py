"""Block momentum, against the paper's formula in NumPy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import skyphos as sky  # noqa: E402
from skyphos.torch.training.block_momentum import block_momentum  # noqa: E402
from torch_ranks import Ranks  # noqa: E402

EVERY, MOMENTUM, RATE, STEP = 3, 0.75, 0.9, 0.1


def gradient(rank: int, step: int, w: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Gradient of a rank's own loss at its parameters."""
    return (rank + 1) * w - np.linspace(-1.0, 1.0, w.size) * (step + 1)


def oracle(size: int, steps: int, nesterov: bool) -> list[npt.NDArray[Any]]:
    """The parameters of each rank after ``steps`` steps."""
    start = np.zeros(5)
    model, delta = start.copy(), np.zeros(5)
    own = [start.copy() for _ in range(size)]
    for step in range(steps):
        own = [w - STEP * gradient(rank, step, w) for rank, w in enumerate(own)]
        if (step + 1) % EVERY == 0:
            delta = MOMENTUM * delta + RATE * (np.mean(own, axis=0) - start)
            model = model + delta
            start = model + MOMENTUM * delta if nesterov else model.copy()
            own = [start.copy() for _ in range(size)]
    return own


def stepping(parameters: list[Any], optimizer: Any, steps: range) -> None:
    """Steps of one rank, whose parameters are parts of one vector."""
    for step in steps:
        w = torch.cat([one.detach().reshape(-1) for one in parameters]).double().numpy()
        g = torch.from_numpy(gradient(dist.get_rank(), step, w))
        for one, part in zip(parameters, g.split([one.numel() for one in parameters]), strict=True):
            one.grad = part.view(one.shape).to(one.dtype)
        optimizer.step()


def follows_the_formula(nesterov: bool) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtypes in ((torch.float64, torch.float64), (torch.float32, torch.float64), (torch.bfloat16, torch.float32)):
        exact = dtypes[0] == torch.float64
        # All ranks start with the values of rank 0.
        parameters = [
            nn.Parameter(torch.full(shape, float(rank), dtype=dtype))
            for shape, dtype in zip([(2, 2), (1,)], dtypes, strict=True)
        ]
        optimizer = torch.optim.SGD(parameters, lr=STEP)
        blocks = block_momentum(optimizer, every=EVERY, momentum=MOMENTUM, lr=RATE, nesterov=nesterov)
        for begin, end in ((0, 2), (2, 3), (3, 7), (7, 9)):
            stepping(parameters, optimizer, range(begin, end))
            found = torch.cat([one.detach().reshape(-1).double() for one in parameters]).numpy()
            np.testing.assert_allclose(
                found, oracle(size, end, nesterov)[rank], rtol=1e-12 if exact else 0.1, atol=1e-12 if exact else 0.1
            )
        blocks.remove()


def saves_and_ends() -> None:
    """A state saved within a block continues; ``synchronize`` ends a block early; after removal there are no blocks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    w = nn.Parameter(torch.zeros(5, dtype=torch.float64))
    optimizer = torch.optim.SGD([w], lr=STEP)
    settings: dict[str, Any] = {"every": EVERY, "momentum": MOMENTUM, "lr": RATE, "nesterov": True}
    blocks = block_momentum(optimizer, **settings)
    stepping([w], optimizer, range(5))
    saved, values = copy.deepcopy(blocks.state_dict()), w.detach().clone()
    blocks.remove()
    stepping([w], optimizer, range(5, 7))
    again = block_momentum(optimizer, **settings)
    with torch.no_grad():
        w.copy_(values)
    again.load_state_dict(saved)
    stepping([w], optimizer, range(5, 7))
    np.testing.assert_allclose(w.detach(), oracle(size, 7, True)[rank], rtol=1e-12)
    again.synchronize()
    ended = w.detach().clone()
    again.synchronize()
    assert torch.equal(w.detach(), ended)
    everywhere = [torch.empty(5, dtype=torch.float64) for _ in range(size)]
    dist.all_gather(everywhere, ended)
    assert all(torch.equal(one, ended) for one in everywhere)
    with pytest.raises(sky.errors.BadInput, match="of other parameters"):
        again.load_state_dict(again.state_dict() | {"parts": []})


def plain_averages() -> None:
    """Without momentum, parameters become their mean over ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    w = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([w], lr=1.0)
    block_momentum(optimizer, every=1, momentum=0.0, process_group=dist.new_group(backend="gloo"))
    w.grad = torch.tensor([-float(rank)])
    optimizer.step()
    assert w.item() == pytest.approx((size - 1) / 2)


def refusals() -> None:
    bad = sky.errors.BadInput
    w = nn.Parameter(torch.zeros(1 + dist.get_rank()))
    optimizer = torch.optim.SGD([w], lr=1.0)
    for wrong in ({"every": 0}, {"momentum": 1.0}, {"momentum": -0.1}, {"lr": 0.0}):
        with pytest.raises(bad, match=next(iter(wrong))):
            block_momentum(optimizer, **{"every": 1, "momentum": 0.5, **wrong})
    with pytest.raises(
        sky.errors.Mismatch,
        match=r"rank 1 has parameter 0 of shape \(2,\) and torch.float32, and rank 0 parameter 0 of shape \(1,\)",
    ):
        block_momentum(optimizer, every=1, momentum=0.5)


def more_parameters() -> None:
    w, later = (nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = torch.optim.SGD([w], lr=1.0)
    blocks = block_momentum(optimizer, every=1, momentum=0.0)
    if dist.get_rank() == 1:
        optimizer.add_param_group({"params": [later]})
    w.grad = torch.ones(2)
    with pytest.raises(sky.errors.BadInput, match="the optimizer has 2 parameters, and had 1"):
        optimizer.step()
    blocks.remove()


def test_parameters_that_come_later(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(more_parameters)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("nesterov", [False, True])
def test_formula(ranks: Callable[[int], Ranks], size: int, nesterov: bool) -> None:
    ranks(size).run(follows_the_formula, nesterov)


def test_states(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(saves_and_ends)


def test_averages(ranks: Callable[[int], Ranks]) -> None:
    ranks(3).run(plain_averages)


def test_refusals(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(refusals)


def other_states() -> None:
    def made(every: int, lr: float = 1.0) -> tuple[Any, Any]:
        weight = nn.Parameter(torch.zeros(3))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        weight.grad = torch.ones(3)
        return optimizer, block_momentum(optimizer, every=every, momentum=0.5, lr=lr)

    optimizer, blocks = made(8, 0.25)
    for _ in range(5):
        optimizer.step()
    saved = blocks.state_dict()
    _, four = made(4)
    _, eight = made(8)
    for state, says in [
        (saved, "'every': 8"),
        (saved | {"every": 4}, "after 5 steps of a block of 4"),
        (saved | {"every": 4, "steps": -2}, "after -2 steps"),
        ({}, "not a state of block_momentum"),
        (None, "not a state of block_momentum"),
    ]:
        with pytest.raises(sky.errors.BadInput, match=says):
            four.load_state_dict(state)
    eight.load_state_dict(saved)
    assert (eight.lr, eight.momentum, eight.state_dict()["steps"]) == (0.25, 0.5, 5)
    for each in (blocks, four, eight):
        each.remove()


def test_other_states(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(other_states)
