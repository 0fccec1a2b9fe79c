"""PyTorch's features that build on a backend: sharded models, tensors, checkpoints and optimizers, and uneven inputs.

Each test is compared with one process alone, and runs over Gloo too: what works over Gloo works over Skyphos.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import (  # noqa: E402
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from torch_ranks import Ranks  # noqa: E402

MakeRanks = Callable[[int], Ranks]
BATCH = 6


def net(seed: int = 5, width: int = 33) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(10, width), nn.Tanh(), nn.Linear(width, 7), nn.ReLU(), nn.Linear(7, 3)).double()


def batch(step: int, rank: int) -> tuple[Any, Any]:
    random = torch.Generator().manual_seed(100 * step + rank)
    return (
        torch.randn(BATCH, 10, generator=random).double(),
        torch.randint(0, 3, (BATCH,), generator=random),
    )


def alone(steps: int, ranks: int, make: Callable[[Any], Any]) -> Any:
    """The result of one process with all ranks' samples."""
    model = net()
    optimizer = make(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        x, y = (torch.cat(each) for each in zip(*(batch(step, rank) for rank in range(ranks)), strict=True))
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def train(model: Any, optimizer: Any, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        x, y = batch(step, dist.get_rank())
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, lr=0.05)


def assert_like(state: Any, expected: Any) -> None:
    """A state of plain tensors or DTensors against a model's."""
    for name, want in expected.state_dict().items():
        have = state[name]
        have = have.full_tensor() if isinstance(have, DTensor) else have
        torch.testing.assert_close(have, want, rtol=1e-10, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}")


# -- Sharded models.


def fully_sharded(reshard: bool) -> None:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = net()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh)
    train(model, adam(model.parameters()), range(4))
    assert_like(model.state_dict(), alone(4, dist.get_world_size(), adam))


def hybrid_sharded() -> None:
    """Two groups of ranks are replicas of each other; each shards the model over its ranks."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicas", "shards"))
    model = fully_shard(net(), mesh=mesh)
    train(model, adam(model.parameters()), range(3))
    assert_like(model.state_dict(), alone(3, dist.get_world_size(), adam))


def flat_sharded() -> None:
    """The older ``FullyShardedDataParallel``."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, StateDictType

    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        model = FullyShardedDataParallel(
            net(), sharding_strategy=strategy, device_id=torch.device("cpu"), use_orig_params=True
        )
        train(model, adam(model.parameters()), range(3))
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            state = model.state_dict()
        assert_like(state, alone(3, dist.get_world_size(), adam))


# -- Tensors.


def sharded_tensors() -> None:
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(1)
    for shape in ((12, 8), (5, 3), (1, 7)):  # even shards, uneven ones, ranks with none
        whole = torch.randn(shape)
        for dim in (0, 1):
            sharded = distribute_tensor(whole, mesh, [Shard(dim)])
            assert torch.equal(sharded.full_tensor(), whole)
            other = sharded.redistribute(mesh, [Shard(1 - dim)])
            assert torch.equal(other.full_tensor(), whole)
            product = sharded @ distribute_tensor(whole.T.contiguous(), mesh, [Shard(1 - dim)])
            torch.testing.assert_close(product.full_tensor(), whole @ whole.T)
            torch.testing.assert_close(sharded.sum().full_tensor(), whole.sum())
            if shape[dim] > (size - 1) * -(-shape[dim] // size):  # torch has no maximum of an empty shard
                assert torch.equal(sharded.max().full_tensor(), whole.max())
        partial = DTensor.from_local(whole * (dist.get_rank() + 1), mesh, [Partial()])
        scaled = whole * sum(range(1, size + 1))
        torch.testing.assert_close(partial.redistribute(mesh, [Replicate()]).to_local(), scaled)
        torch.testing.assert_close(partial.redistribute(mesh, [Shard(0)]).full_tensor(), scaled)


def on_a_grid() -> None:
    """Tensor-parallel layers on one axis of a mesh of two, batches on the other."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("data", "model"))
    model = net(width=32)
    parallelize_module(model, mesh["model"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x, y = batch(0, 0)
    nn.functional.cross_entropy(model(x), y).backward()
    reference = net(width=32)
    nn.functional.cross_entropy(reference(x), y).backward()
    for have, want in zip(model.parameters(), reference.parameters(), strict=True):
        gradient = have.grad.full_tensor() if isinstance(have.grad, DTensor) else have.grad
        torch.testing.assert_close(gradient, want.grad)


# -- Checkpoints.


def checkpointed(folder: str, how: str) -> None:
    """Training that is saved from shards and loaded continues as without saving."""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    model = fully_shard(net(), mesh=mesh)
    optimizer = adam(model.parameters())
    train(model, optimizer, range(2))
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "note": f"rank {dist.get_rank()} is one of {size}"}
    if how == "save":
        dcp.save(state, checkpoint_id=folder)
    else:
        kind = dcp.state_dict_saver.AsyncCheckpointerType(how)
        dcp.async_save(state, checkpoint_id=folder, async_checkpointer_type=kind).result(timeout=60)
    dist.barrier()
    fresh = fully_shard(net(seed=9), mesh=mesh)
    again = adam(fresh.parameters())
    weights, moments = get_state_dict(fresh, again)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    set_state_dict(fresh, again, model_state_dict=weights, optim_state_dict=moments)
    train(fresh, again, range(2, 4))
    assert_like(fresh.state_dict(), alone(4, size, adam))


def resharded(folder: str) -> None:
    """The state of a plain model is loaded into shards."""
    from torch.distributed.fsdp import fully_shard

    if dist.get_rank() == 0:
        dcp.save(net().state_dict(), checkpoint_id=folder, no_dist=True)
    dist.barrier()
    model = fully_shard(net(seed=9), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    state = model.state_dict()
    dcp.load(state, checkpoint_id=folder)
    assert_like(state, net())


# -- Optimizers that share their state, and ranks whose inputs end at different moments.


def shared_optimizer(overlap: bool) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(net(), gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, overlap_with_ddp=overlap, lr=0.05
    )
    if overlap:
        model.register_comm_hook(None, hook_with_zero_step(allreduce_hook, model, optimizer))
    # With overlap the optimizer only learns the buckets in its first two steps.
    train(model, optimizer, range(4))
    if not overlap:
        optimizer.consolidate_state_dict(to=0)
        assert dist.get_rank() or len(optimizer.state_dict()["state"]) == 6
        assert_like(model.module.state_dict(), alone(4, dist.get_world_size(), adam))
    first = [torch.empty_like(one) for one in model.parameters()]
    for mine, theirs in zip(model.parameters(), first, strict=True):
        theirs.copy_(mine.detach())
        dist.broadcast(theirs, 0)
        assert torch.equal(theirs, mine)


def uneven_inputs(divide: bool) -> None:
    """Each rank has a batch more than the one before it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(net())
    with model.join(divide_by_initial_world_size=divide):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), range(2 + rank))
    reference = net()
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(1 + size):
        plain.zero_grad()
        active = [other for other in range(size) if step < 2 + other]
        for other in active:
            x, y = batch(step, other)
            (nn.functional.cross_entropy(reference(x), y) / (size if divide else len(active))).backward()
        plain.step()
    assert_like(model.module.state_dict(), reference)


