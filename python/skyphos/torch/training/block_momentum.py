"""``block_momentum``: ranks train on their own, and average their parameters every few steps, with momentum.

Blockwise model-update filtering (BMUF; Chen & Huo, "Scalable training of deep learning machines by incremental block
training with intra-block parallel optimization and blockwise model-update filtering", ICASSP 2016). A block t is a
number of steps that each rank makes by itself from the same parameters W_g(t-1). With W̄(t) the mean of what they end
with,

    G(t) = W̄(t) - W_g(t-1),   Δ(t) = η Δ(t-1) + ζ G(t),   W(t) = W(t-1) + Δ(t),

and the next block starts from W_g(t) = W(t) (classical), or W(t) + η Δ(t) (Nesterov). η is the momentum, ζ the rate.

Cost: an allreduce of all parameters a block; memory of W, Δ and W_g, and of two more as a block ends.
"""

from __future__ import annotations

from operator import index
from typing import Any

import torch

from ...collectives.agreement import fail
from ...comm import Comm
from ...errors import BadInput
from ..backend.group_comm import comm_of
from ..hooks.selection import first_odd
from .consistency import agree, spread

__all__ = ["BlockMomentum", "block_momentum"]

#: What a block keeps between two means.
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
    """Average an optimizer's parameters over ranks after every few steps, with block momentum (BMUF). Collective.

    For training without ``DistributedDataParallel``: between two means each rank steps by itself. All ranks make as
    many steps. (A ``GradScaler`` leaves steps out on one rank alone: then let none end a block, with a large ``every``,
    and call ``synchronize`` after as many batches on all.)

    Parameters
    ----------
    optimizer : Optimizer
        Its parameters, on all ranks the same, get rank 0's values; its ``step`` does the rest. Buffers, and what the
        optimizer keeps (moments), stay each rank's own.
    every : int
        Steps of a block.
    momentum : float
        η, from 0 to below 1; the paper's choice is 1 - 1/ranks.
    lr : float
        ζ, the block's learning rate.
    nesterov : bool
        Whether blocks start ahead of the global parameters by what momentum alone would add.
    process_group : ProcessGroup, optional
        None: the default one. Of any backend.

    Returns
    -------
    BlockMomentum
        To average at other times (``synchronize``), to save (``state_dict``), to end it (``remove``).

    Raises
    ------
    BadInput
        Numbers out of range; complex parameters; on all ranks. As a block ends, on all ranks: a parameter of one that
        is not finite.
    Mismatch
        Ranks with other numbers, or other parameters.

    Notes
    -----
    Chen & Huo 2016. With W̄(t) the mean of what ranks end block t with, and W_g(t-1) what they began it with: G(t) =
    W̄(t) - W_g(t-1), Δ(t) = η Δ(t-1) + ζ G(t), W(t) = W(t-1) + Δ(t); the next begins with W_g(t) = W(t), or with
    ``nesterov`` W(t) + η Δ(t). With ``momentum=0, lr=1`` it is plain averaging (local SGD). Parameters of 16
    bits are averaged, and their updates kept, in float32; those of whole numbers, which nothing trains, stay as they
    are.

    Examples
    --------
    >>> import torch, torch.distributed as dist
    >>> import skyphos.torch
    >>> from skyphos.torch.block_momentum import block_momentum
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
            raise BadInput(f"every={every}: a block has 1 step or more")
        if not 0 <= momentum < 1:
            raise BadInput(f"momentum={momentum}: from 0 to below 1")
        if not lr > 0:
            raise BadInput(f"lr={lr}: above 0")
        if any(one.dtype.is_complex for one in _parameters(optimizer)):
            raise BadInput("complex parameters cannot be averaged so")
    except BaseException as error:
        fail(comm, error)
    return BlockMomentum(optimizer, (index(every), float(momentum), float(lr), bool(nesterov)), comm.dup())


class BlockMomentum:
    """What :func:`block_momentum` returns.

    Attributes
    ----------
    momentum, lr : float
        May be changed between blocks, on all ranks alike.

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
    >>> blocks.synchronize()  # the end of a block before its time
    >>> kept = blocks.state_dict()  # beside the optimizer's own
    >>> blocks.remove()
    >>> dist.destroy_process_group()
    """

    def __init__(self, optimizer: torch.optim.Optimizer, settings: tuple[int, float, float, bool], comm: Comm) -> None:
        self._every, self.momentum, self.lr, self._nesterov = settings
        self._comm = comm
        self._steps = 0
        parameters = _parameters(optimizer)
        asked = [f"every={self._every}", f"momentum={self.momentum}", f"lr={self.lr}", f"nesterov={self._nesterov}"]
        shapes = [f"parameter {k} of shape {tuple(p.shape)} and {p.dtype}" for k, p in enumerate(parameters)]
        agree(comm, asked + shapes)
        for one in parameters:
            spread(comm, one)
        floats = [one for one in parameters if one.is_floating_point()]
        wide = {dtype: [one for one in floats if _wide(one) == dtype] for dtype in (torch.float32, torch.float64)}
        self._parts = [_Part(some) for some in wide.values() if some]
        self._optimizer, self._parameters = optimizer, parameters
        self._hook: Any = optimizer.register_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        self._steps += 1
        if self._steps >= self._every:
            self.synchronize()

    def synchronize(self) -> None:
        """End the block now, and begin another; nothing if no step was made in it. Collective.

        Raises
        ------
        BadInput
            The optimizer has got other parameters since (``add_param_group``), or one of a rank is not finite; on all
            ranks.
        SkyphosError
            The allreduce failed; parameters are those of this rank then.
        """
        if self._steps == 0:
            return
        now = _parameters(self._optimizer)
        if [id(one) for one in now] != [id(one) for one in self._parameters]:
            fail(
                self._comm,
                BadInput(
                    f"the optimizer has {len(now)} parameters, and had {len(self._parameters)} when block_momentum was "
                    "called: remove() that, and call it again after add_param_group"
                ),
            )
        packed = [part.packed() for part in self._parts]
        for part, values in zip(self._parts, packed, strict=True):
            if (odd := first_odd(values)) is not None:
                fail(self._comm, BadInput(f"rank {self._comm.rank}: {self._words(*part.at(odd), values[odd])}"))
        means = [self._comm.allreduce(values.numpy(), op="mean") for values in packed]
        for part, mean in zip(self._parts, means, strict=True):
            part.update(torch.from_numpy(mean), self.momentum, self.lr, self._nesterov)
        self._steps = 0

    def _words(self, parameter: torch.Tensor, at: int, value: torch.Tensor) -> str:
        """What is said of a parameter that is not finite, at a place of it."""
        number = next(k for k, one in enumerate(self._parameters) if one is parameter)
        names = [name for group in self._optimizer.param_groups for name in group.get("param_names", ())]
        name = names[number] if names else f"parameter {number} of shape {tuple(parameter.shape)}"
        return (
            f"{name} is {float(value)} at its place {at} after {self._steps} steps of a block, and would be so on all "
            "ranks: nothing is averaged"
        )

    def remove(self) -> None:
        """End it: the optimizer steps without from now on, from the parameters that this rank has."""
        self._hook.remove()
        self._comm.close()

    def state_dict(self) -> dict[str, Any]:
        """Steps of the block so far, W, Δ and what the block started from: with model and optimizer, all there is.

        Parameters differ between ranks within a block: save after its end, or on each rank.
        """
        return {
            "every": self._every,
            "nesterov": self._nesterov,
            "momentum": self.momentum,
            "lr": self.lr,
            "steps": self._steps,
            "parts": [dict(part.state) for part in self._parts],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` returned, with its momentum and rate.

        Raises
        ------
        BadInput
            It is no such state, of other parameters, or of blocks of other steps: nothing is changed then.
        """
        try:
            lengths = [[len(part[name]) for name in _STATE] for part in state["parts"]]
            steps, momentum, lr = index(state["steps"]), float(state["momentum"]), float(state["lr"])
            said = {name: state[name] for name in ("every", "nesterov")}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadInput(f"this is no state of block_momentum: {error!r}") from None
        if lengths != [[len(part.state[name]) for name in _STATE] for part in self._parts]:
            raise BadInput("this state of block_momentum is of other parameters")
        if said != (mine := {"every": self._every, "nesterov": self._nesterov}):
            raise BadInput(f"this state of block_momentum is of {said}, and here are {mine}")
        if not 0 <= steps < self._every:
            raise BadInput(f"a state of block_momentum after {steps} steps of a block of {self._every}")
        self._steps, self.momentum, self.lr = steps, momentum, lr
        for part, found in zip(self._parts, state["parts"], strict=True):
            part.state = {name: found[name].clone() for name in _STATE}


