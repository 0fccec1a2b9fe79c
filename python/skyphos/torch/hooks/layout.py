"""Layout of a bucket: which layers are in it, which of them are compressed, and the residuals of one rank's share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Key", "Layer", "Layout", "Piece", "layers_of", "pack", "unpack"]

#: Names and lengths of the parameters of a vector.
Key = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Layer:
    """The range of one parameter in a vector.

    Attributes
    ----------
    name : str
    start, stop : int
    k : int or None
        Values chosen of each bucket. None: the layer is not compressed.
    """

    name: str
    start: int
    stop: int
    k: int | None


@dataclass(frozen=True)
class Piece:
    """Consecutive values of a parameter's residual or velocity, from index ``start`` of the parameter on."""

    start: int
    values: torch.Tensor

    def copy_into(self, first: int, into: torch.Tensor) -> None:
        """Copy the overlap with ``into``, which is for the parameter's values from index ``first`` on."""
        low, high = max(first, self.start), min(first + len(into), self.start + len(self.values))
        if low < high:
            into[low - first : high - first] = self.values[low - self.start : high - self.start]


@dataclass
class Layout:
    """The layers of one vector, the share of it that this rank compresses, and that share's residual.

    Attributes
    ----------
    key : tuple of (str, int)
        Identifies the vector: names and lengths of its parameters.
    layers : list of Layer
        All layers of the vector, in order.
    share : range
        The indices that this rank compresses. Residual and velocity have that length.
    residual, velocity : torch.Tensor or None
    entries : int or None
        Number of entries of the last result.
    step : int
        The last step that used this layout.
    sparse : list of Layer
        The compressed layers, as ranges of the share.
    dense : list of slice
        The ranges of the share that are not compressed; adjacent layers are one range.
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
        shared = self._layers_in_share()
        self.sparse = [
            Layer(layer.name, part.start, part.stop, layer.k) for layer, part, _ in shared if layer.k is not None
        ]
        self.dense = _joined([part for layer, part, _ in shared if layer.k is None])

    def _part_in_share(self, layer: Layer) -> slice:
        """The part of the layer that is in the share, counted from the share's start."""
        low, high = (min(max(x, self.share.start), self.share.stop) for x in (layer.start, layer.stop))
        return slice(low - self.share.start, high - self.share.start)

    def name_at(self, index: int) -> tuple[str, int]:
        """The parameter that has this index of the vector, and the index within the parameter."""
        layer = next(layer for layer in self.layers if layer.start <= index < layer.stop)
        return layer.name, index - layer.start

    def pieces(self, kind: str) -> dict[str, Piece]:
        """The pieces of the residual (of compressed layers only) or of the velocity, by parameter name."""
        values = getattr(self, kind)
        if values is None:
            return {}
        return {
            layer.name: Piece(first, values[part].clone())
            for layer, part, first in self._layers_in_share()
            if kind == "velocity" or layer.k is not None
        }

    def fill(self, into: torch.Tensor, pieces: dict[str, list[Piece]]) -> None:
        """Copy pieces into a residual or velocity of this share."""
        for layer, part, first in self._layers_in_share():
            for piece in pieces.get(layer.name, ()):
                piece.copy_into(first, into[part])

    def _layers_in_share(self) -> list[tuple[Layer, slice, int]]:
        """For each layer in the share: the layer, its range in the share, and the layer's index where that begins."""
        parts = [(layer, self._part_in_share(layer)) for layer in self.layers]
        return [
            (layer, part, part.start + self.share.start - layer.start)
            for layer, part in parts
            if part.start < part.stop
        ]


def layers_of(
    parameters: Sequence[torch.Tensor], key: Key, choose: Callable[[str, torch.Tensor], int | None]
) -> list[Layer]:
    """The layers of a vector that holds these parameters one after the other."""
    layers: list[Layer] = []
    end = 0
    for (name, length), parameter in zip(key, parameters, strict=True):
        layers.append(Layer(name, end, end + length, choose(name, parameter)))
        end += length
    return layers


def _joined(slices: list[slice]) -> list[slice]:
    """The same indices, with adjacent slices joined."""
    joined: list[slice] = []
    for one in slices:
        if joined and joined[-1].stop == one.start:
            joined[-1] = slice(joined[-1].start, one.stop)
        else:
            joined.append(one)
    return joined


def pack(flat: Any, slices: list[slice]) -> torch.Tensor:
    """The values of these slices, one after the other."""
    if not slices:
        return flat[:0]
    return torch.cat([flat[one] for one in slices]) if len(slices) > 1 else flat[slices[0]].clone()


def unpack(packed: torch.Tensor, slices: list[slice], into: torch.Tensor) -> None:
    """Write packed values back to their slices."""
    start = 0
    for one in slices:
        into[one] = packed[start : start + one.stop - one.start]
        start += one.stop - one.start
