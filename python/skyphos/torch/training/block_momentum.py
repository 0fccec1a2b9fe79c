"""Block momentum (BMUF): each rank trains alone for a block of steps, then ranks average parameters, with momentum.

Blockwise model-update filtering: Chen & Huo, "Scalable training of deep learning machines by incremental block training
with intra-block parallel optimization and blockwise model-update filtering", ICASSP 2016. In a block t each rank makes
some steps by itself from the same parameters W_g(t-1). With W̄(t) the mean of the ranks' parameters after them,

    G(t) = W̄(t) - W_g(t-1),   Δ(t) = η Δ(t-1) + ζ G(t),   W(t) = W(t-1) + Δ(t),

and the next block starts from W_g(t) = W(t) (classical), or W(t) + η Δ(t) (Nesterov). η is the momentum, ζ the rate.

Cost: an allreduce of all parameters a block; memory for W, Δ and W_g, and for two more such vectors when a block ends.
"""

from __future__ import annotations

from operator import index
from typing import Any

import torch

from ...collectives.agreement import fail
from ...comm import Comm
from ...errors import BadInput
from ..backend.group_comm import comm_of
from ..hooks.selection import first_non_finite
from .consistency import broadcast_parameter, require_same

__all__ = ["BlockMomentum", "block_momentum"]

#: Names of W, Δ and W_g in a state.
_STATE = ("global", "delta", "start")


def block_momentum(
    optimizer: torch.optim.Optimizer,
    *,
    every: int,
    momentum: float,
    lr: float = 1.0,
    nesterov: bool = False,
    process_group: Any = None,
) -> BlockMomentum:
    """Average an optimizer's parameters over ranks every few steps, with block momentum (BMUF). Collective.

    For training without ``DistributedDataParallel``: within a block each rank steps by itself. All ranks must make the
    same number of steps. But a ``GradScaler`` skips steps on single ranks. If you use one, set ``every`` so large that
    it is never reached, and call ``synchronize`` after the same number of batches on all ranks.

    Parameters
    ----------
    optimizer : Optimizer
        Its parameters, the same on all ranks, get rank 0's values. Its ``step`` then averages by itself. Buffers and
        the optimizer's state (moments) are not averaged.
    every : int
        Number of steps in a block.
    momentum : float
        η, from 0 to below 1. The paper's choice is 1 - 1/ranks.
    lr : float
        ζ, the block's learning rate.
    nesterov : bool
        Start blocks from W(t) + η Δ(t) instead of W(t).
    process_group : ProcessGroup, optional
        Any backend. None: the default group.

    Returns
    -------
    BlockMomentum
        Averages at other times (``synchronize``), saves (``state_dict``), ends (``remove``).

    Raises
    ------
    BadInput
        Numbers out of range, or complex parameters. At the end of a block: a parameter of a rank is not finite. On all
        ranks.
    Mismatch
        Settings or parameters differ between ranks.

    Notes
    -----
    Chen & Huo 2016. With W̄(t) the mean of the ranks' parameters at the end of block t, and W_g(t-1) those
    at its start: G(t) = W̄(t) - W_g(t-1), Δ(t) = η Δ(t-1) + ζ G(t), W(t) = W(t-1) + Δ(t). The next block starts from
    W_g(t) = W(t), or with ``nesterov`` from W(t) + η Δ(t). With ``momentum=0, lr=1`` this is plain averaging (local
    SGD). Parameters of 16 bits are averaged in float32. Integer parameters never change.

    Examples
    --------
    >>> import torch, torch.distributed as dist
    >>> import skyphos.torch
    >>> from skyphos.torch import block_momentum
    >>> dist.init_process_group("skyphos", store=dist.HashStore(), rank=0, world_size=1)
    >>> w = torch.nn.Parameter(torch.zeros(1))
    >>> optimizer = torch.optim.SGD([w], lr=1.0)
    >>> blocks = block_momentum(optimizer, every=2, momentum=0.5)
    >>> for _ in range(4):
    ...     w.grad = torch.tensor([-1.0])
    ...     optimizer.step()
    >>> w.item()  # after the first block 2; after the second 2 + (0.5 * 2 + 2)
    5.0
    >>> blocks.remove()
    >>> dist.destroy_process_group()
    """
    comm = comm_of(process_group)
    try:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise BadInput(f"block_momentum takes an optimizer of torch, not {optimizer!r}")
        if index(every) < 1:
            raise BadInput(f"every={every}: a block has at least 1 step")
        if not 0 <= momentum < 1:
            raise BadInput(f"momentum={momentum}: it must be from 0 to below 1")
        if not lr > 0:
            raise BadInput(f"lr={lr}: it must be above 0")
        if any(one.dtype.is_complex for one in _parameters(optimizer)):
            raise BadInput("block_momentum takes no complex parameters")
    except BaseException as error:
        fail(comm, error)
    return BlockMomentum(optimizer, (index(every), float(momentum), float(lr), bool(nesterov)), comm.dup())


