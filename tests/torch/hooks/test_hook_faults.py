"""Errors of hooks: late ranks, states that do not fit, ranks and settings that differ, failed steps."""

from __future__ import annotations

import copy
import io
import os
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import skyphos as sky  # noqa: E402
import skyphos.torch as st  # noqa: E402
from fault_support import said_by  # noqa: E402
from hook_support import Net, group_of, loss_of, samples, wrapped  # noqa: E402
from skyphos.planning import Topology  # noqa: E402
from skyphos.torch.hooks.layout import Layer  # noqa: E402
from skyphos.torch.hooks.residual_store import ResidualStore  # noqa: E402
from torch_ranks import Ranks  # noqa: E402

MakeRanks = Callable[[int], Ranks]


# -- A rank that stands still.


def stands_still(how: str) -> str:
    rank = dist.get_rank()
    backend = "gloo" if how == "gloo" else "skyphos"
    group = dist.new_group(backend=backend, timeout=timedelta(seconds=2))
    net = nn.Linear(64, 64, bias=False)
    step: Callable[[], Any]
    if how in ("optimizer", "gloo"):
        state = st.TopK(levels=1, process_group=group)
        optimizer = st.DistributedOptimizer(net.parameters(), lr=0.1, compression=state)

        def step() -> None:
            net(torch.ones(2, 64)).sum().backward()
            optimizer.step()
    elif how == "coalescing":

        def step() -> None:
            with dist.distributed_c10d._coalescing_manager(group):
                for _ in range(2):
                    dist.all_reduce(torch.ones(3), group=group)
    else:
        model = DistributedDataParallel(net, process_group=group)
        is_qsgd = how == "qsgd"
        state = (st.QSGD if is_qsgd else st.TopK)(levels=1, process_group=group)
        model.register_comm_hook(state, st.qsgd_hook if is_qsgd else st.topk_hook)

        def step() -> None:
            model(torch.ones(2, 64)).sum().backward()

    step()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait([f"late {how}"])  # rank 1 waits here, and makes no call
        return "waited"
    said = said_by(step)
    store.set(f"late {how}", "over")
    return said


@pytest.mark.parametrize("how", ["topk", "qsgd", "optimizer", "coalescing", "gloo"])
def test_a_stopped_rank_is_named(how: str) -> None:
    group = Ranks(2)
    try:
        said, waited = group.run(stands_still, how, timeout=30.0)
        assert "rank 1 did not come" in said and "2.0 s" in said and waited == "waited", said
    finally:
        group.kill()


def lost_between_levels() -> str:
    """Rank 3 is lost: ranks of the other host get PeerLost too."""
    rank = dist.get_rank()
    group = group_of([0, 0, 1, 1])
    state = st.TopK(process_group=group, dense_below=0)
    net = nn.Linear(64, 64, bias=False)
    optimizer = st.DistributedOptimizer(net.parameters(), lr=0.1, compression=state)
    for step in range(3):
        net(torch.ones(2, 64)).sum().backward()
        if rank == 3 and step == 2:
            os._exit(3)
        said = said_by(optimizer.step)
        if said != "nothing":
            return f"step {step}: {said}"
    return "nothing"


def test_a_lost_rank_on_two_levels() -> None:
    group = Ranks(4)
    try:
        said = group.run_but(3, lost_between_levels)
        assert all(one.startswith("step 2: PeerLost") and "rank 3" in one for one in said), said
    finally:
        group.kill()


def lost_in(what: str) -> str:
    """Rank 1 is lost when the others make the third call."""
    rank = dist.get_rank()
    net = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if what == "block momentum":
        st.block_momentum(optimizer, every=2, momentum=0.5)

    def two_steps() -> None:
        for _ in range(2):
            net(torch.ones(2, 64)).sum().backward()
            optimizer.step()

    calls: dict[str, Callable[[], Any]] = {
        "dense": lambda: dist.all_reduce(torch.ones(100_000)),
        "sparse": lambda: dist.all_reduce(torch.eye(300).to_sparse(), async_op=True).wait(),
        "block momentum": two_steps,
    }
    for step in range(3):
        if rank == 1 and step == 2:
            os._exit(3)
        said = said_by(calls[what])
        if said != "nothing":
            return f"step {step}: {said}"
    return "nothing"


