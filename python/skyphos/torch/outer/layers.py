"""``outer_product``: layers whose weights' gradients are summed over ranks from their factors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...collectives.agreement import fail
from ...errors import BadInput
from ...inputs.arguments import as_one_of
from ...inputs.settings import whole
from ..backend.group_comm import comm_of
from ..training.consistency import agree, spread
from ..training.skip_step import guarded
from .cells import OuterGRU, OuterGRUCell, OuterLSTM, OuterLSTMCell, OuterRNN, OuterRNNCell
from .exchange import Exchange
from .linear import OuterAttention, OuterLayer, OuterLinear

__all__ = ["guard", "no_sync", "outer_product"]

Layers = str | Sequence[str] | Callable[[str, nn.Module], bool] | None
Op = Literal["mean", "sum"]

#: What takes the place of a layer: of these types, not of what is made of them.
_REPLACED: dict[type, type[OuterLayer]] = {
    nn.Linear: OuterLinear,
    nn.MultiheadAttention: OuterAttention,
    nn.RNN: OuterRNN,
    nn.LSTM: OuterLSTM,
    nn.GRU: OuterGRU,
    nn.RNNCell: OuterRNNCell,
    nn.LSTMCell: OuterLSTMCell,
    nn.GRUCell: OuterGRUCell,
}


def outer_product(
    model: nn.Module,
    *,
    layers: Layers = None,
    rows: int = 16,
    process_group: Any = None,
    op: Op = "mean",
    nonfinite: Literal["raise", "skip", "pass"] = "raise",
) -> nn.Module:
    """Let layers hand over factors of their weights' gradients, which are short where batches are small. Collective.

    The gradient of a weight W (N by M) of y = x Wᵀ is gᵀ x, with as many rows of g (N numbers, the gradients of
    outputs) and of x (M, the inputs) as the layer was used for samples, words or steps. While those r rows of all ranks
    have fewer numbers than the matrix, r (N + M) < N M, ranks need not send anything larger. What they send, and
    whether it is the matrix after all, is chosen for each weight and backward by ``auto`` of
    :meth:`skyphos.Comm.outer_product_sum`.

    Call it before the model is wrapped in ``DistributedDataParallel``, which then reduces the other parameters, biases
    among them. It works without DDP too; then the other parameters' gradients are the caller's affair. Calls begin
    while the backward goes on, as soon as a weight's last use is done, and are over when ``backward()`` returns.

    Parameters
    ----------
    model : Module
        As it will be wrapped, on all ranks the same; changed in place. Chosen weights get rank 0's values.
    layers : str, sequence of str, callable, optional
        Names of layers, with wildcards as in file names (``"encoder.*"``), or ``layers(name, module) -> bool``. None:
        every layer that can be, for weights that factors are shorter of than ``rows`` say. Can be: ``Linear``,
        ``MultiheadAttention`` (without ``add_bias_kv`` and ``add_zero_attn``), ``RNN``, ``LSTM``, ``GRU`` (without
        ``proj_size``), ``RNNCell``, ``LSTMCell``, ``GRUCell``; of exactly these types.
    rows : int
        Without ``layers``: that many rows of a rank, the fewest to be expected, must still have fewer numbers over all
        ranks than the matrix.
    process_group : ProcessGroup, optional
        None: the default one. Of any backend.
    op : {"mean", "sum"}
        Of ranks' gradients: DDP's mean.
    nonfinite : {"raise", "skip", "pass"}
        What NaN or infinity among factors does: the backward ends with an error that names the weight, on all ranks; a
        step that all ranks leave out, in which these weights' gradients stay as they are (see :func:`guard`); or NaN in
        the gradients on all ranks, for a ``GradScaler`` to find.

    Returns
    -------
    Module
        The model.

    Raises
    ------
    BadInput
        Not a module, or wrapped already; no layer of that name, or none that can be; complex weights; a weight that
        other modules have too, which are not chosen; on all ranks. Later, in a backward: factors that are not finite
        (with "skip", if nobody asks); ``create_graph=True``; a weight that something other than its layer used.
    Mismatch
        Ranks with other models or settings.

    Notes
    -----
    *DSOP* (Enderlin et al.), section 3. Gradients are those of DDP but for the order of additions; factors of autocast
    are of its type, and summed in float32. ``no_sync()`` of DDP, or :func:`no_sync`, keeps rows until the next backward
    outside of it; set gradients to None (``zero_grad()``) to drop them. Uneven rows, none at all, and weights that some
    ranks do not use are fine; batches that some ranks lack are not: ``join()`` is refused.

    Recurrent layers run step by step in PyTorch's own operations, for their fused backward has no factors to give.
    ``.grad`` changes only by ``backward()``: ``torch.autograd.grad`` returns what this rank's own loss gives, as with
    DDP. Hooks on weights are called with None by the former. ``torch.compile`` has not been tried. Copies of the model
    (``copy.deepcopy``) are ordinary.

    Examples
    --------
    >>> import torch, torch.distributed as dist
    >>> import skyphos.torch
    >>> from skyphos.torch.outer import outer_product
    >>> dist.init_process_group("skyphos", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = torch.nn.Sequential(torch.nn.Linear(100, 300), torch.nn.Tanh(), torch.nn.Linear(300, 10))
    >>> model = outer_product(model, layers="0")
    >>> ddp = torch.nn.parallel.DistributedDataParallel(model)
    >>> ddp(torch.ones(4, 100)).sum().backward()
    >>> model[0].weight.grad.shape
    torch.Size([300, 100])
    >>> dist.destroy_process_group()
    """
    comm = comm_of(process_group)
    try:
        as_one_of(op, get_args(Op), "op")
        as_one_of(nonfinite, ("raise", "skip", "pass"), "nonfinite")
        chosen = _choose(model, layers, whole(rows, "rows", 1, 2**31) * comm.size)
        names = {parameter: name for layer in chosen for name, parameter in layer.weights.items()}
        shapes = [f"{name} of shape {tuple(one.shape)} and {one.dtype}" for one, name in names.items()]
    except BaseException as error:
        fail(comm, error)
    agree(comm, [f"op={op!r}", f"nonfinite={nonfinite!r}", *shapes])
    scale = 1.0 / comm.size if op == "mean" else 1.0
    exchange = Exchange(comm, [(name, parameter) for parameter, name in names.items()], scale, nonfinite)
    for weight in exchange.weights:
        spread(comm, weight.parameter)
    of = {weight.parameter: weight for weight in exchange.weights}
    for layer in chosen:
        weights = {name: of[parameter] for name, parameter in layer.own.items()}
        layer.module.__class__ = layer.replacement
        layer.module.outer_weights = weights
    _leave_to_us(model, names)
    begin = _Begin(exchange)
    model.register_forward_pre_hook(begin)
    model._outer_begin = begin
    for parameter in model.parameters():
        if parameter not in names and parameter.requires_grad:
            parameter.register_hook(begin.backward)
    return model


@contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Keep the rows of backwards in here for the next one outside, which exchanges all: gradient accumulation.

    Parameters
    ----------
    model : Module
        What :func:`outer_product` returned, or a ``DistributedDataParallel`` of it, whose own ``no_sync()`` does the
        same.

    Raises
    ------
    BadInput
        A model that :func:`outer_product` has not changed.

    Notes
    -----
    Rows of a weight are kept as they are until they have more numbers than it, and as their sum from then on.

    Examples
    --------
    >>> import torch, torch.distributed as dist
    >>> from skyphos.torch.outer import no_sync, outer_product
    >>> dist.init_process_group("skyphos", store=dist.HashStore(), rank=0, world_size=1)
    >>> layer = outer_product(torch.nn.Linear(50, 40, bias=False))
    >>> with no_sync(layer):
    ...     layer(torch.ones(2, 50)).sum().backward()
    >>> layer(torch.ones(1, 50)).sum().backward()
    >>> layer.weight.grad[0, 0]
    tensor(3.)
    >>> dist.destroy_process_group()
    """
    exchange = _exchange_of(model, "no_sync")
    with model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext(), exchange.paused():
        yield


def guard(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """Let an optimizer leave out the steps in which a factor was not finite, on all ranks alike.

    Its parameters then have no gradient (``None``) in that step, with which optimizers of torch do nothing; each of
    several optimizers has a guard of its own.

    Parameters
    ----------
    model : Module
        What :func:`outer_product` returned with ``nonfinite="skip"``, or a ``DistributedDataParallel`` of it.
    optimizer : Optimizer
        Of all its parameters.

    Returns
    -------
    RemovableHandle
        Of the optimizer's hook.

    Raises
    ------
    BadInput
        Another model, or no optimizer.

    Examples
    --------
    >>> import torch, torch.distributed as dist
    >>> import skyphos.torch as st
    >>> dist.init_process_group("skyphos", store=dist.HashStore(), rank=0, world_size=1)
    >>> layer = st.outer_product(torch.nn.Linear(50, 40, bias=False), nonfinite="skip")
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    >>> handle = st.guard(layer, optimizer)
    >>> before = layer.weight.detach().clone()
    >>> layer(torch.full((2, 50), torch.inf)).sum().backward()
    >>> optimizer.step()
    >>> torch.equal(layer.weight, before)
    True
    >>> dist.destroy_process_group()
    """
    exchange = _exchange_of(model, "guard")
    if exchange.nonfinite != "skip":
        raise BadInput('guard takes a model of outer_product(nonfinite="skip"): with others no step is left out')
    return guarded(optimizer, exchange)


def _exchange_of(model: Any, what: str) -> Exchange:
    begin = getattr(model.module if isinstance(model, DistributedDataParallel) else model, "_outer_begin", None)
    exchange: Exchange | None = None if begin is None else begin.exchange
    if exchange is None:
        raise BadInput(f"{what} takes a model that outer_product returned")
    return exchange


class _Begin:
    """Hooks of a model: as its forward begins, and as anything in it gets a gradient."""

    def __init__(self, exchange: Exchange | None) -> None:
        self.exchange = exchange

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a model, or a pickled one, is ordinary."""
        return type(self), (None,)

    def __call__(self, *_: Any) -> None:
        if self.exchange is not None:
            self.exchange.begins()

    def backward(self, _: Any) -> None:
        """So that a rank that uses none of the weights takes part."""
        if self.exchange is not None:
            self.exchange.backward()


@dataclass(frozen=True)
class _Layer:
    """A module that will be replaced: its weights by their names in it (``own``) and in the model."""

    module: Any
    replacement: type[OuterLayer]
    own: dict[str, nn.Parameter]
    weights: dict[str, nn.Parameter]


def _choose(model: Any, layers: Layers, rows: int) -> list[_Layer]:
    """The layers to replace, in the model's order."""
    if not isinstance(model, nn.Module) or isinstance(model, DistributedDataParallel):
        raise BadInput(f"outer_product takes a model, before it is wrapped, not {type(model).__name__}")
    if any(isinstance(module, OuterLayer) and module.is_chosen() for module in model.modules()):
        raise BadInput("outer_product was called for this model before")
    wanted = _test_of(layers)
    found, unmatched = [], set() if layers is None or callable(layers) else set(_patterns(layers))
    for prefix, module in model.named_modules():
        # Layers of a copy have their classes already.
        replacement = type(module) if isinstance(module, OuterLayer) else _REPLACED.get(type(module))
        if replacement is None or not wanted(prefix, module):
            continue
        unmatched = {pattern for pattern in unmatched if not fnmatchcase(prefix, pattern)}
        present = dict(module.named_parameters())
        own = {name: present[name] for name in replacement.weights_of(module) if name in present}
        own = {name: one for name, one in own.items() if one.requires_grad and one.numel()}
        if layers is None:
            own = {name: one for name, one in own.items() if rows * sum(one.shape) < one.numel()}
        if any(one.dtype.is_complex for one in own.values()):
            raise BadInput(f"outer_product takes layers of real numbers, and {prefix or 'the model'} has complex ones")
        if own:
            dotted = f"{prefix}." if prefix else ""
            found.append(_Layer(module, replacement, own, {dotted + name: one for name, one in own.items()}))
    if unmatched:
        some = ", ".join(sorted(unmatched))
        raise BadInput(
            f"layers={layers!r}: {some} fits no layer whose weights factors can reduce: Linear, RNN, LSTM, GRU, their "
            "cells, MultiheadAttention"
        )
    found = _without_shared(model, found, layers is None)
    if not found:
        raise BadInput(
            f"no weight is larger than {rows} rows of factors, those of all ranks, or of a layer that factors can "
            "reduce: name layers in layers=... to reduce them so all the same"
        )
    return found


def _patterns(layers: str | Sequence[str]) -> list[str]:
    return [layers] if isinstance(layers, str) else [str(pattern) for pattern in layers]


def _test_of(layers: Layers) -> Callable[[str, nn.Module], bool]:
    if layers is None:
        return lambda name, module: True
    if callable(layers):
        return layers
    patterns = _patterns(layers)
    return lambda name, module: any(fnmatchcase(name, pattern) for pattern in patterns)


def _without_shared(model: nn.Module, found: list[_Layer], leave_out: bool) -> list[_Layer]:
    """Leave out layers whose weights are others' too, or refuse them: DDP could not reduce what those add."""
    users: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        users.setdefault(parameter, []).append(name)
    kept = []
    ours = {name for layer in found for name in layer.weights}
    for layer in found:
        shared = {name: set(users[one]) - ours for name, one in layer.weights.items()}
        for name, others in shared.items():
            if others and not leave_out:
                raise BadInput(f"{name} is also {', '.join(sorted(others))}, which is not chosen or cannot be")
        if not any(shared.values()):
            kept.append(layer)
    return kept


def _leave_to_us(model: nn.Module, weights: dict[nn.Parameter, str]) -> None:
    """Take the weights out of DDP's reducer, under all names that they have."""
    ignored = list(getattr(model, "_ddp_params_and_buffers_to_ignore", []))
    ours = [name for name, one in model.named_parameters(remove_duplicate=False) if one in weights]
    ours += [f".{name}" for name in ours if "." not in name]  # what the reducer calls those of the model itself
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, _Ignored(ignored, ours))


class _Ignored(list[str]):
    """Names that DDP ignores. A copy of a model, which is ordinary, has those alone that it had before."""

    def __init__(self, before: list[str], ours: list[str]) -> None:
        super().__init__([*before, *ours])
        self._before = before

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self._before,)
