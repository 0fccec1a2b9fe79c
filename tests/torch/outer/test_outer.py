"""Layers that exchange factors: gradients as in plain DDP, and as in one process with all ranks' samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import skyphos as sky  # noqa: E402
import skyphos.torch as st  # noqa: E402
from skyphos.torch.outer import no_sync, outer_product  # noqa: E402
from torch_ranks import Ranks  # noqa: E402

WIDE, STEPS = 6, 5


class Shared(nn.Module):
    """Layers that are used for every step and again for their own outputs; two share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE, bias=False)
        self.tied = nn.Linear(WIDE, WIDE)
        self.tied.weight = self.again.weight

    def forward(self, x: Any) -> Any:
        for _ in range(2):
            x = torch.stack([self.again(self.first(each)).tanh() for each in x.unbind(1)], 1)
        return self.tied(x)


class Cells(nn.Module):
    """A decoder, step by step: cells of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(WIDE, 7), nn.GRUCell(7, 8)
        self.tanh, self.relu = nn.RNNCell(8, 9), nn.RNNCell(9, 4, nonlinearity="relu", bias=False)

    def forward(self, x: Any) -> Any:
        h, states, outputs = None, [None, None, None], []
        for each in x.unbind(1):
            h = self.lstm(each, h)
            states[0] = self.gru(h[0], states[0])
            states[1] = self.tanh(states[0], states[1])
            states[2] = self.relu(states[1], states[2])
            outputs.append(states[2] + sum(each.sum(1, keepdim=True) for each in (h[1], states[0], states[1])))
        return torch.stack(outputs)


class Recurrent(nn.Module):
    """A recurrent layer of PyTorch's, whose last state counts too."""

    def __init__(self, kind: Any, packed: bool = False, **settings: Any) -> None:
        super().__init__()
        self.layer, self.packed = kind(WIDE, 7, batch_first=True, **settings), packed

    def forward(self, x: Any) -> Any:
        if self.packed:
            lengths = [1 + (3 * at) % STEPS for at in range(len(x))]
            output, last = self.layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
            output = pad_packed_sequence(output, batch_first=True)[0]
        else:
            output, last = self.layer(x)
        return output.sum() + sum(each.pow(2).sum() for each in (last if isinstance(last, tuple) else (last,)))


class Attention(nn.Module):
    """Attention to itself, to others, and to keys and values that differ."""

    def __init__(self) -> None:
        super().__init__()
        self.to_self, self.to_others = nn.MultiheadAttention(WIDE, 2, batch_first=True), nn.MultiheadAttention(WIDE, 3)
        self.sized = nn.MultiheadAttention(WIDE, 1, kdim=4, vdim=5, bias=False)

    def forward(self, x: Any) -> Any:
        later = torch.triu(torch.ones(STEPS, STEPS, dtype=torch.bool), 1)
        y, weights = self.to_self(x, x, x, attn_mask=later)
        x = x.transpose(0, 1)
        z = self.to_others(x, y.transpose(0, 1), x, need_weights=False)[0]
        return z + self.sized(x, y.transpose(0, 1)[..., :4], z[..., :5])[0] + weights.sum()


MODELS: dict[str, Callable[[], Any]] = {
    "linear": lambda: nn.Sequential(nn.Linear(WIDE, 20), nn.Tanh(), nn.Linear(20, 3)),
    "alone": lambda: nn.Linear(WIDE, 20),
    "shared": Shared,
    "cells": Cells,
    "lstm": lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True),
    "lstm, packed": lambda: Recurrent(nn.LSTM, packed=True, num_layers=2, bidirectional=True),
    "gru": lambda: Recurrent(nn.GRU, num_layers=2),
    "gru, packed": lambda: Recurrent(nn.GRU, packed=True, bidirectional=True),
    "rnn": lambda: Recurrent(nn.RNN, bidirectional=True),
    "relu": lambda: Recurrent(nn.RNN, nonlinearity="relu", num_layers=2),
    "attention": Attention,
    "transformer": lambda: nn.TransformerEncoderLayer(WIDE, 2, 16, dropout=0.0, batch_first=True),
}


def samples(rank: int, step: int, count: int = 4) -> Any:
    random = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(count, STEPS, WIDE, generator=random, dtype=torch.float64)


def loss(model: Any, x: Any) -> Any:
    return model(x).pow(2).sum()


def wrapped(model: Any, outer: bool = True, **options: Any) -> Any:
    """The model in DDP, with factors or without."""
    return DistributedDataParallel(outer_product(model, layers="*") if outer else model, **options)


