"""``outer_product``: replaces a model's layers by ones whose weight gradients are summed over ranks from factors."""

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
from ..training.consistency import broadcast_parameter, require_same
from ..training.skip_step import skip_steps
from .cells import OuterGRU, OuterGRUCell, OuterLSTM, OuterLSTMCell, OuterRNN, OuterRNNCell
from .exchange import Exchange
from .linear import OuterAttention, OuterLayer, OuterLinear

__all__ = ["guard", "no_sync", "outer_product"]

Layers = str | Sequence[str] | Callable[[str, nn.Module], bool] | None
Op = Literal["mean", "sum"]

#: The replacement of a layer of exactly this type, not of a subclass.
_REPLACEMENTS: dict[type, type[OuterLayer]] = {
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
    """Make layers exchange the factors of their weight gradients: small if batches are small. Collective.

    The gradient of a weight W (N by M) of y = x Wᵀ is gᵀ x. It has a row of g (N numbers, the gradients of outputs) and
    of x (M numbers, the inputs) for each sample, word or step. If the r rows of all ranks have fewer numbers than the
    matrix, r (N + M) < N M, it is cheaper to send the rows. ``auto`` of :meth:`skyphos.Comm.outer_product_sum` chooses
    for each weight and backward whether rows or matrices are sent.

    Call it before the model is wrapped in ``DistributedDataParallel``, which then reduces the other parameters, biases
    included. It also works without DDP; then the caller reduces the other gradients. Calls start during backward, as
    soon as a weight's last use is done, and are over when ``backward()`` returns.

    Parameters
    ----------
    model : Module
        The model to be wrapped, the same on all ranks. Changed in place; chosen weights get rank 0's values.
    layers : str, sequence of str, callable, optional
        Names of layers, with wildcards as in file names (``"encoder.*"``), or ``layers(name, module) -> bool``. Layers
        can be ``Linear``, ``MultiheadAttention`` (without ``add_bias_kv`` and ``add_zero_attn``), ``RNN``, ``LSTM``,
        ``GRU`` (without ``proj_size``), ``RNNCell``, ``LSTMCell`` and ``GRUCell``; not subclasses. None: every such
        layer with weights for which ``rows`` rows are smaller than the matrix.
    rows : int
        Without ``layers``: the least number of rows expected of a rank. A weight is chosen if that many rows from each
        rank together have fewer numbers than the matrix.
    process_group : ProcessGroup, optional
        Any backend. None: the default group.
    op : {"mean", "sum"}
        Reduction of the ranks' gradients. DDP uses the mean.
    nonfinite : {"raise", "skip", "pass"}
        On NaN or infinity in factors. "raise": backward raises an error that names the weight, on all ranks. "skip":
        all ranks skip the step (see :func:`guard`), and these weights' gradients do not change. "pass": the gradients
        are NaN on all ranks, for a ``GradScaler`` to find.

    Returns
    -------
    Module
        The model.

    Raises
    ------
    BadInput
        No module, or a wrapped one; no layer of that name or of those types; complex weights; a weight shared with
        modules that are not chosen. On all ranks. In backward: factors that are not finite (with "skip": if no guard
        was set); ``create_graph=True``; a weight that something other than its layer uses.
    Mismatch
        Models or settings differ between ranks.

    Notes
    -----
    *DSOP* (Enderlin et al.), section 3. Gradients equal DDP's but for the order of additions. Under autocast factors
    have its type and are summed in float32. In ``no_sync()`` of DDP, or in :func:`no_sync`, rows are kept for the next
    backward outside of it; ``zero_grad()`` drops them. Ranks may have different numbers of rows or none, and may leave
    weights unused. They may not lack batches: ``join()`` is refused.

    Recurrent layers run step by step in PyTorch's operations, because the fused backward yields no factors.
    ``torch.autograd.grad`` returns the gradient of this rank's own loss, as with DDP. In ``backward()``, hooks on
    weights are called with None. ``torch.compile`` has not been tried. Copies of the model (``copy.deepcopy``) are
    ordinary.

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
    require_same(comm, [f"op={op!r}", f"nonfinite={nonfinite!r}", *shapes])
    scale = 1.0 / comm.size if op == "mean" else 1.0
    exchange = Exchange(comm, [(name, parameter) for parameter, name in names.items()], scale, nonfinite)
    for weight in exchange.weights:
        broadcast_parameter(comm, weight.parameter)
    weights_of = {weight.parameter: weight for weight in exchange.weights}
    for layer in chosen:
        weights = {name: weights_of[parameter] for name, parameter in layer.own.items()}
        layer.module.__class__ = layer.replacement
        layer.module.outer_weights = weights
    _exclude_from_ddp(model, names)
    hooks = _ModelHooks(exchange)
    model.register_forward_pre_hook(hooks)
    model._outer_hooks = hooks
    for parameter in model.parameters():
        if parameter not in names and parameter.requires_grad:
            parameter.register_hook(hooks.backward)
    return model


@contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Gradient accumulation: backwards in this context keep their rows for the next backward outside of it.

    Parameters
    ----------
    model : Module
        A model of :func:`outer_product`, or a ``DistributedDataParallel`` of it, whose own ``no_sync()`` does the same.

    Raises
    ------
    BadInput
        A model that :func:`outer_product` has not changed.

    Notes
    -----
    Rows of a weight are kept until they have more numbers than the weight, and from then on as their sum.

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
    """Make an optimizer skip the steps in which a factor was not finite, on all ranks alike.

    In such a step its parameters have no gradient (``None``), so PyTorch's optimizers do nothing. Several optimizers
    need a guard each.

    Parameters
    ----------
    model : Module
        A model of :func:`outer_product` with ``nonfinite="skip"``, or a ``DistributedDataParallel`` of it.
    optimizer : Optimizer
        The optimizer of all its parameters.

    Returns
    -------
    RemovableHandle
        The handle of the optimizer's hook.

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
        raise BadInput('guard takes a model of outer_product(nonfinite="skip"): others skip no step')
    return skip_steps(optimizer, exchange)


def _exchange_of(model: Any, what: str) -> Exchange:
    hooks = getattr(model.module if isinstance(model, DistributedDataParallel) else model, "_outer_hooks", None)
    exchange: Exchange | None = None if hooks is None else hooks.exchange
    if exchange is None:
        raise BadInput(f"{what} takes a model that outer_product returned")
    return exchange


class _ModelHooks:
    """Hooks of a model, called when its forward begins and when another parameter gets a gradient."""

    def __init__(self, exchange: Exchange | None) -> None:
        self.exchange = exchange

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied or pickled models are ordinary."""
        return type(self), (None,)

    def __call__(self, *_: Any) -> None:
        if self.exchange is not None:
            self.exchange.begin_forward()

    def backward(self, _: Any) -> None:
        """Note the backward, so that a rank that uses none of the weights takes part in the exchange."""
        if self.exchange is not None:
            self.exchange.backward()


@dataclass(frozen=True)
class _Layer:
    """A module to replace, and its weights by their names in the module (``own``) and in the model (``weights``)."""

    module: Any
    replacement: type[OuterLayer]
    own: dict[str, nn.Parameter]
    weights: dict[str, nn.Parameter]


def _choose(model: Any, layers: Layers, rows: int) -> list[_Layer]:
    """The layers to replace, in the model's order."""
    if not isinstance(model, nn.Module) or isinstance(model, DistributedDataParallel):
        raise BadInput(f"outer_product takes a model before it is wrapped, not a {type(model).__name__}")
    if any(isinstance(module, OuterLayer) and module.is_chosen() for module in model.modules()):
        raise BadInput("outer_product was called for this model already")
    wanted = _test_of(layers)
    found, unmatched = [], set() if layers is None or callable(layers) else set(_patterns(layers))
    for prefix, module in model.named_modules():
        # The layers of a copied model have been replaced already.
        replacement = type(module) if isinstance(module, OuterLayer) else _REPLACEMENTS.get(type(module))
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
            f"layers={layers!r}: {some} fits no layer that can exchange factors: Linear, RNN, LSTM, GRU, their cells, "
            "MultiheadAttention"
        )
    found = _without_shared(model, found, layers is None)
    if not found:
        raise BadInput(
            f"no layer that can exchange factors has a weight with more numbers than {rows} rows of factors, the least "
            "expected of all ranks together: name layers in layers=... to choose them regardless"
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


def _without_shared(model: nn.Module, found: list[_Layer], drops: bool) -> list[_Layer]:
    """Drop or refuse layers that share weights with other modules, whose gradients DDP could not reduce then."""
    users: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        users.setdefault(parameter, []).append(name)
    unshared = []
    ours = {name for layer in found for name in layer.weights}
    for layer in found:
        shared = {name: set(users[one]) - ours for name, one in layer.weights.items()}
        for name, others in shared.items():
            if others and not drops:
                raise BadInput(f"{name} is also {', '.join(sorted(others))}, which is not chosen")
        if not any(shared.values()):
            unshared.append(layer)
    return unshared


def _exclude_from_ddp(model: nn.Module, weights: dict[nn.Parameter, str]) -> None:
    """Make DDP ignore the weights, under all their names."""
    ignored = list(getattr(model, "_ddp_params_and_buffers_to_ignore", []))
    ours = [name for name, one in model.named_parameters(remove_duplicate=False) if one in weights]
    ours += [f".{name}" for name in ours if "." not in name]  # DDP's names of parameters of the model itself
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, _Ignored(ignored, ours))


class _Ignored(list[str]):
    """Names that DDP ignores. A copy of the model has ordinary layers, so it gets only the names ignored before."""

    def __init__(self, before: list[str], ours: list[str]) -> None:
        super().__init__([*before, *ours])
        self._before = before

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self._before,)