@pytest.mark.parametrize("what", ["dense", "sparse", "block momentum"])
def test_a_lost_rank_is_named(what: str) -> None:
    group = Ranks(3)
    try:
        said = group.run_but(1, lost_in, what)
        assert all(one.startswith("step 2: PeerLost") and "rank 1" in one for one in said), said
    finally:
        group.kill()


# -- States that are saved and loaded.


class Crossed(nn.Module):
    """Layers are used in another order than they are made, so DDP reorders its buckets after a step."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(48, 20, dtype=torch.float64)
        self.b = nn.Linear(60, 48, dtype=torch.float64)
        self.c = nn.Linear(20, 60, dtype=torch.float64)

    def forward(self, x: Any) -> Any:
        return self.a(torch.tanh(self.b(torch.tanh(self.c(x)))))


def resumes_anywhere(hosts: list[int]) -> None:
    """Values sent before saving and after loading, and the residuals, add up to all gradients."""
    rank, size, group = dist.get_rank(), dist.get_world_size(), group_of(hosts)
    units = len(set(hosts))
    sent: dict[str, Any] = {}
    total: dict[str, Any] = {}

    def fresh() -> tuple[Any, Any]:
        torch.manual_seed(1)
        state = st.TopK(k=3, bucket=64, levels=2, dense_below=50, process_group=group)
        model = DistributedDataParallel(Crossed(), process_group=group)
        model.register_comm_hook(state, st.topk_hook)
        return model, state

    def train(model: Any, steps: range) -> None:
        for step in steps:
            for source in range(size):
                loss = (model.module(samples(source, step)) ** 2).mean()
                gradients = torch.autograd.grad(loss, list(model.parameters()))
                for (name, _), gradient in zip(model.module.named_parameters(), gradients, strict=True):
                    total[name] = total.get(name, 0.0) + gradient.reshape(-1) / size
            model.zero_grad()
            (model(samples(rank, step)) ** 2).mean().backward()
            with torch.no_grad():
                for name, parameter in model.module.named_parameters():
                    sent[name] = sent.get(name, 0.0) + parameter.grad.reshape(-1)
                    parameter.sub_(0.1 * parameter.grad)

    def held(state: Any) -> list[Any]:
        everyone: list[Any] = [None] * size
        dist.all_gather_object(everyone, state.state_dict()["residual"])
        values = sum(len(values) for one in everyone for some in one.values() for _, values in some)
        compressed = sum(p.numel() for p in Crossed().parameters() if p.numel() >= 50)
        assert values == compressed * units, values  # each value once a host
        return everyone

    model, state = fresh()
    train(model, range(4))
    held(state)
    again, other = fresh()
    other.load_state_dict(state.state_dict())
    again.module.load_state_dict(model.module.state_dict())
    train(again, range(4, 9))
    for one in held(other):
        for name, some in one.items():
            for start, values in some:
                sent[name][start : start + len(values)] += values / units
    for name, value in total.items():
        torch.testing.assert_close(sent[name], value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("hosts", [[0, 0, 1, 1], [0, 1, 1, 1]], ids=str)
def test_a_state_fits_any_order_of_buckets(ranks: MakeRanks, hosts: list[int]) -> None:
    ranks(4).run(resumes_anywhere, hosts)


def unnamed() -> None:
    """Two groups of parameters without names and of the same shape, so that only their order tells them apart."""

    def make(values: list[Any]) -> tuple[list[Any], Any]:
        some = [nn.Parameter(value.clone()) for value in values]
        groups = [{"params": [one]} for one in some]
        return some, st.DistributedOptimizer(groups, lr=1.0, compression=st.TopK(k=1, levels=1))

    def step(some: list[Any], optimizer: Any) -> None:
        for number, one in enumerate(some):
            one.grad = torch.full((64, 64), 10.0**number)
        optimizer.step()

    first, optimizer = make([torch.zeros(64, 64)] * 2)
    step(first, optimizer)
    state = optimizer.state_dict()
    assert len(state["compression"]["residual"]) == 2
    second, other = make([one.detach() for one in first])
    other.load_state_dict(state)
    step(first, optimizer)
    step(second, other)
    assert all(map(torch.equal, first, second))


def test_parameters_without_names(ranks: MakeRanks) -> None:
    ranks(2).run(unnamed)


def loads(what: str) -> str:
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = wrapped(Net(torch.float32), None)
    state = st.TopK(k=3, levels=1, dense_below=100)
    model.register_comm_hook(state, st.topk_hook)
    loss_of(model, samples(rank, 0, torch.float32)).backward()
    saved = state.state_dict()
    if rank == 1:
        ((start, values),) = saved["residual"]["first.weight"]
        bad: dict[str, Any] = {
            "too long": (start, torch.zeros(5000)),
            "late": (1190, values[:20]),
            "negative": (-1, values),
            "whole numbers": (0, torch.zeros(1200, dtype=torch.int64)),
            "square": (0, values.reshape(40, 30)),
            "list": (0, [1.0, 2.0]),
            "nan": (0, torch.full((1200,), float("nan"))),
        }
        if what in bad:
            saved["residual"]["first.weight"] = [bad[what]]
        if what == "steps":
            saved["steps"] = -3
        if what == "other steps":
            saved["steps"] = 17
    said = said_by(lambda: state.load_state_dict(saved))
    if what not in ("too long", "late", "other steps"):
        return said
    said = said_by(lambda: loss_of(model, samples(rank, 1, torch.float32)).backward())
    dist.barrier()
    return said


@pytest.mark.parametrize("what", ["negative", "whole numbers", "square", "list", "nan", "steps"])
def test_invalid_states_are_refused(ranks: MakeRanks, what: str) -> None:
    said = ranks(2).run(loads, what)
    assert said[1].startswith("BadInput: a state"), said


@pytest.mark.parametrize("what", ["too long", "late", "other steps"])
def test_a_state_that_does_not_fit(ranks: MakeRanks, what: str) -> None:
    said = ranks(2).run(loads, what)
    known = "17 steps done" if what == "other steps" else "values of first.weight from index"
    assert all(known in one for one in said), said


def goes_on(of_rank_0: bool) -> str:
    """Each rank loads its own state, or all load that of rank 0, as with scripts in which only rank 0 saves."""
    rank = dist.get_rank()

    def step(state: st.TopK, number: int) -> None:
        torch.manual_seed(1)
        model = wrapped(Net(torch.float32), None)
        model.register_comm_hook(state, st.topk_hook)
        loss_of(model, samples(rank, number, torch.float32)).backward()

    state = st.TopK(k=3, levels=1, dense_below=100)
    step(state, 0)
    saved = [state.state_dict()]
    if of_rank_0:
        dist.broadcast_object_list(saved, 0)
    state = st.TopK(k=3, levels=1, dense_below=100)
    state.load_state_dict(saved[0])
    assert state.state_dict()["owner"] == [0 if of_rank_0 else rank, dist.get_world_size(), None]
    said = said_by(lambda: step(state, 1))
    dist.barrier()
    return said


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_saved_state_continues(ranks: MakeRanks, size: int) -> None:
    assert set(ranks(size).run(goes_on, False)) == {"nothing"}


def test_a_state_of_another_rank(ranks: MakeRanks) -> None:
    for said in ranks(2).run(goes_on, True):
        assert "saved by rank 0 of 2, on rank 1 of 2" in said


def test_a_state_of_other_ranks() -> None:
    """A smaller group would lose the residuals of the ranks that it lacks."""
    piece = {"weight": [(0, torch.ones(3))]}
    store = ResidualStore()
    store.load({"residual": piece, "velocity": {}, "owner": [0, 2, None]})
    layers = [Layer("weight", 0, 3, 1)]
    assert "rank 0 of 2, on rank 0 of 1" in str(store.problem(layers, [0, 1, None], compressed=True))
    assert "on hosts of [[0, 1]]" in str(store.problem(layers, [0, 2, [[0, 1]]], compressed=True))
    assert store.problem(layers, [0, 2, None], compressed=True) is None
    store.load({"residual": piece, "velocity": {}, "owner": None})
    assert store.problem(layers, [0, 1, None], compressed=True) is None
    for wrong in ([0, 2], "here", [0, 1, 5]):
        with pytest.raises((TypeError, ValueError)):
            store.load({"residual": piece, "velocity": {}, "owner": wrong})


def test_states_can_be_saved_and_not_copied() -> None:
    for state in (st.QSGD(bits=8), st.TopK(k={"a.*": 2, "*": 4})):
        file = io.BytesIO()
        torch.save(state.state_dict(), file)
        file.seek(0)
        state.load_state_dict(torch.load(file, weights_only=True))
        for copied in (copy.deepcopy, copy.copy, pickle.dumps):
            with pytest.raises(TypeError, match="state_dict"):
                copied(state)


# -- Values that are not finite.


def blamed(hosts: list[int], culprit: int) -> str:
    """The rank with the NaN is named, not the one that compresses its share, and no other value is lost."""
    rank, size, group = dist.get_rank(), dist.get_world_size(), group_of(hosts)
    torch.manual_seed(1)
    net = Net()
    state = st.TopK(k=3, bucket=128, dense_below=100, levels=2, process_group=group)
    model = wrapped(net, group)
    model.register_comm_hook(state, st.topk_hook)
    # The NaNs are in one row: if the gradient were added before it is checked, that row's residuals would be lost.
    poison = torch.ones(40, 60).index_fill(0, torch.tensor([3]), float("nan")).double()
    net.second.weight.register_hook(lambda g: g * poison if rank == culprit and step == 2 else g)
    sent, total = torch.zeros(40 * 60).double(), torch.zeros(40 * 60).double()
    units = len(set(hosts))
    caught = "nothing"
    for step in range(5):
        net.zero_grad()
        said = said_by(lambda step=step: loss_of(model, samples(rank, step)).backward())
        assert (said == "nothing") == (step != 2)
        if step == 2:
            caught = said
        else:
            sent += net.second.weight.grad.reshape(-1)
        for source in range(size):
            # The culprit's host has lost its gradient of that step; the other hosts have theirs in their residuals.
            if step != 2 or hosts[source] != hosts[culprit]:
                total += gradient_of(loss_of(net, samples(source, step)), net.second.weight) / size
    held: list[Any] = [None] * size
    dist.all_gather_object(held, state.state_dict()["residual"])
    for one in held:
        for start, values in one.get("second.weight", ()):
            sent[start : start + len(values)] += values / units
    finite = torch.isfinite(poison.reshape(-1))
    torch.testing.assert_close(sent[finite], total[finite])
    return caught


def gradient_of(loss: Any, weight: Any) -> Any:
    """The gradient, without the hooks of the parameter."""
    hooks, weight._backward_hooks = weight._backward_hooks, None
    try:
        return torch.autograd.grad(loss, weight)[0].reshape(-1)
    finally:
        weight._backward_hooks = hooks


@pytest.mark.parametrize("culprit", [0, 1, 2, 3])
@pytest.mark.parametrize("hosts", [[0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 2, 3]], ids=str)
def test_the_rank_with_the_nan_is_named(ranks: MakeRanks, hosts: list[int], culprit: int) -> None:
    said = ranks(4).run(blamed, hosts, culprit)
    assert all(f"rank {culprit}: the gradient of second.weight is nan" in one for one in said), said
    assert all(one.count(f"rank {culprit}: ") == 1 for one in said), said


# -- Ranks that differ.


def differs(what: str) -> str:
    """Rank 1 has another setting. ``what`` occurs in the text of the error."""
    rank = dist.get_rank()
    deviates = rank == 1
    settings: dict[str, Any] = {"levels": 1}
    if deviates:
        settings |= {
            "levels": {"levels": 2},
            "nonfinite": {"nonfinite": "skip"},
            "algorithm": {"algorithm": "allgather"},
            "grad_scaler": {"grad_scaler": torch.amp.GradScaler("cpu")},
            "pattern": {"layers": ["first.*", "unused.*"]},
            "of 1200": {"dense_below": 2000},
        }.get(what, {})
    if what == "grad_scaler":
        settings["nonfinite"] = "pass"
    if what == "pattern" and not deviates:
        settings["layers"] = ["first.*"]
    hook: Any = st.topk_hook
    state: Any = st.TopK(3, 128, **settings) if what != "TopK" or deviates else st.QSGD(**settings)
    if isinstance(state, st.QSGD):
        hook = st.qsgd_hook
    if what == "where":
        state, hook = st.QSGD(levels=1, where="input" if deviates else "both"), st.qsgd_hook
    model = wrapped(Net(torch.float32), None)
    model.register_comm_hook(state, hook)
    said = said_by(lambda: loss_of(model, samples(rank, 0, torch.float32)).backward())
    dist.barrier()
    return said


@pytest.mark.parametrize(
    "what", ["levels", "nonfinite", "algorithm", "grad_scaler", "pattern", "of 1200", "TopK", "where"]
)
def test_hooks_that_differ(ranks: MakeRanks, what: str) -> None:
    said = ranks(3).run(differs, what)
    assert all("rank 1 has" in one and what in one for one in said), said


def other_parameters() -> None:
    rank = dist.get_rank()
    net = nn.Linear(8, 8 + (rank == 1))
    before = [parameter.detach().clone() for parameter in net.parameters()]
    with pytest.raises(sky.Mismatch, match=r"rank 1 has .*\(9, 8\).* and rank 0 .*\(8, 8\)"):
        st.DistributedOptimizer(net.named_parameters(), lr=0.1)
    assert all(map(torch.equal, before, net.parameters()))
    for settings in ({"momentum": 0.1 + 0.1 * rank}, {"lr": 1.0 + rank}, {"every": 1 + rank}, {"nesterov": rank == 1}):
        alike = nn.Linear(8, 8)
        (name,) = settings
        with pytest.raises(sky.Mismatch, match=f"rank 1 has {name}="):
            optimizer = torch.optim.SGD(alike.parameters(), lr=0.1)
            st.block_momentum(optimizer, **({"every": 1, "momentum": 0.5} | settings))  # type: ignore[arg-type]
    for arguments in ({"op": "sum" if rank else "mean"}, {"nonfinite": "skip" if rank else "raise"}):
        (name,) = arguments
        with pytest.raises(sky.Mismatch, match=f"rank 1 has {name}="):
            st.outer_product(nn.Linear(200, 200), layers="", **arguments)  # type: ignore[arg-type]


def test_other_calls_that_differ(ranks: MakeRanks) -> None:
    ranks(2).run(other_parameters)


# -- Wrong use.


def used_by_two_models() -> None:
    state = st.TopK(levels=1, dense_below=0)
    models = [DistributedDataParallel(nn.Linear(30, 30)) for _ in range(2)]
    for model in models:
        model.register_comm_hook(state, st.topk_hook)
    models[0](torch.ones(1, 30)).sum().backward()
    assert "two models have a weight" in said_by(lambda: models[1](torch.ones(1, 30)).sum().backward())
    # A model may replace one that was deleted.
    models.clear()
    del model
    later = DistributedDataParallel(nn.Linear(30, 30))
    later.register_comm_hook(state, st.topk_hook)
    later(torch.ones(1, 30)).sum().backward()


def test_one_state_for_two_models(ranks: MakeRanks) -> None:
    ranks(2).run(used_by_two_models)


def shared_by_some() -> None:
    """A model that only some ranks share: the hook uses the model's group, and refuses a state with another group."""
    rank = dist.get_rank()
    pair = dist.new_group([0, 2])
    torch.manual_seed(rank)
    if rank != 1:
        model = DistributedDataParallel(nn.Linear(30, 30, bias=False), process_group=pair)
        model.register_comm_hook(st.TopK(k=512, levels=1), st.topk_hook)
        model(torch.full((1, 30), 1.0 + rank)).sum().backward()
        torch.testing.assert_close(model.module.weight.grad, torch.full((30, 30), 2.0))  # the mean of 1 and 3
        other = DistributedDataParallel(nn.Linear(30, 30, bias=False), process_group=pair)
        other.register_comm_hook(st.TopK(process_group=dist.group.WORLD), st.topk_hook)
        assert "process_group has ranks [0, 1, 2]" in said_by(lambda: other(torch.ones(1, 30)).sum().backward())
    dist.barrier()