def three_models(name: str, dtype: Any = torch.float64) -> tuple[Any, Any, Any]:
    """The same model in DDP with factors, in plain DDP, and alone."""
    torch.manual_seed(1 + dist.get_rank())
    ours = wrapped(MODELS[name]().to(dtype))
    alone = copy.deepcopy(ours.module)  # rank 0's values
    return ours, wrapped(copy.deepcopy(alone), outer=False), alone


def assert_same_gradients(ours: Any, *others: Any) -> None:
    for other in others:
        for (name, one), (_, expected) in zip(ours.named_parameters(), other.named_parameters(), strict=True):
            torch.testing.assert_close(
                one.grad, expected.grad, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
            )


def parts(count: int, model: Any, unsynced: Any = DistributedDataParallel.no_sync) -> Iterator[int]:
    """Numbers of a batch's parts; only the last part synchronises gradients."""
    for part in range(count):
        with unsynced(model) if part + 1 < count else nullcontext():
            yield part


def trains_as_ddp(name: str, accumulate: int, counts: list[int]) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    ours, plain, alone = three_models(name)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-4) for model in (ours, plain, alone)]
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for model in (ours, plain):
            own = no_sync if model is ours and name == "cells" else DistributedDataParallel.no_sync
            for part in parts(accumulate, model, own):
                loss(model, samples(rank, 10 * step + part, counts[rank])).backward()
        for part in range(accumulate):
            for each in range(size):
                (loss(alone, samples(each, 10 * step + part, counts[each])) / size).backward()
        assert_same_gradients(ours.module, plain.module, alone)
        assert all(one.dim() == 1 for one in ours._build_params_for_reducer()[0]), "DDP reduces a weight too"
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("name", MODELS)
def test_each_layer(ranks: Callable[[int], Ranks], name: str) -> None:
    ranks(2).run(trains_as_ddp, name, 1, [4, 4])


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", ["linear", "lstm", "transformer"])
def test_sizes_and_uneven_rows(ranks: Callable[[int], Ranks], size: int, name: str) -> None:
    ranks(size).run(trains_as_ddp, name, 1, [5, 1, 3][:size])


@pytest.mark.parametrize("name", ["linear", "shared", "gru"])
def test_a_rank_without_rows(ranks: Callable[[int], Ranks], name: str) -> None:
    ranks(3).run(trains_as_ddp, name, 1, [3, 0, 2])


# Rows of few samples are kept until the exchange. Rows of many have more numbers than the weight: their sum is kept.
@pytest.mark.parametrize("counts", [[1, 1], [4, 2]], ids=["rows", "sums"])
@pytest.mark.parametrize("name", ["linear", "cells"])
def test_accumulation(ranks: Callable[[int], Ranks], name: str, counts: list[int]) -> None:
    ranks(2).run(trains_as_ddp, name, 3, counts)


