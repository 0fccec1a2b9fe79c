"""Gates of LSTM, GRU and RNN layers: their forward, and their derivatives.

Letters are those of PyTorch's documentation. A step is a few operations on views made beforehand, in place where
possible, because in small layers the number of operations determines the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

__all__ = ["GATES", "Forward", "Gates", "Steps"]


class Steps:
    """The order of steps, and the rows of each.

    Parameters
    ----------
    sizes : tuple of int
        Number of sequences in each step, never rising.
    reverse : bool
        Whether the last step comes first.
    """

    def __init__(self, sizes: tuple[int, ...], reverse: bool) -> None:
        self.sizes = list(sizes)
        self.order = range(len(sizes))[:: -1 if reverse else 1]
        self._starts = np.cumsum([0, *sizes])

    def cut(self, *tensors: Tensor) -> list[Sequence[Tensor]]:
        """For each tensor, the rows of each step."""
        return [tensor.split(self.sizes) for tensor in tensors]

    def before(self, states: Tensor, first: Tensor) -> Tensor:
        """The state before each row: the state of the previous step's row, or the first state."""
        count, size, start = first.shape[0], 0, 0
        if self.sizes[0] == self.sizes[-1]:
            is_forward = self.order.step > 0
            return torch.cat([first, states[: states.shape[0] - count]] if is_forward else [states[count:], first])
        rows = np.empty(self._starts[-1], np.int64)  # of the first states followed by all states
        for step in self.order:
            now, at = self.sizes[step], self._starts[step]
            common = min(now, size)  # sequences that the previous step has too
            rows[at : at + common] = np.arange(count + start, count + start + common)
            rows[at + common : at + now] = np.arange(common, now)
            size, start = now, at
        return torch.cat([first, states]).index_select(0, torch.from_numpy(rows).to(states.device))

    def last(self, states: Tensor) -> Tensor:
        """The state of each sequence after its last step."""
        parts, found = [], 0
        for step in reversed(self.order):
            if self.sizes[step] > found:
                start = self._starts[step]
                parts.append(states[start + found : start + self.sizes[step]])
                found = self.sizes[step]
            if found == self.sizes[0]:
                break
        return torch.cat(parts) if parts else states[:0]


class Forward(NamedTuple):
    """Tensors of forward for backward: outputs, h before each row, the first state, and what the gates saved."""

    outputs: Tensor
    before: Tensor
    state: Sequence[Tensor]
    saved: Sequence[Tensor]