def test_a_model_that_some_ranks_share(ranks: MakeRanks) -> None:
    ranks(3).run(shared_by_some)


def wrapped_again(elsewhere: bool) -> str:
    rank = dist.get_rank()
    groups = [dist.new_group([one]) for one in range(dist.get_world_size())]
    net = nn.Linear(30, 30, bias=False)
    state = st.TopK(k=512, levels=1)
    said = "nothing"
    for group in (None, groups[rank] if elsewhere else None):
        net.zero_grad()
        model = DistributedDataParallel(net, process_group=group)
        model.register_comm_hook(state, st.topk_hook)
        said = said_by(lambda model=model: model(torch.full((1, 30), 1.0 + rank)).sum().backward())
        if group is None:
            torch.testing.assert_close(net.weight.grad, torch.full((30, 30), 1.5))
        del model
    dist.barrier()
    return said


def test_a_model_that_is_wrapped_again(ranks: MakeRanks) -> None:
    assert ranks(2).run(wrapped_again, False) == ["nothing"] * 2
    for rank, said in enumerate(ranks(2).run(wrapped_again, True)):
        assert f"among ranks [0, 1], and its model is wrapped for ranks [{rank}] now" in said


def wrongly_used(what: str) -> str:
    net: Any = Net(torch.complex64 if what == "complex" else torch.float32)
    state: Any = st.TopK(levels=1)
    hook: Any = st.topk_hook
    if what == "other hook":
        state = st.QSGD()
    if what == "layers":
        state = st.TopK(levels=1, layers=["firts.*", "second.*"])
    if what == "k":
        state = st.TopK({"second.*": 4, "lats.*": 2}, levels=1)
    model = wrapped(net, None)
    model.register_comm_hook(state, hook)
    x = torch.ones(2, 20, dtype=next(net.parameters()).dtype)
    said = said_by(lambda: model(x).abs().sum().backward())
    dist.barrier()
    return said


