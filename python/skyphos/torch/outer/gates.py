"""The steps of recurrent layers: gates forwards, and their derivatives backwards.

Letters are those of PyTorch's documentation. Every step is a few operations on rows that were cut beforehand, in place
where they can be: for small layers it is calls that take the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

__all__ = ["GATES", "Ahead", "Gates", "Steps"]


class Steps:
    """How the rows of a layer follow each other.

    Parameters
    ----------
    sizes : tuple of int
        Sequences of each step, never rising.
    reverse : bool
        Whether the last step comes first.
    """

    def __init__(self, sizes: tuple[int, ...], reverse: bool) -> None:
        self.sizes = list(sizes)
        self.order = range(len(sizes))[:: -1 if reverse else 1]
        self._starts = np.cumsum([0, *sizes])

    def cut(self, *tensors: Tensor) -> list[Sequence[Tensor]]:
        """The rows of each step, of each tensor."""
        return [tensor.split(self.sizes) for tensor in tensors]

    def before(self, states: Tensor, first: Tensor) -> Tensor:
        """The state before each row: that of another row, or the first."""
        count, size, start = first.shape[0], 0, 0
        if self.sizes[0] == self.sizes[-1]:
            forth = self.order.step > 0
            return torch.cat([first, states[: states.shape[0] - count]] if forth else [states[count:], first])
        places = np.empty(self._starts[-1], np.int64)  # among the first and all states
        for step in self.order:
            now, at = self.sizes[step], self._starts[step]
            both = min(now, size)
            places[at : at + both] = np.arange(count + start, count + start + both)
            places[at + both : at + now] = np.arange(both, now)
            size, start = now, at
        return torch.cat([first, states]).index_select(0, torch.from_numpy(places).to(states.device))

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


class Ahead(NamedTuple):
    """What the way forwards has left: outputs, h before each row, the first state, and what it kept."""

    outputs: Tensor
    before: Tensor
    state: Sequence[Tensor]
    kept: Sequence[Tensor]


class Gates(Protocol):
    """One kind of layer."""

    #: Whether b_hh is no part of what inputs bring.
    apart: bool

    def forward(
        self, steps: Steps, rows: Tensor, w_t: Tensor, b_hh: Tensor | None, state: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """All steps, from what inputs bring to gates (``rows``, which is written to) and W_hhᵀ.

        Returns outputs, and what the backward needs: first of all c, if the state has one.
        """

    def backward(
        self, steps: Steps, w: Tensor, ahead: Ahead, gradient: Tensor, last: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Gradients of gates by inputs and by states, and of the first state.

        Of W_hh, the way forwards, and the gradients of outputs and last state.
        """


def _fit(state: Tensor, others: Tensor, size: int) -> Tensor:
    """The state of so many sequences: some of those here, or others behind them."""
    here = state.shape[0]
    if here == size:
        return state
    return state[:size] if here > size else torch.cat([state, others[here:size]])


