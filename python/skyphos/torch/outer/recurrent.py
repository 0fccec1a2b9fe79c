"""Recurrent layers as one autograd function whose backward has the factors of both weights.

A layer of T steps uses its weights T times. The inputs of all steps are multiplied by W_ih at once; then steps go one
by one through W_hh and the gates. Backwards, gradients of the gates are stacked, a row for each step and sequence, so
that

    ∂W_ih = Dᵀ X and ∂W_hh = Dᵀ H,

with X the inputs and H the states before each step (the D of a GRU's W_hh has the reset gate in it). What of gates'
derivatives does not depend on the step behind is made for all steps at once, before the loop backwards.

Rows are ordered by step; the b sequences of a step are the first b of all, and b falls with the step, as in a
``PackedSequence``. Steps back in time see sequences join, steps forth see them end.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .exchange import Weight
from .gates import GATES, Ahead, Steps

__all__ = ["Direction", "Kind", "recurrent"]

Kind = Literal["LSTM", "GRU", "RNN_TANH", "RNN_RELU"]


@dataclass(frozen=True)
class Direction:
    """How one direction of one layer runs.

    Attributes
    ----------
    kind : str
    sizes : tuple of int
        Sequences of each step, never rising: T of them, or those of a packed sequence.
    reverse : bool
        Whether the last step comes first.
    weights : of W_ih and W_hh
        None where that is an ordinary one.
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
    """One direction of one layer.

    Parameters
    ----------
    direction : Direction
    x : Tensor of shape (sum of sizes, inputs)
        Row after row of the first step's sequences, then of the second's.
    state : tuple of Tensors of shape (sizes[0], hidden)
        h; of an LSTM h and c.
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
        # Under autocast products are of its type, and what is between them of the parameters'.
        with nullcontext() if narrow is None else torch.autocast(x.device.type, enabled=False):
            if narrow is not None:
                x, state = x.to(narrow), [each.to(w_hh.dtype) for each in state]
            rows = F.linear(x, w_ih.to(x.dtype)).to(w_ih.dtype)
            for bias in (b_ih, b_hh)[: 1 if gates.apart else 2]:
                rows = rows if bias is None else rows.add_(bias)
            outputs, kept = gates.forward(steps, rows, w_hh.to(x.dtype).T, b_hh, state)
        ctx.save_for_backward(x, w_ih, w_hh, outputs, *state, *kept)
        return outputs, steps.last(outputs), *(steps.last(each) for each in kept[: len(state) - 1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *last: Tensor) -> tuple[Any, ...]:
        for weight in ctx.weights:
            if weight is not None:
                weight.check_once()
        x, w_ih, w_hh, outputs, *rest = ctx.saved_tensors
        state, kept = rest[: len(last)], rest[len(last) :]
        _, wants_x, wants_ih, wants_hh, wants_b_ih, wants_b_hh, *_ = ctx.needs_input_grad
        ahead = Ahead(outputs, ctx.steps.before(outputs, state[0]), state, kept)
        of_inputs, of_states, first = ctx.gates.backward(ctx.steps, w_hh.to(x.dtype), ahead, gradient, last)
        a_ih, a_hh = of_inputs.to(x.dtype), of_states.to(x.dtype)
        return (
            None,
            a_ih @ w_ih.to(x.dtype) if wants_x else None,
            _gradient(ctx.weights[0], a_ih, x) if wants_ih else None,
            _gradient(ctx.weights[1], a_hh, ahead.before.to(x.dtype)) if wants_hh else None,
            of_inputs.sum(0) if wants_b_ih else None,
            of_states.sum(0) if wants_b_hh else None,
            *first,
        )


def _autocast_type(x: Tensor) -> torch.dtype | None:
    """The type in which autocast multiplies, where it is on."""
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return None
    narrow: torch.dtype = torch.get_autocast_dtype(device)
    return narrow


def _gradient(weight: Weight | None, a: Tensor, b: Tensor) -> Tensor | None:
    """The gradient aᵀ b of an ordinary weight; of one that is exchanged, its factors go their way."""
    if weight is None:
        return a.T @ b
    return weight.gradient(a, b)
