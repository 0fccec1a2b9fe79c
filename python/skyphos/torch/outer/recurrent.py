"""Recurrent layers as one autograd function, whose backward yields the factors of both weights.

A layer of T steps uses its weights T times. The inputs of all steps are multiplied by W_ih at once; then each step goes
through W_hh and the gates. In backward the gate gradients D are stacked, a row for each step and sequence, so that

    ∂W_ih = Dᵀ X and ∂W_hh = Dᵀ H,

with X the inputs and H the states before each step. (For W_hh of a GRU, D includes the reset gate.) The parts of the
gate derivatives that do not depend on the following step are computed for all steps at once, before the loop.

Rows are ordered by step. The b sequences of a step are the first b of all, and b never rises with the step, as in a
``PackedSequence``. So sequences end as steps go forward in time, and join as they go backward.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .exchange import Weight
from .gates import GATES, Forward, Steps

__all__ = ["Direction", "Kind", "recurrent"]

Kind = Literal["LSTM", "GRU", "RNN_TANH", "RNN_RELU"]


@dataclass(frozen=True)
class Direction:
    """One direction of one layer.

    Attributes
    ----------
    kind : str
    sizes : tuple of int
        Number of sequences in each of the T steps, never rising.
    reverse : bool
        Whether the last step comes first.
    weights : tuple of Weight or None
        W_ih and W_hh; None for a weight that is not exchanged.
    """

    kind: Kind
    sizes: tuple[int, ...]
    reverse: bool
    weights: tuple[Weight | None, Weight | None]


def recurrent(
    direction: Direction,
    x: Tensor,
    state: tuple[Tensor, ...],
    matrices: tuple[Tensor, Tensor],
    biases: tuple[Tensor | None, Tensor | None],
) -> tuple[Tensor, ...]:
    """Run one direction of one layer.

    Parameters
    ----------
    direction : Direction
    x : Tensor of shape (sum of sizes, inputs)
        The rows of the first step's sequences, then those of the second's, and so on.
    state : tuple of Tensors of shape (sizes[0], hidden)
        h; for an LSTM h and c.
    matrices, biases : W_ih and W_hh, b_ih and b_hh

    Returns
    -------
    tuple of Tensors
        Outputs of all rows, then the state after the last step.
    """
    result: tuple[Tensor, ...] = _Recurrent.apply(direction, x, *matrices, *biases, *state)
    return result


class _Recurrent(torch.autograd.Function):
    """See :func:`recurrent`."""

    @staticmethod
    def forward(ctx: Any, direction: Direction, x: Tensor, *tensors: Any) -> tuple[Tensor, ...]:
        w_ih, w_hh, b_ih, b_hh, *state = tensors
        ctx.weights = direction.weights
        ctx.gates, ctx.steps = gates, steps = GATES[direction.kind], Steps(direction.sizes, direction.reverse)
        narrow = _autocast_type(x)
        # Under autocast products have its type, and everything else has the parameters' type.
        with nullcontext() if narrow is None else torch.autocast(x.device.type, enabled=False):
            if narrow is not None:
                x, state = x.to(narrow), [each.to(w_hh.dtype) for each in state]
            rows = F.linear(x, w_ih.to(x.dtype)).to(w_ih.dtype)
            for bias in (b_ih, b_hh)[: 1 if gates.adds_b_hh_later else 2]:
                rows = rows if bias is None else rows.add_(bias)
            outputs, saved = gates.forward(steps, rows, w_hh.to(x.dtype).T, b_hh, state)
        ctx.save_for_backward(x, w_ih, w_hh, outputs, *state, *saved)
        return outputs, steps.last(outputs), *(steps.last(each) for each in saved[: len(state) - 1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *last: Tensor) -> tuple[Any, ...]:
        for weight in ctx.weights:
            if weight is not None:
                weight.refuse_double_backward()
        x, w_ih, w_hh, outputs, *rest = ctx.saved_tensors
        state, saved = rest[: len(last)], rest[len(last) :]
        _, wants_x, wants_ih, wants_hh, wants_b_ih, wants_b_hh, *_ = ctx.needs_input_grad
        forward = Forward(outputs, ctx.steps.before(outputs, state[0]), state, saved)
        of_inputs, of_states, first = ctx.gates.backward(ctx.steps, w_hh.to(x.dtype), forward, gradient, last)
        a_ih, a_hh = of_inputs.to(x.dtype), of_states.to(x.dtype)
        return (
            None,
            a_ih @ w_ih.to(x.dtype) if wants_x else None,
            _gradient(ctx.weights[0], a_ih, x) if wants_ih else None,
            _gradient(ctx.weights[1], a_hh, forward.before.to(x.dtype)) if wants_hh else None,
            of_inputs.sum(0) if wants_b_ih else None,
            of_states.sum(0) if wants_b_hh else None,
            *first,
        )


def _autocast_type(x: Tensor) -> torch.dtype | None:
    """Autocast's type for products, or None if it is off."""
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return None
    narrow: torch.dtype = torch.get_autocast_dtype(device)
    return narrow


def _gradient(weight: Weight | None, a: Tensor, b: Tensor) -> Tensor | None:
    """The gradient aᵀ b of an ordinary weight. An exchanged one keeps the factors a and b."""
    if weight is None:
        return a.T @ b
    return weight.gradient(a, b)