@pytest.mark.parametrize(
    ("what", "known"),
    [
        ("complex", "(torch.complex64): the hooks take float16"),
        ("other hook", "takes a TopK as its state"),
        ("layers", "'firts.*'"),
        ("k", "'lats.*'"),
    ],
)
def test_wrong_use(ranks: MakeRanks, what: str, known: str) -> None:
    said = ranks(2).run(wrongly_used, what)
    assert all(known in one for one in said), said


@pytest.mark.parametrize(
    "settings",
    [
        {"k": 2.5},
        {"k": "4"},
        {"k": None},
        {"k": {3: 4}},
        {"bucket": 512.5},
        {"warmup": 1.5},
        {"dense_below": "many"},
        {"algorithm": "magic"},
        {"algorithm": "dense"},
        {"layers": 5},
        {"layers": [5]},
        {"grad_scaler": 2.0},
        {"process_group": "all"},
        {"momentum_correction": "0.9"},
        {"seed": 1.5},
        {"bits": "4"},
    ],
    ids=str,
)
def test_settings_of_other_kinds(settings: dict[str, Any]) -> None:
    with pytest.raises(sky.BadInput):
        st.TopK(**settings)


def test_compressions_of_other_kinds() -> None:
    with pytest.raises(sky.BadInput, match="compression must be"):
        st.DistributedOptimizer([nn.Parameter(torch.ones(3))], lr=0.1, compression=5)  # type: ignore[arg-type]
    with pytest.raises(sky.BadInput, match="learning rate"):
        st.DistributedOptimizer([nn.Parameter(torch.ones(3))], lr="0.1")  # type: ignore[arg-type]