class Gates(Protocol):
    """One kind of layer."""

    #: True when `b_hh` is added after the input projection.
    adds_b_hh_later: bool

    def forward(
        self, steps: Steps, rows: Tensor, w_t: Tensor, b_hh: Tensor | None, state: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Run all steps, from the input projections (``rows``, which are overwritten) and W_hhᵀ.

        Returns outputs, and tensors to save for backward; the first is c, if the state has one.
        """

    def backward(
        self, steps: Steps, w: Tensor, forward: Forward, gradient: Tensor, last: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Gradients of the input projections, of the state projections, and of the first state.

        Computed from W_hh, the forward, and the gradients of outputs and last state.
        """


def _fit(state: Tensor, others: Tensor, size: int) -> Tensor:
    """The state of the first ``size`` sequences: from ``state``, and for sequences that join from ``others``."""
    count = state.shape[0]
    if count == size:
        return state
    return state[:size] if count > size else torch.cat([state, others[count:size]])


def _add_product(into: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Add a product in place, computed in b's type, which may be narrower."""
    return into.addmm_(a, b) if b.dtype == into.dtype else into.add_(a.to(b.dtype) @ b)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """A product computed in b's type, which may be narrower; the result has a's type."""
    return torch.mm(a, b) if b.dtype == a.dtype else (a.to(b.dtype) @ b).to(a.dtype)


class _FirstState:
    """Gradients of the first state. Sequences may start at different steps."""

    def __init__(self, last: Sequence[Tensor]) -> None:
        self.gradients = [torch.zeros_like(each) for each in last]

    def put(self, carried: Sequence[Tensor], size: int = 0) -> None:
        """Store the gradients of sequences from number ``size`` on."""
        for first, each in zip(self.gradients, carried, strict=True):
            first[size : each.shape[0]] = each[size:]


class _LSTM:
    """i, f, o = σ(…), g = tanh(…); c = f c′ + i g; h = o tanh(c)."""

    adds_b_hh_later = False

    def forward(
        self, steps: Steps, rows: Tensor, w_t: Tensor, b_hh: Tensor | None, state: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        size = w_t.shape[0]
        cells, squashed, outputs = (rows.new_empty(rows.shape[0], size) for _ in range(3))
        gates, cell, tanh, output = steps.cut(rows, cells, squashed, outputs)
        i, f, g, o = steps.cut(*rows.split(size, 1))
        (i_and_f,) = steps.cut(rows[:, : 2 * size])
        h, c = state
        for t in steps.order:
            count = steps.sizes[t]
            h, c = _fit(h, state[0], count), _fit(c, state[1], count)
            _add_product(gates[t], h, w_t)
            i_and_f[t].sigmoid_()
            g[t].tanh_()
            o[t].sigmoid_()
            c = torch.mul(i[t], g[t], out=cell[t]).addcmul_(f[t], c)
            h = torch.mul(o[t], torch.tanh(c, out=tanh[t]), out=output[t])
        return outputs, [cells, squashed, rows]

    def backward(
        self, steps: Steps, w: Tensor, forward: Forward, gradient: Tensor, last: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        cells, squashed, rows = forward.saved
        i, f, g, o = rows.chunk(4, 1)
        c_before = steps.before(cells, forward.state[1])
        # Derivatives of c by the arguments of i, f and g; below, of h by the argument of o, and by c.
        by_c = torch.stack([g * i * (1 - i), c_before * f * (1 - f), i * (1 - g * g)], 1)
        gradients = torch.empty_like(rows)
        parts = gradients.unflatten(1, (4, -1))
        of_c, of_o, of_gates = steps.cut(parts[:, :3], parts[:, 3], gradients)
        into_c, into_o, through, forget, arriving = steps.cut(
            by_c, squashed * o * (1 - o), o * (1 - squashed * squashed), f, gradient
        )
        first, dh, dc = _FirstState(last), last[0][:0], last[1][:0]
        for t in reversed(steps.order):
            count = steps.sizes[t]
            if dh.shape[0] > count:
                first.put((dh, dc), count)
            dh = _fit(dh, last[0], count) + arriving[t]
            dc = torch.addcmul(_fit(dc, last[1], count), dh, through[t])
            torch.mul(into_c[t], dc.unsqueeze(1), out=of_c[t])
            torch.mul(into_o[t], dh, out=of_o[t])
            dc = dc * forget[t]
            dh = _product(of_gates[t], w)
        first.put((dh, dc))
        return gradients, gradients, first.gradients


class _GRU:
    """r, z = σ(…), n = tanh(x-part + r u) with u = W_hn h′ + b_hn; h = (1 - z) n + z h′."""

    adds_b_hh_later = True

    def forward(
        self, steps: Steps, rows: Tensor, w_t: Tensor, b_hh: Tensor | None, state: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        size = w_t.shape[0]
        all_u = rows.new_empty(rows.shape[0], size)
        outputs = torch.empty_like(all_u)
        r, z, n = steps.cut(*rows.split(size, 1))
        r_and_z, u, output = steps.cut(rows[:, : 2 * size], all_u, outputs)
        bias = rows.new_zeros(3 * size) if b_hh is None else b_hh
        (h,) = state
        for t in steps.order:
            count = steps.sizes[t]
            h = _fit(h, state[0], count)
            candidate = torch.addmm(bias, h, w_t) if w_t.dtype == h.dtype else _product(h, w_t) + bias
            r_and_z[t].add_(candidate[:, : 2 * size]).sigmoid_()
            n[t].addcmul_(r[t], u[t].copy_(candidate[:, 2 * size :])).tanh_()
            h = torch.lerp(n[t], h, z[t], out=output[t])
        return outputs, [all_u, rows]

    def backward(
        self, steps: Steps, w: Tensor, forward: Forward, gradient: Tensor, last: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        u, rows = forward.saved
        r, z, n = rows.chunk(3, 1)
        # Derivatives of h by n's argument; then by the arguments of r and z, and by u.
        by_n = (1 - z) * (1 - n * n)
        by_all = torch.stack([by_n * u * r * (1 - r), (forward.before - n) * z * (1 - z), by_n * r], 1)
        of_states, totals = torch.empty_like(rows), torch.empty_like(gradient)
        into, retained, arriving, total = steps.cut(by_all, z, gradient, totals)
        of_gates, of_rows = steps.cut(of_states.unflatten(1, (3, -1)), of_states)
        first, dh = _FirstState(last), last[0][:0]
        for t in reversed(steps.order):
            count = steps.sizes[t]
            if dh.shape[0] > count:
                first.put((dh,), count)
            dh = torch.add(_fit(dh, last[0], count), arriving[t], out=total[t])
            torch.mul(into[t], dh.unsqueeze(1), out=of_gates[t])
            dh = _add_product(dh * retained[t], of_rows[t], w)
        first.put((dh,))
        of_inputs = torch.cat([of_states[:, : 2 * n.shape[1]], totals * by_n], 1)
        return of_inputs, of_states, first.gradients


class _RNN:
    """h = tanh(…) or relu(…)."""

    adds_b_hh_later = False

    def __init__(self, is_tanh: bool) -> None:
        self._is_tanh = is_tanh

    def forward(
        self, steps: Steps, rows: Tensor, w_t: Tensor, b_hh: Tensor | None, state: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        (gates,) = steps.cut(rows)
        squash: Any = torch.tanh_ if self._is_tanh else torch.relu_
        (h,) = state
        for t in steps.order:
            h = squash(_add_product(gates[t], _fit(h, state[0], steps.sizes[t]), w_t))
        return rows, []

    def backward(
        self, steps: Steps, w: Tensor, forward: Forward, gradient: Tensor, last: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        h = forward.outputs
        gradients = torch.empty_like(h)
        into, arriving, of_gates = steps.cut(1 - h * h if self._is_tanh else (h > 0).to(h.dtype), gradient, gradients)
        first, dh = _FirstState(last), last[0][:0]
        for t in reversed(steps.order):
            count = steps.sizes[t]
            if dh.shape[0] > count:
                first.put((dh,), count)
            dh = _fit(dh, last[0], count) + arriving[t]
            dh = _product(torch.mul(into[t], dh, out=of_gates[t]), w)
        first.put((dh,))
        return gradients, gradients, first.gradients


GATES: dict[str, Gates] = {"LSTM": _LSTM(), "GRU": _GRU(), "RNN_TANH": _RNN(True), "RNN_RELU": _RNN(False)}