class Chosen(nn.Module):
    """Layers of which each call selects some."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDE, WIDE) for _ in range(4)])
        self.scale = nn.Parameter(torch.ones(WIDE))

    def forward(self, x: Any, used: tuple[int, ...]) -> Any:
        for at in used:
            x = self.layers[at](x)
        return x * self.scale


def uses_some(used: list[tuple[int, ...]]) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    ours = wrapped(Chosen().double(), find_unused_parameters=True)
    alone = copy.deepcopy(ours.module)
    for step in range(3):
        ours.zero_grad()
        alone.zero_grad()
        # Ranks use layers in different orders, on which the order of calls must not depend.
        ours(samples(rank, step), used[(rank + step) % size]).pow(2).sum().backward()
        for each in range(size):
            (alone(samples(each, step), used[(each + step) % size]).pow(2).sum() / size).backward()
        assert_same_gradients(ours.module, alone)
    assert ours.module.layers[3].weight.grad is None


def test_layers_that_some_do_not_use(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(uses_some, [(0, 1), (1, 0)])
    ranks(3).run(uses_some, [(0, 1, 2), (2,), ()])


def without_ddp() -> None:
    """Only weights are exchanged; there is no call in evaluation, nor for layers frozen later."""
    torch.manual_seed(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    model = nn.Sequential(nn.Linear(WIDE, 8, bias=False), nn.Linear(8, 9, bias=False)).double()
    model[0].weight.requires_grad_(False)
    outer_product(model, layers="*", op="sum")
    assert type(model[0]) is nn.Linear
    assert isinstance(model[1], nn.Linear)
    if rank == 0:  # only rank 0, because these calls exchange nothing
        with torch.no_grad():
            model(samples(0, 0))
        model.eval()(samples(0, 0)).sum().detach()
    loss(model, samples(rank, 0)).backward()
    alone = copy.deepcopy(model)
    assert alone[1].outer_weights == {"weight": None}
    assert not outer_product(copy.deepcopy(alone), layers="1")[0].weight.requires_grad
    alone.zero_grad()
    for each in range(size):
        loss(alone, samples(each, 0)).backward()
    assert_same_gradients(model, alone)
    model.zero_grad()
    with no_sync(model):
        loss(model, samples(rank, 1)).backward()
    model.zero_grad()  # which also drops what no_sync kept
    loss(model, samples(rank, 0)).backward()
    assert_same_gradients(model, alone)
    model[1].weight.requires_grad_(False)
    model(samples(rank, 0).requires_grad_()).sum().backward()
    assert_same_gradients(model, alone)


def test_without_ddp(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(without_ddp)


def under_autocast(name: str, accumulate: int) -> None:
    rank = dist.get_rank()
    ours, plain, _ = three_models(name, torch.float32)
    for model in (ours, plain):
        for part in parts(accumulate, model):
            with torch.autocast("cpu", torch.bfloat16):
                output = model(samples(rank, part).float())
            output.float().pow(2).mean().backward()
    for (which, one), (_, expected) in zip(ours.named_parameters(), plain.named_parameters(), strict=True):
        assert one.grad.dtype == torch.float32
        distance, length = (one.grad - expected.grad).norm(), expected.grad.norm()
        assert distance <= 0.03 * length, f"{which}: {distance} of {length}"


def has_bfloat16_lstm() -> bool:
    """Whether PyTorch's own LSTM runs in bfloat16 on this processor: oneDNN has none where AVX-512 is missing."""
    try:
        with torch.autocast("cpu", torch.bfloat16):
            nn.LSTM(WIDE, WIDE)(torch.zeros(1, 1, WIDE))
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", ["linear", "lstm", "gru", "cells", "transformer"])
def test_autocast(ranks: Callable[[int], Ranks], name: str, accumulate: int) -> None:
    if name == "lstm" and not has_bfloat16_lstm():
        pytest.skip("PyTorch has no LSTM in bfloat16 for this processor")
    ranks(2).run(under_autocast, name, accumulate)


def recomputes(reentrant: bool) -> None:
    """Checkpoints run the forward again within the backward, the reentrant ones another backward too."""
    rank = dist.get_rank()
    ours, _, alone = three_models("linear")
    model = ours.module
    x = samples(rank, 0).requires_grad_()
    y = checkpoint(model, x, use_reentrant=reentrant)
    checkpoint(model[0], y.repeat(1, 1, 2), use_reentrant=reentrant).pow(2).sum().backward()
    for each in range(dist.get_world_size()):
        y = alone(samples(each, 0)).repeat(1, 1, 2)
        (alone[0](y).pow(2).sum() / dist.get_world_size()).backward()
    for at in (0, 2):
        torch.testing.assert_close(model[at].weight.grad, alone[at].weight.grad)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(ranks: Callable[[int], Ranks], reentrant: bool) -> None:
    ranks(2).run(recomputes, reentrant)


def begins_early() -> None:
    """Calls start during backward; from the second step in the order in which backward reaches the layers."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.b, self.c, self.a = (nn.Linear(WIDE, WIDE) for _ in range(3))

        def forward(self, x: Any) -> Any:
            return self.c(self.b(self.a(x)))

    model = outer_product(Odd(), layers="*")
    exchange = model._outer_hooks.exchange
    seen = []
    for step in range(2):
        x = samples(0, step).float().requires_grad_()
        middle = model.a(x)
        middle.register_hook(lambda _: seen.append(exchange._backward._started))
        model.c(model.b(middle)).sum().backward()
    assert seen == [0, 2]
    assert [weight.name for weight in exchange.order] == ["c.weight", "b.weight", "a.weight"]


def test_calls_begin_early(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(begins_early)


def not_finite() -> None:
    """One rank's NaN is an error on all, which names the weight; no parameter changes, and training can continue."""
    rank = dist.get_rank()
    ours, plain, _ = three_models("lstm")
    x = samples(rank, 0)
    bad = x.clone()
    bad[0, 0, 0] = float("nan") if rank else 1.0
    with pytest.raises(sky.errors.BadInput, match=r"rank 1: factors of the gradient of layer.weight_.*_l.* not finite"):
        loss(ours, bad).backward()
    assert ours.module.layer.weight_hh_l0.grad is None
    for model in (ours, plain):
        model.zero_grad()
        loss(model, x).backward()
    assert_same_gradients(ours.module, plain.module)
    loose = outer_product(nn.Linear(3, 4), layers="*", nonfinite="pass")
    loose(torch.tensor([[float("inf"), 0.0, 1.0]])).sum().backward()
    assert loose.weight.grad.isinf().any()


