"""Failed and skipped steps, and saved states: sent values and residuals always add up to the sum of all gradients."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import skyphos.torch as st  # noqa: E402
from fault_support import said_by  # noqa: E402
from hook_support import group_of, wrapped  # noqa: E402
from torch_ranks import Ranks  # noqa: E402

MakeRanks = Callable[[int], Ranks]


def total_residual(state: Any, name: str, length: int) -> Any:
    """The sum of all ranks' residuals of a parameter."""
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, state.state_dict()["residual"].get(name, ()))
    total = torch.zeros(length, dtype=torch.float64)
    for pieces in everywhere:
        for start, values in pieces:
            total[start : start + len(values)] += values
    return total


def goes_back(reload_state: bool) -> None:
    """A step fails, and training continues from the state saved before it, or from the present one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    weight, gradient = nn.Parameter(torch.zeros(64).double()), torch.arange(1.0, 65.0).double()
    state = st.TopK(k=2, bucket=64, levels=1, dense_below=0)
    optimizer = st.DistributedOptimizer([("w", weight)], lr=1.0, compression=state)

    def step(poison: float = 0.0) -> str:
        weight.grad = gradient.clone()
        if rank == 1:
            weight.grad[5] += poison
        return said_by(optimizer.step)

    assert step() == "nothing"
    saved = state.state_dict()
    assert "rank 1: the gradient of w is nan at its index 5" in step(float("nan"))
    if reload_state:
        state.load_state_dict(saved)
    assert step() == "nothing" and step() == "nothing"
    got = total_residual(state, "w", 64) - weight.detach()
    # Residuals of ranks without the NaN include the failed step's gradient, unless the saved state was loaded.
    expected = (3 * size + (0 if reload_state else size - 1)) * gradient
    if not reload_state:
        got[5] = expected[5] = 0.0
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reload_state", [True, False])
def test_after_a_failed_step(ranks: MakeRanks, reload_state: bool) -> None:
    ranks(2).run(goes_back, reload_state)
    ranks(3).run(goes_back, reload_state)


def all_or_nothing(nonfinite: Any) -> None:
    """If the second of two vectors has a NaN, the step changes neither parameter."""
    rank, size = dist.get_rank(), dist.get_world_size()
    a, b = (nn.Parameter(torch.zeros(64).double()) for _ in range(2))
    state = st.TopK(k=2, bucket=64, levels=1, dense_below=0, nonfinite=nonfinite)
    groups = [{"params": [("a", a)]}, {"params": [("b", b)]}]
    optimizer = st.DistributedOptimizer(groups, lr=1.0, compression=state)
    gradient = torch.arange(1.0, 65.0).double()
    for number in range(4):
        a.grad, b.grad = gradient.clone(), gradient.clone()
        before = a.detach().clone()
        if number == 1 and rank == 1:
            b.grad[3] = float("nan")
        said = said_by(optimizer.step)
        assert (said == "nothing") == (number != 1 or nonfinite == "skip"), said
        assert torch.equal(before, a.detach()) == (number == 1)
    got = total_residual(state, "a", 64) - a.detach()
    torch.testing.assert_close(got, 4 * size * gradient, rtol=1e-12, atol=1e-12)
    assert state.skipped == (nonfinite == "skip")


@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_a_step_changes_all_vectors_of_an_optimizer_or_none(ranks: MakeRanks, nonfinite: str) -> None:
    ranks(2).run(all_or_nothing, nonfinite)


def one_bad_step(nonfinite: Any, settings: dict[str, Any], shape: tuple[int, int]) -> None:
    """One NaN costs one step, and no more."""
    rank = dist.get_rank()
    torch.manual_seed(3)
    net = nn.Linear(*shape).double()
    state = st.TopK(k=2, bucket=64, levels=1, nonfinite=nonfinite, **settings)
    model = DistributedDataParallel(net)
    model.register_comm_hook(state, st.topk_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    state.guard(optimizer)
    for number in range(5):
        optimizer.zero_grad()
        x = torch.randn(3, shape[0], generator=torch.Generator().manual_seed(10 * number + rank)).double()
        bad = number == 2
        if bad and rank == 1:
            x[0, 0] = float("nan")
        before = net.weight.detach().clone()
        said = said_by(lambda x=x: model(x).square().sum().backward())
        assert (said != "nothing") == (bad and nonfinite == "raise"), said
        if said == "nothing":
            optimizer.step()
        assert torch.equal(before, net.weight.detach()) == bad
        assert state.skipped == (nonfinite == "skip" and number >= 2)
    assert torch.isfinite(net.weight).all()


@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({"momentum_correction": 0.9}, (8, 8)),  # all layers are sent whole
        ({"momentum_correction": 0.9, "dense_below": 70}, (64, 64)),
        ({"bits": 4, "feedback": "quantised", "dense_below": 0}, (64, 64)),
    ],
    ids=["whole", "chosen", "quantised"],
)
def test_one_bad_step(ranks: MakeRanks, nonfinite: str, settings: dict[str, Any], shape: tuple[int, int]) -> None:
    ranks(2).run(one_bad_step, nonfinite, settings, shape)


class Wide(nn.Module):
    """The bucket of ``big`` is already in transfer when that of ``small`` fails."""

    def __init__(self) -> None:
        super().__init__()
        self.big = nn.Linear(64, 16_000, bias=False)
        self.small = nn.Linear(64, 64, bias=False)

    def forward(self, x: Any) -> Any:
        return self.small(x).sum() + self.big(x).sum()


def saves_directly_after_a_failure() -> None:
    """A state saved directly after a failed step includes the values that the step had sent."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Wide()
    model = DistributedDataParallel(net, bucket_cap_mb=0.0001)  # type: ignore[arg-type]
    state = st.TopK(k=64, bucket=512, levels=1, dense_below=0)
    model.register_comm_hook(state, st.topk_hook)
    poison = torch.tensor(float("nan") if rank == 1 else 1.0)
    model(torch.randn(2, 64)).backward()
    net.small.weight.register_hook(lambda g: g * poison)
    assert "small.weight" in said_by(lambda: model(torch.randn(2, 64)).backward())
    ((_, at_once),) = state.state_dict()["residual"]["big.weight"]
    state._drain()
    ((_, later),) = state.state_dict()["residual"]["big.weight"]
    assert torch.equal(at_once, later)


