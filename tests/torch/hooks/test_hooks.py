"""Communication hooks: parameters are those of the formulas, on one and two levels; errors reach all ranks."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import skyphos.torch as st  # noqa: E402
from hook_support import RATE, Net, group_of, loss_of, samples, top_of_buckets, wrapped  # noqa: E402
from torch_ranks import Ranks  # noqa: E402


def by_the_formulas(
    net: Any, units: list[list[int]], steps: int, k: Callable[[str, Any, int], int | None], momentum: float | None
) -> None:
    """SparCML, Algorithm 2, with the hosts' mean gradients, all in this process."""
    ranks = sum(map(len, units))
    residual = [{name: torch.zeros(p.numel(), dtype=p.dtype) for name, p in net.named_parameters()} for _ in units]
    velocity = [{name: torch.zeros(p.numel(), dtype=p.dtype) for name, p in net.named_parameters()} for _ in units]
    for step in range(steps):
        totals = {name: torch.zeros(p.numel(), dtype=p.dtype) for name, p in net.named_parameters()}
        for unit, members in enumerate(units):
            gradients = {name: torch.zeros(p.numel(), dtype=p.dtype) for name, p in net.named_parameters()}
            for rank in members:
                net.zero_grad()
                loss_of(net, samples(rank, step, next(net.parameters()).dtype)).backward()
                for name, parameter in net.named_parameters():
                    if parameter.grad is not None:
                        gradients[name] += parameter.grad.reshape(-1)
            for name, gradient in gradients.items():
                if not gradient.any():
                    continue
                added = gradient * (len(units) / ranks)
                if momentum is not None:
                    added = velocity[unit][name].mul_(momentum).add_(added)
                parameter = net.get_parameter(name)
                number = k(name, parameter, step)
                if number is None:
                    totals[name] += added
                    continue
                acc = residual[unit][name] + added
                sent = top_of_buckets(acc, number, 128)
                residual[unit][name] = acc - sent
                velocity[unit][name][sent != 0] = 0.0
                totals[name] += sent
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                parameter.sub_((RATE * totals[name] / len(units)).reshape(parameter.shape))


def compare(hosts: list[int] | None, levels: int, options: dict[str, Any], ddp_options: dict[str, Any]) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    group = group_of(hosts)
    torch.manual_seed(1)
    net, alone = Net(), Net()
    alone.load_state_dict(net.state_dict())
    settings = {name: value for name, value in options.items() if name != "whole"}
    state = st.TopK(bucket=128, levels=levels, dense_below=100, process_group=group, **settings)
    model = wrapped(net, group, **ddp_options)
    model.register_comm_hook(state, st.topk_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    steps = 6
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, samples(rank, step)).backward()
        optimizer.step()
    places = hosts or [0] * size
    units = [[r] for r in range(size)]
    if levels == 2:
        units = [[r for r in range(size) if places[r] == host] for host in sorted(set(places))]
    warm = options.get("warmup", 0)

    def k(name: str, parameter: Any, step: int) -> int | None:
        if parameter.numel() < 100 or (levels == 2 and len(units) == 1):
            return None
        number = options["k"]
        if isinstance(number, dict):
            number = number.get(name, number.get("*"))
        if number is None or name in options.get("whole", ()):
            return None
        if step < warm:
            return max(number, round(128 * (number / 128) ** ((step + 1) / (warm + 1))))
        return int(number)

    by_the_formulas(alone, units, steps, k, options.get("momentum_correction"))
    for name, value in alone.state_dict().items():
        found = net.state_dict()[name]
        torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}")
    assert state.steps == steps
    state.close()


def second(name: str, parameter: Any) -> bool:
    return name.startswith("second.") and parameter.shape == (40, 60)


#: Settings; ``whole``: the layers that are sent whole with them.
ONE_LEVEL = [
    {"k": 3},
    {"k": 128},
    {"k": {"first.weight": 2, "last.weight": None, "*": 5}},
    {"k": 2, "warmup": 3},
    {"k": 4, "momentum_correction": 0.7},
    {"k": 3, "layers": "s*.weight", "whole": ["first.weight"]},
    {"k": 3, "layers": ["unused.*", "first.*"], "whole": ["second.weight"]},
    {"k": 3, "layers": second, "whole": ["first.weight"]},
]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("options", ONE_LEVEL, ids=lambda options: str(options).split(" at 0x")[0])
def test_one_level(ranks: Callable[[int], Ranks], size: int, options: dict[str, Any]) -> None:
    ranks(size).run(compare, None, 1, options, {})