def other_kinds() -> None:
    one = torch.ones(1)
    for call in (dist.reduce, dist.broadcast, lambda tensor, root: dist.gather(tensor, None, root)):
        with pytest.raises(sky.BadInput, match="root=-1 is not a rank"):
            call(one, -1)
    with pytest.raises(sky.BadInput, match="rows must be"):
        st.outer_product(nn.Linear(200, 200), rows=-5)
    with pytest.raises(sky.BadInput, match="complex"):
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3, dtype=torch.complex64))], lr=0.1)
        st.block_momentum(optimizer, every=1, momentum=0.5)


def test_arguments_of_other_kinds(ranks: MakeRanks) -> None:
    ranks(2).run(other_kinds)


# -- Tensors that differ.


def tensors_differ(what: str) -> str:
    rank = dist.get_rank()
    kind = torch.int32 if rank == 1 else torch.float32
    mine = torch.arange(6).to(kind)
    calls: dict[str, Callable[[], Any]] = {
        "sparse": lambda: dist.all_reduce(
            torch.sparse_coo_tensor(torch.tensor([[1], [2]]), torch.ones(1), (4, 6) if rank else (6, 4))
        ),
        "broadcast": lambda: dist.broadcast(mine, 0),
        "all_gather": lambda: dist.all_gather([torch.empty_like(mine) for _ in range(2)], mine),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(torch.empty(12, dtype=kind), mine),
        "gather": lambda: dist.gather(mine, [torch.empty_like(mine) for _ in range(2)] if rank == 0 else None),
        "scatter": lambda: dist.scatter(mine, [mine.clone() for _ in range(2)] if rank == 0 else None),
        "send": lambda: dist.send(mine, 1) if rank == 0 else dist.recv(mine, 0),
    }
    said = said_by(calls[what])
    dist.barrier()
    return said