class _Part:
    """The parameters that are averaged in one type, one after the other: W, Δ, and W_g from which the block started."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self._parameters = parameters
        start = self.packed()
        self.state = {"global": start.clone(), "delta": torch.zeros_like(start), "start": start}

    def packed(self) -> torch.Tensor:
        """What the parameters are now."""
        return torch.cat([one.detach().reshape(-1).to("cpu", _wide(one)) for one in self._parameters])

    def at(self, place: int) -> tuple[torch.Tensor, int]:
        """Whose a value is: the parameter, and the place in it."""
        for one in self._parameters:
            if place < one.numel():
                return one, place
            place -= one.numel()
        raise IndexError

    def update(self, mean: torch.Tensor, momentum: float, lr: float, nesterov: bool) -> None:
        """The block's update, of state and parameters."""
        model, delta = self.state["global"], self.state["delta"]
        delta.mul_(momentum).add_(mean.sub_(self.state["start"]), alpha=lr)
        model.add_(delta)
        start = model.add(delta, alpha=momentum) if nesterov else model
        sizes = [one.numel() for one in self._parameters]
        with torch.no_grad():
            for one, values in zip(self._parameters, start.split(sizes), strict=True):
                one.copy_(values.view(one.shape))
        self.state["start"] = self.packed()  # as narrow parameters have it: W keeps what they round away


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _wide(parameter: torch.Tensor) -> torch.dtype:
    """The type in which a parameter is averaged."""
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32