@pytest.mark.parametrize(
    "ddp", [{"bucket_cap_mb": 0.001}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.01}], ids=str
)
def test_small_buckets(ranks: Callable[[int], Ranks], ddp: dict[str, Any]) -> None:
    ranks(3).run(compare, None, 1, {"k": 3}, ddp)


@pytest.mark.parametrize("hosts", [[0, 0, 1], [0, 1, 1], [0, 0, 0], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("momentum", [None, 0.7])
def test_two_levels_uneven(ranks: Callable[[int], Ranks], hosts: list[int], momentum: float | None) -> None:
    """On hosts of unequal size one rank of each host compresses the host's whole sum; a single host sends nothing."""
    options = {"k": 3, "momentum_correction": momentum}
    ranks(3).run(compare, hosts, 2, options, {"bucket_cap_mb": 0.01})


def whole_shares(hosts: list[int]) -> None:
    """With k = bucket, and a share of each layer on each rank, training is dense."""
    compare(hosts, 2, {"k": 128}, {"bucket_cap_mb": 0.01})


@pytest.mark.parametrize("hosts", [[0, 0, 1, 1], [0, 1, 0, 1]], ids=str)
def test_two_levels_even(ranks: Callable[[int], Ranks], hosts: list[int]) -> None:
    ranks(4).run(whole_shares, hosts)


def nothing_is_lost(hosts: list[int]) -> None:
    """Sent values and residuals of all ranks add up to all gradients, wherever buckets are cut."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = group_of(hosts)
    torch.manual_seed(1)
    net = Net()
    state = st.TopK(k=3, bucket=128, levels=2, dense_below=100, process_group=group)
    model = wrapped(net, group, bucket_cap_mb=0.01)
    model.register_comm_hook(state, st.topk_hook)
    all_sent = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    total = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for step in range(4):
        net.zero_grad()
        loss_of(model, samples(rank, step)).backward()
        for name, parameter in net.named_parameters():
            if parameter.grad is not None:
                all_sent[name] += parameter.grad
        for source in range(size):
            theirs = torch.autograd.grad(loss_of(net, samples(source, step)), list(net.parameters()), allow_unused=True)
            for name, g in zip(total, theirs, strict=True):
                if g is not None:
                    total[name] += g / size
    held: list[Any] = [None] * size
    dist.all_gather_object(held, state.state_dict()["residual"])
    units = len(set(hosts))
    for name, sent in all_sent.items():
        flat = sent.reshape(-1).clone()
        for one in held:
            for start, values in one.get(name, ()):
                flat[start : start + len(values)] += values / units
        torch.testing.assert_close(flat.reshape(sent.shape), total[name], msg=lambda text, name=name: f"{name}: {text}")
    state.close()


@pytest.mark.parametrize("hosts", [[0, 0, 1, 1], [0, 1, 1, 1]], ids=str)
def test_nothing_is_lost(ranks: Callable[[int], Ranks], hosts: list[int]) -> None:
    ranks(4).run(nothing_is_lost, hosts)


def resumes(levels: int, hosts: list[int] | None) -> None:
    """A state that was saved and loaded continues with the same bits."""
    rank, group = dist.get_rank(), group_of(hosts)
    options = {"k": 3, "bucket": 128, "levels": levels, "dense_below": 100, "process_group": group}
    options |= {"momentum_correction": 0.5, "algorithm": "allgather"}

    def fresh() -> tuple[Any, Any]:
        torch.manual_seed(1)
        net = Net()
        state = st.TopK(**options)
        model = wrapped(net, group, bucket_cap_mb=0.01)
        model.register_comm_hook(state, st.topk_hook)
        return model, state

    def train(model: Any, steps: range) -> None:
        for step in steps:
            model.zero_grad()
            loss_of(model, samples(rank, step)).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.sub_(0.1 * parameter.grad)

    model, state = fresh()
    train(model, range(3))
    saved, weights = state.state_dict(), {name: value.clone() for name, value in model.module.state_dict().items()}
    again, other = fresh()
    other.load_state_dict(saved)
    again.module.load_state_dict(weights)
    assert other.steps == 3 and ((rank == 1 and levels == 2) or saved["residual"])
    for one in (model, again):
        train(one, range(3, 6))
    for name, value in model.module.state_dict().items():
        assert torch.equal(again.module.state_dict()[name], value), name
    with pytest.raises(ValueError, match="state is of a TopK"):
        st.TopK(k=5).load_state_dict(saved)
    with pytest.raises(ValueError, match="not a state of"):
        st.TopK(k=5).load_state_dict({})


@pytest.mark.parametrize(("levels", "hosts"), [(1, None), (2, [0, 0, 1])], ids=str)
def test_state(ranks: Callable[[int], Ranks], levels: int, hosts: list[int] | None) -> None:
    ranks(3).run(resumes, levels, hosts)


def quantised(feedback: Any) -> None:
    """With the quantisation error fed back too, no gradient is lost; ranks have the same bits."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    net = Net(torch.float32)
    model = wrapped(net, None)
    state = st.TopK(k=8, bucket=128, bits=4, feedback=feedback, levels=1, dense_below=100)
    model.register_comm_hook(state, st.topk_hook)
    sent, total = torch.zeros(60, 20), torch.zeros(60, 20)
    for step in range(5):
        net.zero_grad()
        loss_of(model, samples(rank, step, torch.float32)).backward()
        sent += net.first.weight.grad
        for source in range(size):
            total += torch.autograd.grad(loss_of(net, samples(source, step, torch.float32)), net.first.weight)[0] / size
        everyone = [torch.empty_like(sent) for _ in range(size)]
        dist.all_gather(everyone, net.first.weight.grad)
        assert all(torch.equal(one, everyone[0]) for one in everyone)
    held = [torch.empty(1200) for _ in range(size)]
    ((start, mine),) = state.state_dict()["residual"]["first.weight"]
    assert start == 0
    dist.all_gather(held, mine)
    if feedback == "quantised":
        torch.testing.assert_close(sent + sum(held).reshape(60, 20) / size, total, rtol=1e-4, atol=1e-5)
    check_bytes(state, size > 1)
    state.close()


@pytest.mark.parametrize("feedback", [True, "quantised", False])
@pytest.mark.parametrize("size", [1, 3])
def test_quantised(ranks: Callable[[int], Ranks], size: int, feedback: Any) -> None:
    ranks(size).run(quantised, feedback)


def check_bytes(state: Any, sends: bool) -> None:
    """The reported sent bytes equal those that others received, and are above 0 if there was anything to send."""
    counts = torch.tensor([state.sent_bytes, state.received_bytes])
    dist.all_reduce(counts)
    sent, received = counts.tolist()
    assert sent == received and (sent > 0) == sends, (sent, received)


def qsgd(levels: int, hosts: list[int] | None) -> None:
    rank, size, group = dist.get_rank(), dist.get_world_size(), group_of(hosts)
    torch.manual_seed(1)
    net = Net(torch.float32)
    model = wrapped(net, group)
    state = st.QSGD(bits=8, levels=levels, process_group=group)
    model.register_comm_hook(state, st.qsgd_hook)
    for step in range(3):
        net.zero_grad()
        loss_of(model, samples(rank, step, torch.float32)).backward()
        total = torch.zeros(60, 20)
        for source in range(size):
            total += torch.autograd.grad(loss_of(net, samples(source, step, torch.float32)), net.first.weight)[0] / size
        worst = (net.first.weight.grad - total).abs().max()
        assert worst < 0.03 * total.abs().max() + 1e-6, worst
    check_bytes(state, levels == 1 or hosts is not None)
    state.close()


@pytest.mark.parametrize(("levels", "hosts"), [(1, None), (2, [0, 0, 1]), (2, None)], ids=str)
def test_qsgd(ranks: Callable[[int], Ranks], levels: int, hosts: list[int] | None) -> None:
    ranks(3).run(qsgd, levels, hosts)


def poisoned(kind: str, levels: int, hosts: list[int] | None, value: float, where: str) -> str:
    """Rank 1 has a value that is not finite in step 2."""
    rank, group = dist.get_rank(), group_of(hosts)
    torch.manual_seed(1)
    net = Net(torch.float32)
    model = wrapped(net, group)
    state = st.TopK(k=3, bucket=128, levels=levels, dense_below=100, nonfinite=kind, process_group=group)
    model.register_comm_hook(state, st.topk_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    if kind == "skip":
        state.guard(optimizer)
    if rank == 1:
        bad = net.get_parameter(where)
        bad.register_hook(lambda g: g.index_fill(0, torch.tensor([0]), value) if steps == 2 else g)
    for steps in range(5):
        optimizer.zero_grad()
        before = [parameter.detach().clone() for parameter in net.parameters()]
        try:
            loss_of(model, samples(rank, steps, torch.float32)).backward()
        except Exception as error:
            assert steps == 2 and kind == "raise"
            dist.barrier()
            return str(error)
        if kind == "pass":
            odd = not bool(torch.isfinite(net.get_parameter(where).grad).all())
            assert odd == (steps == 2)
            if odd:
                optimizer.zero_grad()
        optimizer.step()
        if kind != "raise":
            same = all(map(torch.equal, before, net.parameters()))
            assert same == (kind == "skip" and steps == 2) or kind == "pass"
        assert all(torch.isfinite(parameter).all() for parameter in net.parameters())
    assert kind != "raise" and state.skipped == 1
    everyone = [torch.empty(60, 20) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, net.first.weight.detach())
    assert all(torch.equal(one, everyone[0]) for one in everyone)
    return ""


@pytest.mark.parametrize("kind", ["raise", "skip", "pass"])
@pytest.mark.parametrize(("levels", "hosts"), [(1, None), (2, [0, 0, 1]), (2, [0, 0, 0])], ids=str)
@pytest.mark.parametrize("odd", [(float("nan"), "second.weight"), (float("inf"), "last.bias")], ids=str)
def test_values_that_are_not_finite(
    ranks: Callable[[int], Ranks], kind: str, levels: int, hosts: list[int] | None, odd: tuple[float, str]
) -> None:
    value, where = odd
    said = ranks(3).run(poisoned, kind, levels, hosts, value, where)
    if kind == "raise":
        assert all(where in one and "rank" in one and str(value) in one for one in said), said


def differing(what: str) -> str:
    rank = dist.get_rank()
    net = Net(torch.float32)
    model = wrapped(net, None)
    k = 3 + (rank == 1 and what == "k")
    state = st.TopK(k=k, bucket=128, bits=4 if rank == 1 and what == "bits" else None, levels=1)
    model.register_comm_hook(state, st.topk_hook)
    try:
        loss_of(model, samples(rank, 0, torch.float32)).backward()
    except Exception as error:
        dist.barrier()
        return str(error)
    return "nothing"


@pytest.mark.parametrize("what", ["k", "bits"])
def test_ranks_that_differ(ranks: Callable[[int], Ranks], what: str) -> None:
    said = ranks(3).run(differing, what)
    assert all("rank 1 has" in one and f"{what}=" in one for one in said), said


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(500, 16, sparse=True)
        self.head = nn.Linear(16, 400)

    def forward(self, words: Any) -> Any:
        return self.head(self.embedding(words).mean(1))


def sparse_embeddings() -> None:
    """Sparse gradients are the same with and without the hook."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    net, alone = Words(), Words()
    alone.load_state_dict(net.state_dict())
    model = DistributedDataParallel(net)
    model.register_comm_hook(st.TopK(k=512, levels=1), st.topk_hook)

    def words(source: int) -> Any:
        return torch.randint(0, 500, (6, 4), generator=torch.Generator().manual_seed(source))

    model(words(rank)).sum().backward()
    for source in range(size):
        (alone(words(source)).sum() / size).backward()
    assert net.embedding.weight.grad.is_sparse
    torch.testing.assert_close(net.embedding.weight.grad.to_dense(), alone.embedding.weight.grad.to_dense())
    torch.testing.assert_close(net.head.weight.grad, alone.head.weight.grad)


def test_sparse_embeddings(ranks: Callable[[int], Ranks]) -> None:
    ranks(3).run(sparse_embeddings)


def joins_and_accumulates() -> None:
    """Uneven numbers of batches, of which some are accumulated."""
    rank = dist.get_rank()
    torch.manual_seed(3)
    net = nn.Linear(100, 30)
    model = DistributedDataParallel(net)
    state = st.TopK(k=4, levels=1)
    model.register_comm_hook(state, st.topk_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with model.join():
        for _ in range(2 + rank):
            with model.no_sync():
                model(torch.ones(2, 100)).sum().backward()
            model(torch.ones(2, 100)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    weights = [torch.empty(30, 100) for _ in range(dist.get_world_size())]
    dist.all_gather(weights, net.weight.detach())
    # A rank that has joined makes no more steps, and gets the others' parameters at the end.
    assert all(torch.equal(weights[0], one) for one in weights)


def test_join(ranks: Callable[[int], Ranks]) -> None:
    ranks(3).run(joins_and_accumulates)


def other_backend() -> None:
    """The hook under Gloo: ranks meet through the store."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(backend="gloo")
    torch.manual_seed(1)
    net = Net(torch.float32)
    model = wrapped(net, group)
    state = st.TopK(k=512, levels=1, process_group=group)
    model.register_comm_hook(state, st.topk_hook)
    loss_of(model, samples(rank, 0, torch.float32)).backward()
    total = torch.zeros(60, 20)
    for source in range(size):
        total += torch.autograd.grad(loss_of(net, samples(source, 0, torch.float32)), net.first.weight)[0] / size
    torch.testing.assert_close(net.first.weight.grad, total)


def test_other_backend(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(other_backend)


def scaled(levels: int, hosts: list[int] | None) -> None:
    """A loss scale that changes makes no difference; one that is too large only costs a step."""
    rank, group = dist.get_rank(), group_of(hosts)

    def train(scaler: Any) -> Any:
        torch.manual_seed(1)
        net = Net(torch.float32)
        model = wrapped(net, group)
        options = {"k": 3, "bucket": 128, "levels": levels, "dense_below": 100, "process_group": group}
        state = st.TopK(**options, nonfinite="pass", grad_scaler=scaler, algorithm="allgather")
        model.register_comm_hook(state, st.topk_hook)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.25, momentum=0.5)
        for step in range(8):
            optimizer.zero_grad()
            loss = loss_of(model, samples(rank, step, torch.float32))
            if scaler is None:
                loss.backward()
                optimizer.step()
                continue
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update(2.0 ** (4 + step % 3))
        return net.state_dict()

    plain = train(None)
    with_scale = train(torch.amp.GradScaler("cpu", init_scale=2.0**10))
    for name, value in plain.items():
        torch.testing.assert_close(with_scale[name], value, msg=lambda text, name=name: f"{name}: {text}")
    # The first scale overflows: all ranks skip that step, and then have finite and equal parameters.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    for name, value in train(scaler).items():
        assert torch.isfinite(value).all(), name
        everyone = [torch.empty_like(value) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, value.contiguous())
        assert all(torch.equal(one, value) for one in everyone), name


@pytest.mark.parametrize(("levels", "hosts"), [(1, None), (2, [0, 0, 1])], ids=str)
def test_mixed_precision(ranks: Callable[[int], Ranks], levels: int, hosts: list[int] | None) -> None:
    ranks(3).run(scaled, levels, hosts)


def narrow(dtype: Any) -> None:
    """Models in 16-bit types; with k = bucket, training is dense."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    net = Net(dtype)
    model = wrapped(net, None)
    model.register_comm_hook(st.TopK(k=512, levels=1, dense_below=100), st.topk_hook)
    loss_of(model, samples(rank, 0, dtype)).backward()
    total = torch.zeros(60, 20)
    for source in range(size):
        (theirs,) = torch.autograd.grad(loss_of(net, samples(source, 0, dtype)), net.first.weight)
        total += theirs.float() / size
    torch.testing.assert_close(net.first.weight.grad.float(), total, rtol=0.03, atol=0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_types(ranks: Callable[[int], Ranks], dtype: Any) -> None:
    ranks(3).run(narrow, dtype)


def under_autocast(how: str) -> None:
    """With k = bucket, training is dense; QSGD with 8 bits differs from it by two roundings."""
    rank = dist.get_rank()
    torch.manual_seed(1)
    plain = wrapped(Net(torch.float32), None)
    model = wrapped(copy.deepcopy(plain.module), None)
    if how == "topk":
        model.register_comm_hook(st.TopK(k=512, levels=1, dense_below=100), st.topk_hook)
    else:
        model.register_comm_hook(st.QSGD(bits=8, levels=1), st.qsgd_hook)

    def gradients(module: Any, step: int) -> Any:
        module.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = module(samples(rank, step, torch.float32))
        assert output.dtype == torch.bfloat16
        output.float().square().mean().backward()
        return torch.cat([one.grad.reshape(-1) for one in module.parameters() if one.grad is not None])

    for step in range(3):
        with plain.no_sync():
            largest = gradients(plain, step).abs().max()
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        difference = (gradients(model, step) - gradients(plain, step)).abs().max()
        if how == "topk":
            assert difference < 1e-6 * largest
        else:  # rounded when it is sent, and the sum again
            assert 0 < difference <= 2.01 * largest / 127


@pytest.mark.parametrize("how", ["topk", "qsgd"])
def test_autocast(ranks: Callable[[int], Ranks], how: str) -> None:
    ranks(3).run(under_autocast, how)


def overlaps(levels: int, hosts: list[int] | None) -> None:
    """The last layer's bucket is reduced before backward reaches the first layer, where backward waits for it."""
    group = group_of(hosts)
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
    model = DistributedDataParallel(net, process_group=group, bucket_cap_mb=0.001)  # type: ignore[arg-type]
    reduced = threading.Event()

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP would want other annotations than these strings
        future = st.topk_hook(state, bucket)
        if bucket.index() == 0:
            future.add_done_callback(lambda _: reduced.set())
        return future

    def waits(gradient: Any) -> None:
        assert reduced.wait(60), "backward is nearly over, and the first bucket is not reduced"

    def waits_in_backward(_: Any, __: Any, output: Any) -> None:
        output.register_hook(waits)

    model.register_comm_hook(st.TopK(k=3, levels=levels, process_group=group), hook)
    model(torch.ones(2, 64)).sum().backward()  # here DDP has one bucket, of all layers
    net[0].register_forward_hook(waits_in_backward)
    for _ in range(2):
        reduced.clear()
        model(torch.ones(2, 64)).sum().backward()


@pytest.mark.parametrize(("levels", "hosts"), [(1, None), (2, [0, 0, 1])], ids=str)
def test_reductions_overlap_backward(ranks: Callable[[int], Ranks], levels: int, hosts: list[int] | None) -> None:
    ranks(3).run(overlaps, levels, hosts, timeout=90.0)


def left_by_one(how: str, levels: int, hosts: list[int] | None) -> str:
    """Rank 1 ends during step 2."""
    rank, group = dist.get_rank(), group_of(hosts)
    torch.manual_seed(1)
    net = Net(torch.float32)
    if how == "outer product":  # without DDP, which would raise first
        model = st.outer_product(net, layers="*", process_group=group)
    else:
        model = wrapped(net, group, bucket_cap_mb=0.01)
        if how == "topk":
            model.register_comm_hook(st.TopK(k=3, bucket=128, levels=levels, process_group=group), st.topk_hook)
        else:
            model.register_comm_hook(st.QSGD(levels=levels, process_group=group), st.qsgd_hook)
    if rank == 1:
        net.second.weight.register_hook(lambda g: os._exit(3) if step == 2 else g)
    for step in range(4):
        model.zero_grad()
        try:
            loss_of(model, samples(rank, step, torch.float32)).backward()
        except Exception as error:
            return f"step {step}: {error}"
    return "nothing"


@pytest.mark.parametrize(
    ("how", "levels", "hosts"),
    [
        ("topk", 1, None),
        ("topk", 2, [0, 0, 1]),
        ("qsgd", 1, None),
        ("outer product", 1, None),
    ],
    ids=str,
)
def test_a_rank_that_leaves(how: str, levels: int, hosts: list[int] | None) -> None:
    group = Ranks(3)
    try:
        said = group.run_but(1, left_by_one, how, levels, hosts)
        assert all("step 2" in one and "rank 1 (" in one and "is lost" in one for one in said), said
    finally:
        group.kill()


@pytest.mark.parametrize(
    "settings",
    [
        {"k": 0},
        {"k": 600},
        {"bucket": 0},
        {"bits": 3},
        {"levels": 3},
        {"feedback": "quantised"},
        {"feedback": "all"},
        {"warmup": -1},
        {"nonfinite": "ignore"},
        {"momentum_correction": 1.5},
        {"seed": -1},
        {"k": {"a": 0}},
    ],
    ids=str,
)
def test_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        st.TopK(**settings)
