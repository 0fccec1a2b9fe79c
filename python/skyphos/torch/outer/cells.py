"""``OuterRNN``, ``OuterLSTM``, ``OuterGRU`` and their cells: recurrent layers that exchange factors.

Parameters, arguments and results are those of PyTorch's modules. :mod:`.recurrent` computes them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ...errors import BadInput
from .linear import OuterLayer
from .recurrent import Direction, Kind, recurrent

__all__ = ["OuterGRU", "OuterGRUCell", "OuterLSTM", "OuterLSTMCell", "OuterRNN", "OuterRNNCell"]

State = tuple[Tensor, ...]


class _Recurrent(OuterLayer):
    """Base class of layers and cells: runs one direction of a layer, named by the suffix of its parameters."""

    @property
    def kind(self) -> Kind:
        """The kind of layer, as the module's ``mode``."""
        raise NotImplementedError

    def _run(self, x: Tensor, sizes: list[int], state: State, suffix: str = "") -> State:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        w_ih, w_hh, b_ih, b_hh = (getattr(self, name + suffix, None) for name in names)
        weights = self.outer("weight_ih" + suffix), self.outer("weight_hh" + suffix)
        direction = Direction(self.kind, tuple(sizes), suffix.endswith("_reverse"), weights)
        return recurrent(direction, x, state, (w_ih, w_hh), (b_ih, b_hh))


class _Layers(_Recurrent):
    """The layers of ``nn.LSTM`` and the like, in one or both directions."""

    @property
    def kind(self) -> Kind:
        kind: Kind = self.mode
        return kind

    @staticmethod
    def weights_of(module: Any) -> list[str]:
        if module.proj_size:
            return []
        return [name for names in module._all_weights for name in names if name.startswith("weight")]

    def forward(self, input: Any, hx: Any = None) -> Any:
        if not self.is_outer():
            return super().forward(input, hx)
        packed = isinstance(input, PackedSequence)
        nothing: Any = None
        x, batch_sizes, order, unsorted = input if packed else (input, nothing, nothing, nothing)
        unbatched = not packed and x.dim() == 2
        if unbatched:
            x = x.unsqueeze(1)
        elif not packed and self.batch_first:
            x = x.transpose(0, 1)
        if not packed and not x.shape[0]:
            raise BadInput("a sequence has at least one step")
        sizes = batch_sizes.tolist() if packed else [x.shape[1]] * x.shape[0]
        batch = sizes[0] if packed else x.shape[1]
        state = self._first_state(hx, x, batch, unbatched, order)
        torch_module: Any = self
        torch_module.check_forward_args(
            x.transpose(0, 1) if self.batch_first and not packed else x,
            state if self.kind == "LSTM" else state[0],
            batch_sizes,
        )
        rows, last = self._run_layers(x.reshape(-1, x.shape[-1]), sizes, state)
        if unsorted is not None:
            last = tuple(each.index_select(1, unsorted) for each in last)
        if packed:
            output: Any = PackedSequence(rows, batch_sizes, order, unsorted)
        else:
            output = rows.view(*x.shape[:2], rows.shape[-1])
            if unbatched:
                output, last = output.squeeze(1), tuple(each.squeeze(1) for each in last)
            elif self.batch_first:
                output = output.transpose(0, 1)
        return output, last if self.kind == "LSTM" else last[0]

    def _first_state(self, hx: Any, x: Tensor, batch: int, unbatched: bool, order: Tensor | None) -> State:
        """h, or h and c, of shape (layers times directions, batch, hidden)."""
        if hx is None:
            zeros = x.new_zeros(self.num_layers * (1 + self.bidirectional), batch, self.hidden_size)
            return (zeros, zeros) if self.kind == "LSTM" else (zeros,)
        state = hx if self.kind == "LSTM" else (hx,)
        if unbatched:
            state = tuple(each.unsqueeze(1) for each in state)
        return tuple(state) if order is None else tuple(each.index_select(1, order) for each in state)

    def _run_layers(self, rows: Tensor, sizes: list[int], state: State) -> tuple[Tensor, State]:
        """Run all layers. Returns their outputs and last states."""
        directions, ends = 1 + self.bidirectional, []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(directions):
                at = layer * directions + direction
                suffix = f"_l{layer}{'_reverse' if direction else ''}"
                output, *last = self._run(rows, sizes, tuple(each[at] for each in state), suffix)
                outputs.append(output)
                ends.append(last)
            rows = outputs[0] if directions == 1 else torch.cat(outputs, -1)
            if self.dropout and self.training and layer + 1 < self.num_layers:
                rows = F.dropout(rows, self.dropout)
        return rows, tuple(torch.stack(each) for each in zip(*ends, strict=True))


class OuterLSTM(_Layers, nn.LSTM):
    """:class:`torch.nn.LSTM`."""


class OuterGRU(_Layers, nn.GRU):
    """:class:`torch.nn.GRU`."""


class OuterRNN(_Layers, nn.RNN):
    """:class:`torch.nn.RNN`."""


class _Cell(_Recurrent):
    """A cell: one step of a layer."""

    @staticmethod
    def weights_of(module: Any) -> list[str]:
        return ["weight_ih", "weight_hh"]

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        if not self.is_outer():
            return super().forward(input, hx)
        unbatched, x = input.dim() == 1, torch.atleast_2d(input)
        if hx is None:
            zeros = x.new_zeros(x.shape[0], self.hidden_size)
            state: State = (zeros, zeros) if self.kind == "LSTM" else (zeros,)
        else:
            state = tuple(torch.atleast_2d(each) for each in (hx if self.kind == "LSTM" else (hx,)))
        for what, each, width in [("input", x, self.input_size), *(("state", h, self.hidden_size) for h in state)]:
            if each.shape != (len(x), width):
                raise BadInput(f"{what} of shape {tuple(each.shape)}, where {(len(x), width)} is expected")
        _, *last = self._run(x, [x.shape[0]], state)
        last = [each.squeeze(0) for each in last] if unbatched else last
        return tuple(last) if self.kind == "LSTM" else last[0]


class OuterLSTMCell(_Cell, nn.LSTMCell):
    """:class:`torch.nn.LSTMCell`."""

    @property
    def kind(self) -> Kind:
        return "LSTM"


class OuterGRUCell(_Cell, nn.GRUCell):
    """:class:`torch.nn.GRUCell`."""

    @property
    def kind(self) -> Kind:
        return "GRU"


class OuterRNNCell(_Cell, nn.RNNCell):
    """:class:`torch.nn.RNNCell`."""

    @property
    def kind(self) -> Kind:
        return "RNN_TANH" if self.nonlinearity == "tanh" else "RNN_RELU"