@pytest.mark.parametrize(
    "what", ["sparse", "broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter", "send"]
)
def test_tensors_that_differ(ranks: MakeRanks, what: str) -> None:
    said = ranks(2).run(tensors_differ, what)
    known = "with shape=(6, 4)" if what == "sparse" else "float32"
    assert known in said[1], said
    assert what in ("broadcast", "send") or known in said[0], said


def warm_on_two_levels(hosts: list[int]) -> None:
    """The steps of the warm-up send fewer and fewer values, and each rank sends the same number."""
    group = dist.new_group(backend="skyphos", pg_options={"topology": Topology.of(hosts)})
    net = nn.Linear(64, 64, bias=False)
    model = DistributedDataParallel(net, process_group=group)
    state = st.TopK(k=1, bucket=4096, warmup=3, dense_below=0, levels=2, process_group=group, feedback=False)
    model.register_comm_hook(state, st.topk_hook)
    counts = []
    for _ in range(5):
        net.zero_grad()
        # The same gradient everywhere: all hosts choose the same values.
        (net(torch.ones(1, 64)) * torch.arange(1.0, 65.0)).sum().backward()
        net.zero_grad()
        (model(torch.ones(1, 64)) * torch.arange(1.0, 65.0)).sum().backward()
        counts.append(int((net.weight.grad != 0).sum()))
    shares = hosts.count(0) if len({hosts.count(host) for host in hosts}) == 1 else 1
    assert counts == [shares * count for count in (512, 64, 8, 1, 1)], counts