def _add_product(into: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Add a product, perhaps of narrower numbers, in place."""
    return into.addmm_(a, b) if b.dtype == into.dtype else into.add_(a.to(b.dtype) @ b)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """A product, perhaps of narrower numbers."""
    return torch.mm(a, b) if b.dtype == a.dtype else (a.to(b.dtype) @ b).to(a.dtype)


class _Ending:
    """Gradients that flow to the first state, of sequences that began at different steps."""

    def __init__(self, last: Sequence[Tensor]) -> None:
        self.first = [torch.zeros_like(each) for each in last]

    def put(self, carried: Sequence[Tensor], size: int = 0) -> None:
        """Keep what belongs to sequences beyond so many."""
        for first, each in zip(self.first, carried, strict=True):
            first[size : each.shape[0]] = each[size:]


class _LSTM:
    """i, f, o = σ(…), g = tanh(…); c = f c′ + i g; h = o tanh(c)."""

    apart = False

    def forward(
        self, steps: Steps, rows: Tensor, w_t: Tensor, b_hh: Tensor | None, state: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        size = w_t.shape[0]
        cells, squashed, outputs = (rows.new_empty(rows.shape[0], size) for _ in range(3))
        gates, cell, tanh, output = steps.cut(rows, cells, squashed, outputs)
        i, f, g, o = steps.cut(*rows.split(size, 1))
        (both,) = steps.cut(rows[:, : 2 * size])
        h, c = state
        for t in steps.order:
            count = steps.sizes[t]
            h, c = _fit(h, state[0], count), _fit(c, state[1], count)
            _add_product(gates[t], h, w_t)
            both[t].sigmoid_()
            g[t].tanh_()
            o[t].sigmoid_()
            c = torch.mul(i[t], g[t], out=cell[t]).addcmul_(f[t], c)
            h = torch.mul(o[t], torch.tanh(c, out=tanh[t]), out=output[t])
        return outputs, [cells, squashed, rows]

    def backward(
        self, steps: Steps, w: Tensor, ahead: Ahead, gradient: Tensor, last: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        cells, squashed, rows = ahead.kept
        i, f, g, o = rows.chunk(4, 1)
        c_before = steps.before(cells, ahead.state[1])
        # ∂c by i, f, g; ∂h by o and by c.
        by_c = torch.stack([g * i * (1 - i), c_before * f * (1 - f), i * (1 - g * g)], 1)
        found = torch.empty_like(rows)
        parts = found.unflatten(1, (4, -1))
        of_c, of_o, of_gates = steps.cut(parts[:, :3], parts[:, 3], found)
        into_c, into_o, through, forget, arriving = steps.cut(
            by_c, squashed * o * (1 - o), o * (1 - squashed * squashed), f, gradient
        )
        ending, dh, dc = _Ending(last), last[0][:0], last[1][:0]
        for t in reversed(steps.order):
            count = steps.sizes[t]
            if dh.shape[0] > count:
                ending.put((dh, dc), count)
            dh = _fit(dh, last[0], count) + arriving[t]
            dc = torch.addcmul(_fit(dc, last[1], count), dh, through[t])
            torch.mul(into_c[t], dc.unsqueeze(1), out=of_c[t])
            torch.mul(into_o[t], dh, out=of_o[t])
            dc = dc * forget[t]
            dh = _product(of_gates[t], w)
        ending.put((dh, dc))
        return found, found, ending.first


class _GRU:
    """r, z = σ(…), n = tanh(x-part + r u) with u = W_hn h′ + b_hn; h = (1 - z) n + z h′."""

    apart = True

    def forward(
        self, steps: Steps, rows: Tensor, w_t: Tensor, b_hh: Tensor | None, state: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        size = w_t.shape[0]
        brought = rows.new_empty(rows.shape[0], size)
        outputs = torch.empty_like(brought)
        r, z, n = steps.cut(*rows.split(size, 1))
        both, u, output = steps.cut(rows[:, : 2 * size], brought, outputs)
        bias = rows.new_zeros(3 * size) if b_hh is None else b_hh
        (h,) = state
        for t in steps.order:
            count = steps.sizes[t]
            h = _fit(h, state[0], count)
            came = torch.addmm(bias, h, w_t) if w_t.dtype == h.dtype else _product(h, w_t) + bias
            both[t].add_(came[:, : 2 * size]).sigmoid_()
            n[t].addcmul_(r[t], u[t].copy_(came[:, 2 * size :])).tanh_()
            h = torch.lerp(n[t], h, z[t], out=output[t])
        return outputs, [brought, rows]

    def backward(
        self, steps: Steps, w: Tensor, ahead: Ahead, gradient: Tensor, last: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        brought, rows = ahead.kept
        r, z, n = rows.chunk(3, 1)
        # ∂h by n's argument, and from there by r, z and u.
        by_n = (1 - z) * (1 - n * n)
        by_all = torch.stack([by_n * brought * r * (1 - r), (ahead.before - n) * z * (1 - z), by_n * r], 1)
        of_states, totals = torch.empty_like(rows), torch.empty_like(gradient)
        into, kept_on, arriving, total = steps.cut(by_all, z, gradient, totals)
        of_gates, of_rows = steps.cut(of_states.unflatten(1, (3, -1)), of_states)
        ending, dh = _Ending(last), last[0][:0]
        for t in reversed(steps.order):
            count = steps.sizes[t]
            if dh.shape[0] > count:
                ending.put((dh,), count)
            dh = torch.add(_fit(dh, last[0], count), arriving[t], out=total[t])
            torch.mul(into[t], dh.unsqueeze(1), out=of_gates[t])
            dh = _add_product(dh * kept_on[t], of_rows[t], w)
        ending.put((dh,))
        of_inputs = torch.cat([of_states[:, : 2 * n.shape[1]], totals * by_n], 1)
        return of_inputs, of_states, ending.first


class _RNN:
    """h = tanh(…), or what is positive of it."""

    apart = False

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
        self, steps: Steps, w: Tensor, ahead: Ahead, gradient: Tensor, last: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        h = ahead.outputs
        found = torch.empty_like(h)
        into, arriving, of_gates = steps.cut(1 - h * h if self._is_tanh else (h > 0).to(h.dtype), gradient, found)
        ending, dh = _Ending(last), last[0][:0]
        for t in reversed(steps.order):
            count = steps.sizes[t]
            if dh.shape[0] > count:
                ending.put((dh,), count)
            dh = _fit(dh, last[0], count) + arriving[t]
            dh = _product(torch.mul(into[t], dh, out=of_gates[t]), w)
        ending.put((dh,))
        return found, found, ending.first


GATES: dict[str, Gates] = {"LSTM": _LSTM(), "GRU": _GRU(), "RNN_TANH": _RNN(True), "RNN_RELU": _RNN(False)}