def left_out() -> None:
    """All ranks skip a step in which one has a NaN, and make the next one. Without the guard it is an error."""
    rank = dist.get_rank()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 30))
    model = DistributedDataParallel(outer_product(net, layers="0", nonfinite="skip"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    bad = torch.ones(2, 30) if rank == 0 else torch.full((2, 30), float("inf"))
    with pytest.raises(
        sky.errors.BadInput, match=r"no optimizer would skip this step: call skyphos.torch.guard\(model, optimizer\)"
    ):
        model(bad).sum().backward()
    st.guard(model, optimizer)
    optimizer.zero_grad()
    for x in (torch.ones(2, 30), bad, torch.ones(2, 30)):
        before = [one.detach().clone() for one in model.parameters()]
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        moved = [not torch.equal(one, was) for one, was in zip(model.parameters(), before, strict=True)]
        assert moved == [x is not bad] * 4, moved
        assert all(one.isfinite().all() for one in model.parameters())
    with pytest.raises(sky.errors.BadInput, match="guard takes a model of outer_product"):
        st.guard(outer_product(nn.Linear(3, 4), layers="*"), optimizer)
    with pytest.raises(sky.errors.BadInput, match="guard takes a model that outer_product returned"):
        st.guard(nn.Linear(3, 4), optimizer)


def test_steps_left_out(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(left_out)


def test_not_finite(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(not_finite)


class Both(nn.Module):
    """A linear and a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(40, 50), nn.GRU(50, 30)

    def forward(self, x: Any) -> Any:
        return self.second(torch.tanh(self.first(x)))[0]


def asked_by_grad() -> None:
    """``torch.autograd.grad`` leaves ``.grad`` as it is, and returns, as with DDP, this rank's own gradient."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Both()
    ref = copy.deepcopy(net)
    ours, theirs = DistributedDataParallel(outer_product(net, layers="*")), DistributedDataParallel(ref)
    x = torch.randn(4, 3, 40, generator=torch.Generator().manual_seed(rank)).requires_grad_()
    for inputs in ([x], [x, "first.weight"], ["second.weight_hh_l0", "first.weight"]):
        found = []
        for model, module in ((ours, net), (theirs, ref)):
            wanted = [module.get_parameter(one) if isinstance(one, str) else one for one in inputs]
            found.append(torch.autograd.grad(model(x).square().sum(), wanted))
            assert module.first.weight.grad is None
        for mine, other in zip(*found, strict=True):
            torch.testing.assert_close(mine, other)
    # With inputs=, the gradients of other parameters stay.
    for module in (net, ref):
        module.second.weight_hh_l0.grad = torch.ones_like(module.second.weight_hh_l0)
    ours(x).square().sum().backward(inputs=[net.second.weight_ih_l0])
    assert net.first.weight.grad is None
    assert torch.equal(net.second.weight_hh_l0.grad, torch.ones_like(net.second.weight_hh_l0))
    net.zero_grad()
    ref.zero_grad()
    for model in (ours, theirs):
        model(x).square().sum().backward()
    for mine, other in zip(net.parameters(), ref.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-4)


def test_autograd_grad(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(asked_by_grad)


def refusals() -> None:
    bad = sky.errors.BadInput
    linear = lambda: nn.Sequential(nn.Linear(40, 50), nn.Linear(50, 40))  # noqa: E731
    with pytest.raises(bad, match="x fits no layer"):
        outer_product(linear(), layers=["0", "x"])
    with pytest.raises(bad, match="op"):
        outer_product(linear(), op="max")  # type: ignore[arg-type]
    with pytest.raises(bad, match="before it is wrapped"):
        outer_product(DistributedDataParallel(linear()))
    with pytest.raises(bad, match="was called for this model already"):
        outer_product(outer_product(linear(), layers="*"))
    with pytest.raises(bad, match="has a weight with more numbers than"):
        outer_product(linear(), rows=1000)
    tied = nn.ModuleDict({"words": nn.Embedding(40, 50), "out": nn.Linear(50, 40)})
    tied["out"].weight = tied["words"].weight
    with pytest.raises(bad, match=r"out.weight is also words.weight"):
        outer_product(tied, layers="out")
    with pytest.raises(sky.errors.Mismatch, match=r"rank 1 has 0\.weight .*rank 0 1\.weight"):
        outer_product(linear(), layers="0" if dist.get_rank() else "1")
    model = outer_product(linear(), layers="0")
    with pytest.raises(bad, match=r"0.weight is summed over ranks and cannot be differentiated"):
        torch.autograd.grad(model(torch.ones(1, 40)).sum(), model[0].weight, create_graph=True)
    with pytest.raises(bad, match=r"0.weight has a gradient that is no outer product"):
        (model(torch.ones(1, 40)).sum() + model[0].weight.sum()).backward()
    ddp = DistributedDataParallel(model)
    with pytest.raises(bad, match="join"), ddp.join():
        ddp(torch.ones(1, 40))
    model.load_state_dict(linear().state_dict(), assign=True)
    with pytest.raises(bad, match=r"0.weight was replaced by another parameter"):
        model(torch.ones(1, 40))
    with pytest.raises(bad, match="no_sync takes"), no_sync(linear()):
        pass


def test_refusals(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(refusals)


def chooses() -> None:
    """By default layers that gain are chosen, and DDP ignores their weights. The group may be of another backend."""
    model = nn.ModuleDict(
        {
            "wide": nn.Linear(200, 300),
            "small": nn.Linear(8, 8),
            "lstm": nn.LSTM(16, 100, proj_size=0),
            "projected": nn.LSTM(100, 100, proj_size=50),
            "tied": nn.Embedding(200, 100),
        }
    )
    model["out"] = nn.Linear(100, 200)
    model["out"].weight = model["tied"].weight
    model._ddp_params_and_buffers_to_ignore = ["small.bias"]
    before = list(model.state_dict())
    outer_product(model, process_group=dist.new_group(backend="gloo"))
    assert list(model.state_dict()) == before
    assert model._ddp_params_and_buffers_to_ignore == ["small.bias", "wide.weight", "lstm.weight_hh_l0"]
    model["wide"](torch.ones(2, 200)).sum().backward()
    assert torch.equal(model["wide"].weight.grad, torch.full((300, 200), 2.0))
    by_test = outer_product(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5)), layers=lambda name, _: name == "1")
    assert [type(layer).__name__ for layer in by_test] == ["Linear", "OuterLinear"]


def test_choice(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(chooses)


def forward_between() -> None:
    """A forward in no_sync between another forward and its backward, which DDP allows, gives the same gradients."""
    ours, theirs, _ = three_models("linear")
    for model in (ours, theirs):
        loss_first = loss(model, samples(dist.get_rank(), 0))
        with model.no_sync():
            loss(model, samples(dist.get_rank(), 1))
        loss_first.backward()
    assert_same_gradients(ours, theirs)
    # Then a backward that is kept, and one that is exchanged.
    for model in (ours, theirs):
        model.zero_grad()
        with model.no_sync():
            loss(model, samples(dist.get_rank(), 2)).backward()
        loss(model, samples(dist.get_rank(), 3)).backward()
    assert_same_gradients(ours, theirs)


def test_a_forward_between(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(forward_between)


def odd_shapes() -> None:
    attention = outer_product(nn.MultiheadAttention(6, 2, batch_first=True), layers="*")
    x = torch.randn(2, 4, 6)
    for dtype in (torch.uint8, torch.int64):
        with pytest.raises(sky.errors.BadInput, match="bool or floats"):
            attention(x, x, x, key_padding_mask=torch.ones(2, 4, dtype=dtype))
    with pytest.raises(sky.errors.BadInput, match="at least one step"):
        outer_product(nn.GRU(5, 7), layers="*")(torch.ones(0, 2, 5))
    cell = outer_product(nn.GRUCell(5, 7), layers="*")
    with pytest.raises(sky.errors.BadInput, match="state of shape"):
        cell(torch.ones(4, 5), torch.ones(1, 7))
    with pytest.raises(sky.errors.BadInput, match="input of shape"):
        cell(torch.ones(4, 6))
    with pytest.raises(sky.errors.BadInput, match="has a weight with more numbers than"):
        outer_product(nn.Linear(0, 5), layers="*")


def test_odd_shapes(ranks: Callable[[int], Ranks]) -> None:
    ranks(1).run(odd_shapes)