@pytest.mark.parametrize("hosts", [[0, 1], [0, 0, 1]], ids=str)
def test_warm_up_on_two_levels(ranks: MakeRanks, hosts: list[int]) -> None:
    for _ in range(3):
        ranks(len(hosts)).run(warm_on_two_levels, hosts)


# -- Parameters that cannot be trained.


def odd_parameters() -> None:
    rank = dist.get_rank()
    whole = torch.tensor([2**24 + 1, 5])
    for make in (
        lambda some: st.block_momentum(torch.optim.SGD(some, lr=0.1), every=1, momentum=0.0),
        lambda some: st.DistributedOptimizer(some, lr=0.1),
    ):
        net = nn.Linear(4, 4)
        net.q = nn.Parameter(whole.clone(), requires_grad=False)
        made: Any = make(net.named_parameters())
        net(torch.full((1, 4), 1.0 + rank)).sum().backward()
        (made if isinstance(made, st.DistributedOptimizer) else made._optimizer).step()
        assert torch.equal(net.q, whole)
        sums = [torch.empty(()) for _ in range(2)]
        dist.all_gather(sums, net.weight.detach().sum())
        assert sums[0] == sums[1]
    for call in (
        lambda: st.DistributedOptimizer(nn.Linear(4, 4, device="meta").parameters(), lr=0.1),
        lambda: st.outer_product(nn.Linear(400, 400, device="meta")),
        lambda: st.block_momentum(
            torch.optim.SGD(nn.Linear(4, 4, device="meta").parameters(), lr=0.1), every=1, momentum=0.5
        ),
    ):
        with pytest.raises(sky.BadInput, match="has no values, on the device meta"):
            call()
    with pytest.raises(sky.BadInput, match="layers of real numbers, and second has complex ones"):
        st.outer_product(Net(torch.complex64), layers="second")


def test_odd_parameters(ranks: MakeRanks) -> None:
    ranks(2).run(odd_parameters)


def block_with_nan() -> None:
    rank = dist.get_rank()
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.named_parameters(), lr=0.1)
    st.block_momentum(optimizer, every=2, momentum=0.5)
    for step in range(2):
        optimizer.zero_grad()
        net(torch.tensor([[1.0, 1.0, float("nan") if rank == 1 and step == 0 else 1.0, 1.0]])).sum().backward()
        if step == 0:
            optimizer.step()
    known = "rank 1: weight is nan at its index [0-9]+ after 2 steps of a block"
    with pytest.raises(sky.BadInput, match=known):
        optimizer.step()
    assert rank == 1 or bool(torch.isfinite(net.weight).all())


