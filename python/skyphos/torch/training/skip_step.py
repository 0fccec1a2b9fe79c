"""Optimizers that leave out the steps that all ranks leave out."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from ...errors import BadInput

__all__ = ["Skips", "guarded"]


class Skips(Protocol):
    """Who says which steps are left out."""

    @property
    def skipped(self) -> int:
        """How many were."""

    def leaves_out(self) -> bool:
        """Whether the gradients that came last are to be left out."""


def guarded(optimizer: torch.optim.Optimizer, who: Skips) -> Any:
    """Before each step that is left out let the parameters have no gradient; the handle of the hook that does."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise BadInput(f"guard() takes an optimizer of torch, not {optimizer!r}")
    who.leaves_out()  # from now on somebody asks
    said = 0

    def leave_out() -> None:
        nonlocal said
        if who.leaves_out() and said != who.skipped:
            said = who.skipped
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            return leave_out()

        def looked_at() -> Any:
            loss = closure()
            leave_out()
            return loss

        return (args[0], looked_at, *args[2:]), {name: one for name, one in kwargs.items() if name != "closure"}

    return optimizer.register_step_pre_hook(before)