def test_a_state_saved_directly_after_a_failure(ranks: MakeRanks) -> None:
    ranks(2).run(saves_directly_after_a_failure)


class Long(nn.Module):
    """The last layer alone fills DDP's first bucket of 1 MB, so already the first step has several buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(20, 64, bias=False, dtype=torch.float64)
        self.b = nn.Linear(64, 64, bias=False, dtype=torch.float64)
        self.c = nn.Linear(64, 4000, bias=False, dtype=torch.float64)

    def forward(self, x: Any) -> Any:
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))


def thawed(hosts: list[int] | None, fails: bool) -> None:
    """A layer is thawed and the model wrapped again: some buckets stay, others are new.

    With ``fails`` the first step after that fails.
    """
    rank, size, group = dist.get_rank(), dist.get_world_size(), group_of(hosts)
    units = size if hosts is None else len(set(hosts))
    torch.manual_seed(1)
    net = Long()
    state = st.TopK(k=2, bucket=64, dense_below=50, levels=1 if hosts is None else 2, process_group=group)
    net.b.requires_grad_(False)
    poison = {"is": False}

    def wrap() -> Any:
        # (Without `find_unused_parameters` the first step has one bucket.)
        cap: Any = 0.0001
        model = DistributedDataParallel(net, process_group=group, bucket_cap_mb=cap, find_unused_parameters=True)
        model.register_comm_hook(state, st.topk_hook)
        return model

    def samples(of_rank: int, number: int) -> Any:
        random = torch.Generator().manual_seed(10 * number + of_rank)
        return torch.randn(3, 20, generator=random, dtype=torch.float64)

    model = wrap()
    sent = {name: torch.zeros_like(one).reshape(-1) for name, one in net.named_parameters()}
    total = {name: torch.zeros_like(one) for name, one in sent.items()}
    for number in range(4):
        if number == 2:
            del model
            gc.collect()
            net.b.requires_grad_(True)
            net.b.weight.register_hook(lambda g: g * float("nan") if poison["is"] else g)
            model = wrap()
        named = [(name, one) for name, one in net.named_parameters() if one.requires_grad]
        for other in range(size):
            gradients = torch.autograd.grad(net(samples(other, number)).square().mean(), [one for _, one in named])
            for (name, _), gradient in zip(named, gradients, strict=True):
                total[name] += gradient.reshape(-1) / size
        net.zero_grad()
        poison["is"] = fails and number == 2 and rank == 1
        x = samples(rank, number)
        said = said_by(lambda model=model, x=x: model(x).square().mean().backward())
        assert (said != "nothing") == (fails and number == 2), said
        poison["is"] = False
        if said == "nothing":
            for name, one in named:
                sent[name] += one.grad.reshape(-1)  # type: ignore[union-attr]
    held: list[Any] = [None] * size
    dist.all_gather_object(held, state.state_dict()["residual"])
    for pieces in held:
        for name, some in pieces.items():
            for start, values in some:
                sent[name][start : start + len(values)] += values / units
    # On the rank with the NaN the failed step adds nothing to the residual of that layer.
    for name in ["a.weight", "c.weight"] if fails else list(total):
        torch.testing.assert_close(sent[name], total[name], rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("fails", [False, True])
def test_layers_thawed_during_training(ranks: MakeRanks, fails: bool) -> None:
    ranks(2).run(thawed, None, fails)


def test_layers_thawed_during_training_on_two_hosts(ranks: MakeRanks) -> None:
    ranks(4).run(thawed, [0, 0, 1, 1], False)


def embedding_with_nan(nonfinite: Any) -> str:
    rank = dist.get_rank()
    net = nn.Embedding(10, 4, sparse=True)
    model = DistributedDataParallel(net)
    state = st.TopK(levels=1, nonfinite=nonfinite)
    model.register_comm_hook(state, st.topk_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    state.guard(optimizer)
    factors = torch.ones(4)
    factors[2] = float("nan") if rank == 1 else 1.0
    said = said_by(lambda: (model(torch.tensor([7, 1 + rank])) * factors).sum().backward())
    gradient = net.weight.grad
    if nonfinite == "pass":
        assert torch.isnan(gradient._values()).any()
    elif nonfinite == "skip":
        assert gradient._nnz() == 0 and state.skipped == 1
        optimizer.step()
        assert torch.isfinite(net.weight).all()
    net.weight.grad = None
    if nonfinite != "raise":
        model(torch.tensor([7, 1 + rank])).sum().backward()
        expected = torch.zeros(10, 4)
        expected[7], expected[1], expected[2] = 1.0, 0.5, 0.5
        torch.testing.assert_close(net.weight.grad.to_dense(), expected)
    return said


@pytest.mark.parametrize("nonfinite", ["raise", "skip", "pass"])
def test_nan_in_a_sparse_gradient(ranks: MakeRanks, nonfinite: str) -> None:
    for said in ranks(2).run(embedding_with_nan, nonfinite):
        if nonfinite == "raise":
            assert "rank 1: the gradient of weight is nan in its row " in said, said
        else:
            assert said == "nothing"


def residual_of_a_layer_sent_whole() -> None:
    """A state is refused if it has a residual of a layer that is now sent whole: it would never be sent."""
    made = {}
    for below in (0, 1024):
        weight = nn.Parameter(torch.zeros(64))
        state = st.TopK(k=2, bucket=64, levels=1, dense_below=below)
        made[below] = weight, state, st.DistributedOptimizer([("w", weight)], lr=1.0, compression=state)
    weight, first, optimizer = made[0]
    weight.grad = torch.arange(1.0, 65.0)
    optimizer.step()
    saved = first.state_dict()
    weight, second, optimizer = made[1024]
    second.load_state_dict(saved)
    weight.grad = torch.ones(64)
    assert "has a residual of w, which is not compressed now" in said_by(optimizer.step)
    saved["residual"].pop("w")
    second.load_state_dict(saved)
    optimizer.step()
    assert torch.equal(weight.detach(), -torch.full((64,), float(dist.get_world_size())))


def test_a_state_with_residuals_of_layers_that_are_sent_whole(ranks: MakeRanks) -> None:
    ranks(2).run(residual_of_a_layer_sent_whole)


def empty_and_other_parameters() -> None:
    """One of the parameters has no values."""
    a, b = nn.Parameter(torch.zeros(0, 3).double()), nn.Parameter(torch.zeros(64))
    state = st.TopK(k=2, bucket=64, levels=1, dense_below=0)
    optimizer = st.DistributedOptimizer([("a", a), ("b", b)], lr=1.0, compression=state)
    for _ in range(3):
        a.grad, b.grad = torch.zeros_like(a), torch.ones(64)
        optimizer.step()
    assert int(b.detach().count_nonzero()) > 0


def test_empty_parameters(ranks: MakeRanks) -> None:
    ranks(2).run(empty_and_other_parameters)


def left_out(style: str) -> None:
    """A step with a NaN: no guarded optimizer changes anything, and nothing is counted twice or lost."""
    rank, size, bad = dist.get_rank(), dist.get_world_size(), 2
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 10)).double()
    model = DistributedDataParallel(net, bucket_cap_mb=0.002)
    state = st.TopK(k=2, bucket=64, levels=1, dense_below=0, nonfinite="skip")
    model.register_comm_hook(state, st.topk_hook)
    step = 0
    if rank == size - 1:
        net[0].weight.register_hook(lambda g: g * float("nan") if step == bad else g)
    parts = [net[0], net[2]] if style == "two optimizers" else [net]
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in parts]
    for optimizer in optimizers:
        state.guard(optimizer)

    def loss_of_rank(module: Any, rank: int) -> Any:
        random = torch.Generator().manual_seed(100 * step + rank)
        return module(torch.randn(8, 20, generator=random, dtype=torch.float64)).pow(2).mean()

    def backward() -> Any:
        net.zero_grad()
        loss = loss_of_rank(model, rank)
        loss.backward()
        return loss

    weight = net[2].weight
    applied, whole = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in range(5):
        before = [one.detach().clone() for one in net.parameters()]
        for other in range(size):
            whole += torch.autograd.grad(loss_of_rank(net, other), weight)[0] / size
        if style == "closure":
            optimizers[0].step(backward)
        else:
            backward()
            for optimizer in optimizers:
                optimizer.step()
        applied += (before[2] - weight.detach()) / 0.1
        same = [torch.equal(old, new) for old, new in zip(before, net.parameters(), strict=True)]
        assert same == [step == bad] * len(same), (step, same)
    assert state.skipped == 1
    held = total_residual(state, "2.weight", weight.numel()).view_as(weight)
    torch.testing.assert_close(applied + held / size, whole)


@pytest.mark.parametrize("style", ["two optimizers", "closure"])
def test_guards(ranks: MakeRanks, style: str) -> None:
    ranks(2).run(left_out, style)


def left_out_again() -> None:
    """A bad step, then an earlier state and the same bad step again: it is left out again."""
    model = DistributedDataParallel(nn.Linear(20, 30).double())
    state = st.TopK(k=2, bucket=64, levels=1, dense_below=0, nonfinite="skip")
    model.register_comm_hook(state, st.topk_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    state.guard(optimizer)

    def changes(factor: float) -> bool:
        optimizer.zero_grad()
        before = model.module.weight.detach().clone()
        (model(torch.ones(2, 20, dtype=torch.float64)).sum() * factor).backward()
        optimizer.step()
        return not torch.equal(before, model.module.weight)

    assert changes(1.0)
    saved = state.state_dict()
    for _ in range(2):
        assert not changes(float("nan"))
        state.load_state_dict(saved)
    assert changes(1.0)


def test_a_repeated_step(ranks: MakeRanks) -> None:
    ranks(2).run(left_out_again)


def of_another_model() -> str:
    """All ranks but 0 have residuals of layers that the model lacks."""
    settings: dict[str, Any] = {"k": 2, "bucket": 64, "levels": 1, "dense_below": 0}
    torch.manual_seed(1)
    state = st.TopK(**settings)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 10)))
    model.register_comm_hook(state, st.topk_hook)
    model(torch.ones(2, 20)).pow(2).mean().backward()
    saved = state.state_dict()
    if dist.get_rank() == 0:
        del saved["residual"]["1.weight"], saved["residual"]["1.bias"]
    again = st.TopK(**settings)
    again.load_state_dict(saved)
    other = DistributedDataParallel(nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10)))
    other.register_comm_hook(again, st.topk_hook)
    try:
        other(torch.ones(2, 20)).pow(2).mean().backward()
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_a_state_of_another_model(ranks: MakeRanks) -> None:
    for said in ranks(2).run(of_another_model):
        assert "has residuals of 1." in said and "but no parameter" in said, said


def velocity_and_scale(levels: int, hosts: list[int] | None) -> None:
    """With momentum correction a changing loss scale gives the same weights as a constant one."""
    rank, group = dist.get_rank(), group_of(hosts)

    def train(scales: Callable[[int], float]) -> Any:
        torch.manual_seed(1)
        net = nn.Linear(20, 30, dtype=torch.float64)
        scaler = torch.amp.GradScaler("cpu", init_scale=scales(0))
        state = st.TopK(
            k=4, bucket=64, levels=levels, dense_below=0, momentum_correction=0.5, nonfinite="pass",
            grad_scaler=scaler, process_group=group,
        )  # fmt: skip
        model = wrapped(net, group)
        model.register_comm_hook(state, st.topk_hook)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(5):
            optimizer.zero_grad()
            random = torch.Generator().manual_seed(100 * step + rank)
            loss = model(torch.randn(4, 20, generator=random, dtype=torch.float64)).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update(scales(step + 1))
        return net.weight.detach()

    torch.testing.assert_close(train(lambda step: 2.0 ** (step % 4)), train(lambda _: 4.0))


@pytest.mark.parametrize(("levels", "hosts"), [(1, None), (2, None), (2, [0, 0, 1])], ids=str)
def test_velocity_and_scale(ranks: MakeRanks, levels: int, hosts: list[int] | None) -> None:
    ranks(3).run(velocity_and_scale, levels, hosts)


def lets_go_of_threads() -> None:
    before = threading.active_count()
    for levels in (1, 2, 1, 2):
        state = st.TopK(levels=levels)
        model = DistributedDataParallel(nn.Linear(30, 40))
        model.register_comm_hook(state, st.topk_hook)
        model(torch.ones(2, 30)).sum().backward()
        workers = (state._select_worker, state._finish_worker)
        threads = [worker._thread for worker in workers if worker._thread is not None]
        del model, state, workers
        gc.collect()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    assert threading.active_count() <= before


def test_threads_of_deleted_states_end(ranks: MakeRanks) -> None:
    ranks(2).run(lets_go_of_threads)