def shared_optimizer_of_uneven_inputs() -> dict[str, Any]:
    from torch.distributed.algorithms.join import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
    with Join([model, optimizer]):
        train(model, optimizer, range(2 + dist.get_rank()))
    return {name: value.numpy() for name, value in model.module.state_dict().items()}


# -- The tests; most of them run over both backends.


@pytest.fixture(scope="module", params=["gloo", "skyphos"])
def backend_ranks(request: pytest.FixtureRequest) -> Iterator[MakeRanks]:
    """A function that makes ranks of a backend, which live until the last test with it; ranks may have children."""
    made: dict[int, Ranks] = {}

    def make(size: int) -> Ranks:
        if size not in made or not all(process.is_alive() for process in made[size].processes):
            made[size] = Ranks(size, request.param, daemon=False)
        return made[size]

    yield make
    for one in made.values():
        one.close()


@pytest.mark.parametrize("reshard", [True, False])
def test_fully_shard(backend_ranks: MakeRanks, reshard: bool) -> None:
    for size in (2, 3):
        backend_ranks(size).run(fully_sharded, reshard)


def test_hybrid_shards(backend_ranks: MakeRanks) -> None:
    backend_ranks(4).run(hybrid_sharded)


def test_flat_shards(backend_ranks: MakeRanks) -> None:
    backend_ranks(3).run(flat_sharded)


@pytest.mark.parametrize("size", [2, 3])
def test_sharded_tensors(backend_ranks: MakeRanks, size: int) -> None:
    backend_ranks(size).run(sharded_tensors)


def test_tensor_parallel(backend_ranks: MakeRanks) -> None:
    backend_ranks(4).run(on_a_grid)


@pytest.mark.parametrize("how", ["save", "thread", "process"])
def test_checkpoints(backend_ranks: MakeRanks, how: str, tmp_path: Path) -> None:
    backend_ranks(3).run(checkpointed, str(tmp_path / "saved"), how, timeout=120)


def test_resharding(backend_ranks: MakeRanks, tmp_path: Path) -> None:
    backend_ranks(3).run(resharded, str(tmp_path / "saved"))


def test_zero_redundancy(backend_ranks: MakeRanks) -> None:
    backend_ranks(3).run(shared_optimizer, False)


def test_zero_redundancy_that_overlaps(ranks: MakeRanks) -> None:
    """Only over Skyphos, because PyTorch refuses this for Gloo."""
    ranks(3).run(shared_optimizer, True)


@pytest.mark.parametrize("divide", [True, False])
def test_uneven_inputs(backend_ranks: MakeRanks, divide: bool) -> None:
    backend_ranks(3).run(uneven_inputs, divide)


def test_zero_redundancy_with_uneven_inputs(ranks: MakeRanks) -> None:
    """PyTorch alone defines how a rank without batches takes part, so results are compared with those over Gloo."""
    gloo = Ranks(3, "gloo")
    try:
        expected = gloo.run(shared_optimizer_of_uneven_inputs)
    finally:
        gloo.close()
    for have, want in zip(ranks(3).run(shared_optimizer_of_uneven_inputs), expected, strict=True):
        assert have.keys() == want.keys()
        for name, value in want.items():
            np.testing.assert_allclose(have[name], value, rtol=1e-10, atol=1e-12)