class BlockMomentum:
    """The averaging of an optimizer's parameters, made by :func:`block_momentum`.

    Attributes
    ----------
    momentum, lr : float
        May be changed between blocks, to the same values on all ranks.

    Examples
    --------
    >>> import torch, torch.distributed as dist
    >>> import skyphos.torch
    >>> dist.init_process_group("skyphos", store=dist.HashStore(), rank=0, world_size=1)
    >>> w = torch.nn.Parameter(torch.zeros(1))
    >>> optimizer = torch.optim.SGD([w], lr=1.0)
    >>> blocks = skyphos.torch.block_momentum(optimizer, every=1000, momentum=0.0)
    >>> w.grad = torch.tensor([-1.0])
    >>> optimizer.step()
    >>> blocks.synchronize()  # ends the block early
    >>> state = blocks.state_dict()  # to save beside the optimizer's
    >>> blocks.remove()
    >>> dist.destroy_process_group()
    """

    def __init__(self, optimizer: torch.optim.Optimizer, settings: tuple[int, float, float, bool], comm: Comm) -> None:
        self._every, self.momentum, self.lr, self._nesterov = settings
        self._comm = comm
        self._steps = 0
        parameters = _parameters(optimizer)
        facts = [f"every={self._every}", f"momentum={self.momentum}", f"lr={self.lr}", f"nesterov={self._nesterov}"]
        shapes = [f"parameter {k} of shape {tuple(p.shape)} and {p.dtype}" for k, p in enumerate(parameters)]
        require_same(comm, facts + shapes)
        for one in parameters:
            broadcast_parameter(comm, one)
        floats = [one for one in parameters if one.is_floating_point()]
        wide = {dtype: [one for one in floats if _wide(one) == dtype] for dtype in (torch.float32, torch.float64)}
        self._pools = [_Pool(some) for some in wide.values() if some]
        self._optimizer, self._parameters = optimizer, parameters
        self._hook: Any = optimizer.register_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        self._steps += 1
        if self._steps >= self._every:
            self.synchronize()

    def synchronize(self) -> None:
        """End the block now and start another. Does nothing in a block without steps. Collective.

        Raises
        ------
        BadInput
            The optimizer's parameters have changed (``add_param_group``), or one is not finite. On all ranks.
        SkyphosError
            The allreduce failed. Each rank keeps its own parameters then.
        """
        if self._steps == 0:
            return
        now = _parameters(self._optimizer)
        if [id(one) for one in now] != [id(one) for one in self._parameters]:
            fail(
                self._comm,
                BadInput(
                    f"the optimizer has {len(now)} parameters, and had {len(self._parameters)} when block_momentum was "
                    "called: after add_param_group call remove(), and block_momentum again"
                ),
            )
        packed = [pool.packed() for pool in self._pools]
        for pool, values in zip(self._pools, packed, strict=True):
            if (bad := first_non_finite(values)) is not None:
                problem = self._describe_non_finite(*pool.locate(bad), values[bad])
                fail(self._comm, BadInput(f"rank {self._comm.rank}: {problem}"))
        means = [self._comm.allreduce(values.numpy(), op="mean") for values in packed]
        for pool, mean in zip(self._pools, means, strict=True):
            pool.update(torch.from_numpy(mean), self.momentum, self.lr, self._nesterov)
        self._steps = 0

    def _describe_non_finite(self, parameter: torch.Tensor, index: int, value: torch.Tensor) -> str:
        """Error text for a parameter that is not finite."""
        number = next(k for k, one in enumerate(self._parameters) if one is parameter)
        names = [name for group in self._optimizer.param_groups for name in group.get("param_names", ())]
        name = names[number] if names else f"parameter {number} of shape {tuple(parameter.shape)}"
        return (
            f"{name} is {float(value)} at its index {index} after {self._steps} steps of a block: nothing is averaged, "
            "because all ranks would get it"
        )

    def remove(self) -> None:
        """Stop averaging. The optimizer goes on with this rank's parameters."""
        self._hook.remove()
        self._comm.close()

    def state_dict(self) -> dict[str, Any]:
        """Steps of the block so far, W, Δ and W_g. Save it with the model's state and the optimizer's.

        Within a block parameters differ between ranks, so save on each rank then.
        """
        return {
            "every": self._every,
            "nesterov": self._nesterov,
            "momentum": self.momentum,
            "lr": self.lr,
            "steps": self._steps,
            "parts": [dict(pool.state) for pool in self._pools],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of :meth:`state_dict`, with its momentum and rate.

        Raises
        ------
        BadInput
            It is no such state, or is of other parameters or settings. Nothing has changed then.
        """
        try:
            lengths = [[len(part[name]) for name in _STATE] for part in state["parts"]]
            steps, momentum, lr = index(state["steps"]), float(state["momentum"]), float(state["lr"])
            saved = {name: state[name] for name in ("every", "nesterov")}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadInput(f"this is not a state of block_momentum: {error!r}") from None
        if lengths != [[len(pool.state[name]) for name in _STATE] for pool in self._pools]:
            raise BadInput("this state of block_momentum is of other parameters")
        if saved != (current := {"every": self._every, "nesterov": self._nesterov}):
            raise BadInput(f"this state of block_momentum was saved with {saved}, but the settings are {current}")
        if not 0 <= steps < self._every:
            raise BadInput(f"a state of block_momentum after {steps} steps of a block of {self._every}")
        self._steps, self.momentum, self.lr = steps, momentum, lr
        for pool, part in zip(self._pools, state["parts"], strict=True):
            pool.state = {name: part[name].clone() for name in _STATE}


class _Pool:
    """The parameters that are averaged in one type, packed one after the other, with their W, Δ and W_g."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self._parameters = parameters
        start = self.packed()
        self.state = {"global": start.clone(), "delta": torch.zeros_like(start), "start": start}

    def packed(self) -> torch.Tensor:
        """The parameters' values."""
        return torch.cat([one.detach().reshape(-1).to("cpu", _wide(one)) for one in self._parameters])

    def locate(self, index: int) -> tuple[torch.Tensor, int]:
        """The parameter of a packed value, and the value's index in it."""
        for one in self._parameters:
            if index < one.numel():
                return one, index
            index -= one.numel()
        raise IndexError

    def update(self, mean: torch.Tensor, momentum: float, lr: float, nesterov: bool) -> None:
        """Update state and parameters at the end of a block."""
        model, delta = self.state["global"], self.state["delta"]
        delta.mul_(momentum).add_(mean.sub_(self.state["start"]), alpha=lr)
        model.add_(delta)
        start = model.add(delta, alpha=momentum) if nesterov else model
        sizes = [one.numel() for one in self._parameters]
        with torch.no_grad():
            for one, values in zip(self._parameters, start.split(sizes), strict=True):
                one.copy_(values.view(one.shape))
        self.state["start"] = self.packed()  # rounded to the parameters' types, which W is not


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _wide(parameter: torch.Tensor) -> torch.dtype:
    """The type in which a parameter is averaged."""
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32
