"""Quantised top-k SGD as SparCML has it, for training loops without ``DistributedDataParallel``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch

from ...errors import BadInput
from ..backend.group_comm import comm_of
from ..backend.ordered_worker import Answer
from ..hooks.engine import Engine
from ..hooks.states import TopK
from .consistency import agree, spread

__all__ = ["DistributedOptimizer"]

#: Bytes of gradients that are reduced at a time: the next are compressed while these travel.
_VECTOR_BYTES = 25 << 20


class DistributedOptimizer(torch.optim.Optimizer):
    """SGD by the sum of what ranks send of their gradients: SparCML, Algorithm 2, to the letter.

    ::

        acc = residual + lr * gradient
        residual = acc - TopK(acc)
        parameter -= sum over ranks of Q(TopK(acc))

    Parameters
    ----------
    params : iterable
        Parameters, ``model.named_parameters()``, or groups of them, as optimizers of torch take; the same on all ranks.
        With names, errors and settings by layer go by them. Gradients are dense ones.
    lr : float
        The learning rate α. Contributions of ranks are *added*: a rate for means is divided by the number of ranks.
        (The hook :func:`topk_hook` accumulates gradients without the rate, and averages.)
    compression : TopK or QSGD, optional
        What is sent, and among whom; ``levels=1`` for one residual a rank. None: ``TopK(levels=1)``.
    broadcast : bool, default True
        Begin with rank 0's parameters on all ranks.

    Raises
    ------
    BadInput
        A rate that is not positive; a compression with a ``grad_scaler``. In :meth:`step` as :class:`TopK` says, on all
        ranks, and a sparse gradient; no parameter is changed then.
    Mismatch
        Ranks have other parameters, before any of them is changed.

    Notes
    -----
    Collective: all ranks make it and call :meth:`step` together, after backward. Parameters without a gradient send
    nothing, and those of whole numbers, which can have none, stay as they are. With a ``GradScaler`` whose ``step`` is
    called take ``nonfinite="skip"``: what overflows on one rank is then left out on all. The state is the
    compression's too: :meth:`state_dict` has both.

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

    #: For a ``GradScaler``: see :meth:`_update`.
    _step_supports_amp_scaling = True

    def __init__(
        self, params: Iterable[Any], lr: float, compression: Engine | None = None, *, broadcast: bool = True
    ) -> None:
        if not isinstance(compression, Engine | None):
            raise BadInput(f"compression must be a TopK, a QSGD or None, not {compression!r}")
        if not isinstance(lr, int | float) or not lr > 0:
            raise BadInput(f"the learning rate must be a positive number, not {lr!r}")
        if compression is not None and compression._scaler is not None:
            raise BadInput("a grad_scaler goes with the hook: give DistributedOptimizer gradients that are not scaled")
        super().__init__(params, {"lr": lr})
        self.compression = TopK(levels=1) if compression is None else compression
        self.compression._is_asked = True  # by each step
        self._broadcasts = broadcast
        self._take_in(self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take more parameters, with rank 0's values if the others have them. Collective."""
        super().add_param_group(param_group)
        if hasattr(self, "compression"):  # else torch's own __init__ calls
            self._take_in(self.param_groups[-1:])

    def _take_in(self, groups: list[dict[str, Any]]) -> None:
        for group in groups:
            names = group.get("param_names") or [None] * len(group["params"])
            for parameter, name in zip(group["params"], names, strict=True):
                self.compression._names.give(parameter, name)
        if not self._broadcasts:
            return
        comm, known = comm_of(self.compression._process_group), self.compression._names
        parameters = [parameter for group in groups for parameter in group["params"]]
        agree(comm, [f"{known[one]} of shape {tuple(one.shape)} and {one.dtype}" for one in parameters])
        for parameter in parameters:
            spread(comm, parameter)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Reduce all gradients and update the parameters. Collective.

        Parameters
        ----------
        closure : callable, optional
            Computes the loss anew, with gradients.

        Returns
        -------
        float or None
            What the closure returned.

        Raises
        ------
        BadInput, Mismatch, PeerLost
            As the class says, on all ranks: no rank's parameters have changed then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._update()
        return loss

    def _update(self) -> None:
        # What a GradScaler says; it lets an optimizer that knows of scales make every step, so that all ranks do.
        scale = getattr(self, "grad_scale", None)
        scaled = 1.0 if scale is None else float(scale)
        vectors = [
            (group["lr"] / scaled, some)
            for group in self.param_groups
            for some in _vectors([one for one in group["params"] if one.dtype.is_complex or one.is_floating_point()])
        ]
        for parameter in (parameter for _, some in vectors for parameter in some):
            if parameter.grad is not None and parameter.grad.is_sparse:
                raise BadInput(
                    f"{self.compression._names[parameter]} has a sparse gradient, and DistributedOptimizer takes dense "
                    "ones: use sparse=False, or DistributedDataParallel with topk_hook"
                )
        under_way = []
        for number, (rate, some) in enumerate(vectors):
            parts = [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in some]
            flat, answer = torch.cat(parts), Answer()
            last = number == len(vectors) - 1
            self.compression.reduce_vector(number, some, flat, answer, last=last, rate=rate)
            under_way.append((some, flat, answer))
        # All or nothing: what a step has sent that fails, or is left out, is sent again.
        for _, _, answer in under_way:
            answer.result()
        if self.compression.leaves_out():
            return
        for some, flat, _ in under_way:
            at = 0
            for parameter in some:
                parameter.sub_(flat[at : at + parameter.numel()].view_as(parameter))
                at += parameter.numel()

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, and under ``"compression"`` what this rank holds back: to be saved on each rank."""
        return {**super().state_dict(), "compression": self.compression.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, on the same rank.

        Raises
        ------
        BadInput, ValueError
            A state of another optimizer, of other settings, or of other groups: nothing is changed then.
        """
        rest, before = dict(state_dict), super().state_dict()
        if "compression" not in rest:
            raise BadInput("this is no state of a DistributedOptimizer: it has no residuals, under 'compression'")
        held = rest.pop("compression")
        super().load_state_dict(rest)
        try:
            self.compression.load_state_dict(held)
        except BadInput:
            super().load_state_dict(before)
            raise

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Neither copied nor pickled, as its compression."""
        raise TypeError(
            "a DistributedOptimizer cannot be copied or pickled: make another, and load_state_dict() its state_dict()"
        )


def _vectors(parameters: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Neighbours of one type and device, up to so many bytes."""
    found: list[list[torch.Tensor]] = []
    room = 0
    for parameter in parameters:
        alike = bool(found) and (found[-1][0].dtype, found[-1][0].device) == (parameter.dtype, parameter.device)
        if not alike or parameter.nbytes > room:
            found.append([])
            room = _VECTOR_BYTES
        found[-1].append(parameter)
        room -= parameter.nbytes
    return found
