"""What a vector of many layers is made of: which layers are compressed, and how; which travel whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Key", "Layer", "Layout", "Piece", "gathered", "laid_out", "spread"]

#: Names and lengths of the parameters of a vector.
Key = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Layer:
    """A parameter's place in a vector.

    Attributes
    ----------
    name : str
    start, stop : int
        Where it is.
    k : int or None
        Values chosen of each bucket; None: it travels whole.
    """

    name: str
    start: int
    stop: int
    k: int | None


@dataclass(frozen=True)
class Piece:
    """Consecutive values of a parameter, from ``start`` on: what of a residual one rank has."""

    start: int
    values: torch.Tensor

    def put_into(self, first: int, into: torch.Tensor) -> None:
        """Copies what it has of the values from ``first`` on that ``into`` is for."""
        low, high = max(first, self.start), min(first + len(into), self.start + len(self.values))
        if low < high:
            into[low - first : high - first] = self.values[low - self.start : high - self.start]


@dataclass
class Layout:
    """The layers of one vector, the part of it that this rank compresses, and what that part holds back.

    Attributes
    ----------
    key : tuple of (str, int)
        Tells one vector from another: names and lengths of the parameters of which it is made.
    layers : list of Layer
        In order, of the whole vector.
    share : range
        What this rank compresses; residual and velocity are of that.
    residual, velocity : torch.Tensor or None
    entries : int or None
        That the last result had.
    step : int
        In which it was used last.
    """

    key: Key
    layers: list[Layer]
    share: range
    residual: torch.Tensor | None = None
    velocity: torch.Tensor | None = None
    entries: int | None = None
    step: int = 0
    sparse: list[Layer] = field(init=False)
    dense: list[slice] = field(init=False)

    def __post_init__(self) -> None:
        mine = self._mine()
        self.sparse = [
            Layer(layer.name, there.start, there.stop, layer.k) for layer, there, _ in mine if layer.k is not None
        ]
        self.dense = _joined([there for layer, there, _ in mine if layer.k is None])

    def _inside(self, layer: Layer) -> slice:
        """The layer's part of the share, counted from the share's start."""
        low, high = (min(max(x, self.share.start), self.share.stop) for x in (layer.start, layer.stop))
        return slice(low - self.share.start, high - self.share.start)

    def name_at(self, at: int) -> tuple[str, int]:
        """Whose value is at a place of the vector, and at which place of that."""
        layer = next(layer for layer in self.layers if layer.start <= at < layer.stop)
        return layer.name, at - layer.start

    def pieces(self, kind: str) -> dict[str, Piece]:
        """What the residual or velocity has of each parameter: the former of those that are compressed alone."""
        of = getattr(self, kind)
        if of is None:
            return {}
        return {
            layer.name: Piece(first, of[there].clone())
            for layer, there, first in self._mine()
            if kind == "velocity" or layer.k is not None
        }

    def fill(self, into: torch.Tensor, pieces: dict[str, list[Piece]]) -> None:
        """Puts what there is of each parameter into a residual or velocity."""
        for layer, there, first in self._mine():
            for piece in pieces.get(layer.name, ()):
                piece.put_into(first, into[there])

    def _mine(self) -> list[tuple[Layer, slice, int]]:
        """Layers of which this rank has something, where in the share, and which of the layer's values is the first."""
        found = [(layer, self._inside(layer)) for layer in self.layers]
        return [
            (layer, there, there.start + self.share.start - layer.start)
            for layer, there in found
            if there.start < there.stop
        ]


def laid_out(
    parameters: Sequence[torch.Tensor], key: Key, choose: Callable[[str, torch.Tensor], int | None]
) -> list[Layer]:
    """Layers of a vector in which these parameters follow one another, under the names and lengths of the key."""
    layers: list[Layer] = []
    end = 0
    for (name, length), parameter in zip(key, parameters, strict=True):
        layers.append(Layer(name, end, end + length, choose(name, parameter)))
        end += length
    return layers


def _joined(slices: list[slice]) -> list[slice]:
    """Neighbours as one."""
    found: list[slice] = []
    for one in slices:
        if found and found[-1].stop == one.start:
            found[-1] = slice(found[-1].start, one.stop)
        else:
            found.append(one)
    return found


def gathered(flat: Any, slices: list[slice]) -> torch.Tensor:
    """The numbers of these places, one after the other."""
    if not slices:
        return flat[:0]
    return torch.cat([flat[one] for one in slices]) if len(slices) > 1 else flat[slices[0]].clone()


def spread(numbers: torch.Tensor, slices: list[slice], into: torch.Tensor) -> None:
    """The way back."""
    at = 0
    for one in slices:
        into[one] = numbers[at : at + one.stop - one.start]
        at += one.stop - one.start