def test_a_block_with_nan(ranks: MakeRanks) -> None:
    ranks(2).run(block_with_nan)


# -- Steps that should be skipped although the program never asks about them, and a hook that one rank lacks.


def unguarded(asks: str) -> list[str]:
    """``asks``: how the program asks whether to skip a step."""
    rank = dist.get_rank()
    net = Net(torch.float32)
    model = wrapped(net, None)
    state = st.TopK(levels=1, nonfinite="skip")
    model.register_comm_hook(state, st.topk_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if asks == "guard":
        state.guard(optimizer)
    said = []
    for step in range(3):
        optimizer.zero_grad()
        factor = float("nan") if rank and step == 1 else 1.0
        x = samples(rank, step, torch.float32)
        said.append(said_by(lambda x=x, factor=factor: (factor * loss_of(model, x)).backward()))
        if said[-1] == "nothing" and (asks != "leaves_out" or not state.leaves_out()):
            optimizer.step()
    assert state.skipped == 1
    return said


@pytest.mark.parametrize("asks", ["guard", "leaves_out", "nothing"])
def test_a_step_to_skip_that_nobody_asks_about_is_an_error(ranks: MakeRanks, asks: str) -> None:
    for said in ranks(2).run(unguarded, asks):
        assert said[0] == said[2] == "nothing"
        assert ("call guard(optimizer)" in said[1]) == (asks == "nothing"), said


def hook_on_one() -> str:
    model = wrapped(Net(torch.float32), None)
    if dist.get_rank() == 0:
        model.register_comm_hook(st.TopK(levels=1), st.topk_hook)
    return said_by(lambda: loss_of(model, samples(0, 0, torch.float32)).backward())


def test_a_hook_on_one_rank(ranks: MakeRanks) -> None:
    said = ranks(2).run(hook_on_one)
    assert "rank 0 compares a TopK and more with the other ranks: do all ranks have the same hooks" in said[0], said
    assert all("rank 0 is in" in one and "rank 1 is in" in one for one in said), said


def bare_hook(held: list[Any], bucket: Any) -> Any:
    return st.topk_hook(held[0], bucket)


bare_hook.__annotations__.clear()  # DDP compares annotations with types, and these are strings


def with_a_model_of_its_own(wraps: bool) -> None:
    """DDP gets a list as the hook's state, so the caller passes the model, wrapped or not, for its names."""
    net = nn.Linear(60, 50)
    model = DistributedDataParallel(net)
    state = st.TopK(levels=1, k={"weight": 4, "bias": None}, model=model if wraps else net)
    model.register_comm_hook([state], bare_hook)
    model(torch.ones(2, 60)).sum().backward()
    assert set(state.state_dict()["residual"]) == {"weight"}


@pytest.mark.parametrize("wraps", [False, True])
def test_a_model_passed_by_the_caller(ranks: MakeRanks, wraps: bool) -> None:
    ranks(2).run(with_a_model_of_its_own, wraps)


def without_a_model() -> str:
    """The state does not know its model, so patterns of names cannot match."""
    model = DistributedDataParallel(nn.Linear(60, 50))
    model.register_comm_hook([st.TopK(levels=1, k={"weight": 4, "*": None})], bare_hook)
    return said_by(lambda: model(torch.ones(2, 60)).sum().backward())


def test_names_without_a_model(ranks: MakeRanks) -> None:
    for said in ranks(2).run(without_a_model):
        assert "'weight', which no parameter's name fits" in said and "pass model=" in said, said


def wrapped_twice() -> str:
    """Two wrappers of one model exist at once, both with the hook, for different ranks."""
    groups = [dist.new_group([one]) for one in range(dist.get_world_size())]
    net = nn.Linear(30, 30, bias=False)
    state = st.TopK(k=512, levels=1)
    models = [DistributedDataParallel(net, process_group=group) for group in (None, groups[dist.get_rank()])]
    for model in models:
        model.register_comm_hook(state, st.topk_hook)
    said = said_by(lambda: models[0](torch.ones(1, 30)).sum().backward())
    dist.barrier()
    return said


def test_one_state_for_two_wrappers(ranks: MakeRanks) -> None:
    for said in ranks(2).run(wrapped_twice):
        assert "two wrappers of one model, which have different ranks" in said, said
