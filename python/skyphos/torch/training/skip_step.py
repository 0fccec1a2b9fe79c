"""Skipped steps: a hook by which optimizers skip the steps that all ranks skip."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from ...errors import BadInput

__all__ = ["SkipSource", "skip_steps"]


class SkipSource(Protocol):
    """Knows which steps are to be skipped."""

    @property
    def skipped(self) -> int:
        """Number of steps skipped so far."""

    def leaves_out(self) -> bool:
        """Whether the step whose gradients were reduced last is to be skipped.

        Until it is called, the source raises an error instead of skipping a step, which no optimizer would skip.
        """


def skip_steps(optimizer: torch.optim.Optimizer, source: SkipSource) -> Any:
    """Set gradients to None before each step to skip, so that the optimizer does nothing. Returns the hook's handle."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise BadInput(f"guard() takes an optimizer of torch, not {optimizer!r}")
    source.leaves_out()  # from now on the source lets steps be skipped and does not raise an error
    seen = 0

    def drop_gradients() -> None:
        nonlocal seen
        if source.leaves_out() and seen != source.skipped:
            seen = source.skipped
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    def before_step(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            return drop_gradients()

        def checked_closure() -> Any:
            loss = closure()
            drop_gradients()
            return loss

        return (args[0], checked_closure, *args[2:]), {name: one for name, one in kwargs.items() if name != "closure"}

    return optimizer.register_step_pre_hook(before_step)
