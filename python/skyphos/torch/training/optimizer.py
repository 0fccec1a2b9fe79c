"""``DistributedOptimizer``: SparCML's quantised top-k SGD, for training without ``DistributedDataParallel``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch

from ...errors import BadInput
from ..backend.group_comm import comm_of
from ..backend.ordered_worker import Promise
from ..hooks.hook_state import HookState
from ..hooks.states import TopK
from .consistency import broadcast_parameter, require_same

__all__ = ["DistributedOptimizer"]

#: Bytes of gradients in one reduction. The next ones are compressed while these travel.
_VECTOR_BYTES = 25 << 20


class DistributedOptimizer(torch.optim.Optimizer):
    """SGD with compressed gradients, summed over ranks: SparCML, Algorithm 2, to the letter.

    ::

        acc = residual + lr * gradient
        residual = acc - TopK(acc)
        parameter -= sum over ranks of Q(TopK(acc))

    Parameters
    ----------
    params : iterable
        Parameters, ``model.named_parameters()``, or groups of them, as torch's optimizers take; the same on all ranks.
        Names are used by errors and by settings of layers. Gradients must be dense.
    lr : float
        The learning rate α. Contributions of ranks are *added*, so divide a rate for means by the number of ranks. (The
        hook :func:`topk_hook` accumulates gradients without the rate, and averages.)
    compression : TopK or QSGD, optional
        How gradients are compressed, and the ranks that reduce them. ``levels=1`` keeps one residual a rank. None:
        ``TopK(levels=1)``.
    broadcast : bool, default True
        Start from rank 0's parameters on all ranks.

    Raises
    ------
    BadInput
        The rate is not positive, or the compression has a ``grad_scaler``. In :meth:`step`: the errors of
        :class:`TopK`, on all ranks, or a sparse gradient; no parameter has changed then.
    Mismatch
        Parameters differ between ranks; none has changed then.

    Notes
    -----
    Collective: all ranks make the optimizer and call :meth:`step` together, after backward. Parameters
    without a gradient send nothing, and integer parameters never change. With a ``GradScaler`` use
    ``nonfinite="skip"``: all ranks then skip a step that overflows on one. :meth:`state_dict` includes the
    compression's state.

    Examples
    --------
    >>> import torch, torch.distributed as dist, skyphos.torch
    >>> dist.init_process_group("skyphos", store=dist.HashStore(), rank=0, world_size=1)
    >>> weight = torch.nn.Parameter(torch.zeros(4))
    >>> topk = skyphos.torch.TopK(k=1, bucket=4, levels=1, dense_below=0)
    >>> optimizer = skyphos.torch.DistributedOptimizer([weight], lr=0.5, compression=topk)
    >>> (weight * torch.tensor([1.0, 4.0, 2.0, 3.0])).sum().backward()
    >>> optimizer.step()
    >>> weight.data
    tensor([ 0., -2.,  0.,  0.])
    >>> optimizer.step()
    >>> weight.data
    tensor([ 0., -2.,  0., -3.])
    >>> dist.destroy_process_group()
    """

    #: Read by ``GradScaler``: see :meth:`_update`.
    _step_supports_amp_scaling = True

    def __init__(
        self, params: Iterable[Any], lr: float, compression: HookState | None = None, *, broadcast: bool = True
    ) -> None:
        if not isinstance(compression, HookState | None):
            raise BadInput(f"compression must be a TopK, a QSGD or None, not {compression!r}")
        if not isinstance(lr, int | float) or not lr > 0:
            raise BadInput(f"the learning rate must be a positive number, not {lr!r}")
        if compression is not None and compression._scaler is not None:
            raise BadInput("grad_scaler is for hooks: DistributedOptimizer takes gradients without a loss scale")
        super().__init__(params, {"lr": lr})
        self.compression = TopK(levels=1) if compression is None else compression
        self.compression._is_polled = True  # by each step
        self._broadcasts = broadcast
        self._add_groups(self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; with ``broadcast`` all ranks get rank 0's values of them. Collective."""
        super().add_param_group(param_group)
        if hasattr(self, "compression"):  # otherwise the base class's __init__ calls this
            self._add_groups(self.param_groups[-1:])

    def _add_groups(self, groups: list[dict[str, Any]]) -> None:
        for group in groups:
            names = group.get("param_names") or [None] * len(group["params"])
            for parameter, name in zip(group["params"], names, strict=True):
                self.compression._names.give(parameter, name)
        if not self._broadcasts:
            return
        comm, names = comm_of(self.compression._process_group), self.compression._names
        parameters = [parameter for group in groups for parameter in group["params"]]
        require_same(comm, [f"{names[one]} of shape {tuple(one.shape)} and {one.dtype}" for one in parameters])
        for parameter in parameters:
            broadcast_parameter(comm, parameter)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Reduce all gradients and update the parameters. Collective.

        Parameters
        ----------
        closure : callable, optional
            Computes the loss and its gradients again.

        Returns
        -------
        float or None
            The closure's result.

        Raises
        ------
        BadInput, Mismatch, PeerLost
            See the class. On all ranks; no parameter has changed then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._update()
        return loss

    def _update(self) -> None:
        # A GradScaler sets `grad_scale`. Because of `_step_supports_amp_scaling` it skips no step on a single rank.
        grad_scale = getattr(self, "grad_scale", None)
        scale = 1.0 if grad_scale is None else float(grad_scale)
        vectors = [
            (group["lr"] / scale, some)
            for group in self.param_groups
            for some in _vectors([one for one in group["params"] if one.dtype.is_complex or one.is_floating_point()])
        ]
        for parameter in (parameter for _, some in vectors for parameter in some):
            if parameter.grad is not None and parameter.grad.is_sparse:
                raise BadInput(
                    f"{self.compression._names[parameter]} has a sparse gradient, but DistributedOptimizer takes dense "
                    "ones: use sparse=False, or DistributedDataParallel with topk_hook"
                )
        under_way = []
        for number, (rate, some) in enumerate(vectors):
            parts = [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in some]
            flat, promise = torch.cat(parts), Promise()
            is_last = number == len(vectors) - 1
            self.compression.reduce_vector(number, some, flat, promise, is_last=is_last, rate=rate)
            under_way.append((some, flat, promise))
        # Wait for all before any parameter changes: a step that fails or is skipped is undone as a whole.
        for _, _, promise in under_way:
            promise.result()
        if self.compression.leaves_out():
            return
        for some, flat, _ in under_way:
            start = 0
            for parameter in some:
                parameter.sub_(flat[start : start + parameter.numel()].view_as(parameter))
                start += parameter.numel()

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, and this rank's residuals under ``"compression"``. Save it on each rank."""
        return {**super().state_dict(), "compression": self.compression.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state, on the same rank.

        Raises
        ------
        BadInput, ValueError
            The state is of another optimizer, other settings or other groups. Nothing has changed then.
        """
        rest, before = dict(state_dict), super().state_dict()
        if "compression" not in rest:
            raise BadInput("this is not a state of a DistributedOptimizer: it has no residuals under 'compression'")
        compression = rest.pop("compression")
        super().load_state_dict(rest)
        try:
            self.compression.load_state_dict(compression)
        except BadInput:
            super().load_state_dict(before)
            raise

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse copy and pickle, as its compression does."""
        raise TypeError(
            "a DistributedOptimizer cannot be copied or pickled: make another, and load_state_dict() its state_dict()"
        )


def _vectors(parameters: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Runs of parameters with one type and device, each run of up to ``_VECTOR_BYTES``."""
    runs: list[list[torch.Tensor]] = []
    left_bytes = 0
    for parameter in parameters:
        is_same = bool(runs) and (runs[-1][0].dtype, runs[-1][0].device) == (parameter.dtype, parameter.device)
        if not is_same or parameter.nbytes > left_bytes:
            runs.append([])
            left_bytes = _VECTOR_BYTES
        runs[-1].append(parameter)
        left_bytes -= parameter.nbytes
    return runs
