"""Residual store: the residuals and velocities of a model by parameter name, for states that are saved and loaded.

While training, residuals are in the layouts of the buckets. The store has them when no layout does: after a state was
loaded, and when DDP makes its buckets anew. There they are pieces, consecutive values of a parameter; with two levels
each rank of a host may have some of the pieces of a parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import index
from typing import Any

import torch

from ...errors import BadInput
from .layout import Layer, Layout, Piece
from .levels import Levels

__all__ = ["ResidualStore"]

_KINDS = ("residual", "velocity")


class ResidualStore:
    """Pieces that no layout has taken yet.

    Examples
    --------
    >>> import torch
    >>> from skyphos.torch.hooks.residual_store import ResidualStore
    >>> from skyphos.torch.hooks.layout import Layer
    >>> store = ResidualStore()
    >>> store.load({"residual": {"weight": [(0, torch.ones(3))]}, "velocity": {}, "owner": [0, 1, None]})
    >>> store.problem([Layer("weight", 0, 2, 1)], [0, 1, None], compressed=True)
    'a state was loaded that has 3 values of weight from index 0 on, but weight has 2 values'
    """

    def __init__(self) -> None:
        self._pieces: dict[str, dict[str, list[Piece]]] = {kind: {} for kind in _KINDS}
        #: Whether the pieces come from a loaded state, of which each rank has its own.
        self.is_loaded = False
        #: Whose pieces they are: the rank, the number of ranks, and with two levels the ranks of each host.
        self.owner: list[Any] | None = None

    def state(self, layouts: Iterable[Layout]) -> dict[str, Any]:
        """All pieces, also those in layouts, as pairs of first index and values; and the owner."""
        state: dict[str, Any] = {"owner": self.owner}
        for kind, stored in self._pieces.items():
            pieces = {name: list(some) for name, some in stored.items()}
            _add_layouts(pieces, layouts, kind)
            state[kind] = {name: [(piece.start, piece.values) for piece in some] for name, some in pieces.items()}
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        """Replace all pieces by those of a :meth:`state`."""
        pieces: dict[str, dict[str, list[Piece]]] = {}
        for kind in _KINDS:
            pieces[kind] = {}
            for name, some in state[kind].items():
                pieces[kind][name] = [_piece(kind, name, start, values) for start, values in some]
        self._pieces, self.is_loaded, self.owner = pieces, True, _owner(state["owner"])

    def problem(self, layers: Iterable[Layer], owner: list[Any], *, compressed: bool) -> str | None:
        """The reason why these layers cannot take a loaded state, or None.

        ``compressed`` is False where nothing is compressed: on one host with two levels.
        """
        if self.is_loaded and any(self._pieces.values()) and self.owner is not None and self.owner != owner:
            return (
                f"a state was loaded that was saved by {_described(self.owner)}, on {_described(owner)}: each rank has "
                "residuals of its own. Save the state on each rank and load it there, or start without residuals: "
                'state["residual"].clear(), state["velocity"].clear(), state["owner"] = None'
            )
        for layer in layers:
            name, length = layer.name, layer.stop - layer.start
            for pieces in self._pieces.values():
                for piece in pieces.get(name, ()):
                    if piece.start + len(piece.values) > length:
                        return (
                            f"a state was loaded that has {len(piece.values)} values of {name} from index "
                            f"{piece.start} on, but {name} has {length} values"
                        )
            has_residual = any(bool(piece.values.any()) for piece in self._pieces["residual"].get(name, ()))
            if has_residual and (layer.k is None or not compressed):
                return (
                    f"a state was loaded that has a residual of {name}, which is not compressed now, so the residual "
                    "would never be sent: use the k=, layers=, dense_below= and hosts that it was saved with, or drop "
                    f'the residual: state["residual"].pop({name!r})'
                )
        return None

    def unclaimed(self) -> str | None:
        """The residuals that no parameter has taken, as an error text, or None. Called once all have taken theirs."""
        names = [n for n, some in self._pieces["residual"].items() if any(bool(p.values.any()) for p in some)]
        if not names:
            return None
        return (
            f"a state was loaded that has residuals of {', '.join(sorted(names))}, but no parameter with a gradient "
            "has such a name: the state is of another model, or the parameters had no names. Rename them in "
            f'state["residual"], or drop them: state["residual"].pop({min(names)!r})'
        )

    def share_loaded(self, levels: Levels) -> None:
        """Give all ranks of a host the pieces that each of them loaded. Collective within the host."""
        if self.is_loaded and levels.has_two:
            self._pieces = _merged(levels.allgather_inside(self._pieces))
        self.is_loaded, self.owner = False, levels.owner

    def take_back(self, layouts: Iterable[Layout], levels: Levels) -> None:
        """Take the residuals of layouts that end; the next layouts may give them to other ranks of the host.

        Collective within the host.
        """
        pieces: dict[str, dict[str, list[Piece]]] = {kind: {} for kind in _KINDS}
        for kind in _KINDS:
            _add_layouts(pieces[kind], layouts, kind)
        self._pieces = _merged([self._pieces, *(levels.allgather_inside(pieces) if levels.has_two else [pieces])])

    def give(self, layout: Layout, like: torch.Tensor, wanted: Mapping[str, bool]) -> None:
        """Move the pieces of a layout's parameters into its residual and velocity, new tensors of ``like``'s type."""
        for kind, is_wanted in wanted.items():
            # Removes also pieces of other ranks' shares: those ranks have them too.
            pieces = {name: self._pieces[kind].pop(name, []) for name, _ in layout.key}
            if is_wanted:
                values = like.new_zeros(len(layout.share))
                layout.fill(values, pieces)
                setattr(layout, kind, values)


def _add_layouts(into: dict[str, list[Piece]], layouts: Iterable[Layout], kind: str) -> None:
    for layout in layouts:
        for name, piece in layout.pieces(kind).items():
            into.setdefault(name, []).append(piece)


def _merged(parts: Iterable[Mapping[str, Mapping[str, list[Piece]]]]) -> dict[str, dict[str, list[Piece]]]:
    merged: dict[str, dict[str, list[Piece]]] = {kind: {} for kind in _KINDS}
    for part in parts:
        for kind in _KINDS:
            for name, some in part[kind].items():
                merged[kind].setdefault(name, []).extend(some)
    return merged


def _owner(value: Any) -> list[Any] | None:
    """A state's owner, with its types checked."""
    if value is None:
        return None
    rank, size, hosts = value
    return [index(rank), index(size), None if hosts is None else [[index(one) for one in ranks] for ranks in hosts]]


def _described(owner: list[Any]) -> str:
    rank, size, hosts = owner
    return f"rank {rank} of {size}{'' if hosts is None else f', on hosts of {hosts}'}"


def _piece(kind: str, name: str, start: Any, values: Any) -> Piece:
    """A piece of a state, with its types checked."""
    what = f"{kind} of {name}"
    if not isinstance(values, torch.Tensor) or values.dim() != 1 or not values.dtype.is_floating_point:
        found = (
            f"{values.dtype} of {tuple(values.shape)}" if isinstance(values, torch.Tensor) else type(values).__name__
        )
        raise BadInput(f"a state has one-dimensional tensors of floats, not {found}, for the {what}")
    if index(start) < 0:
        raise BadInput(f"a state has no values from index {start} on, for the {what}")
    if not bool(torch.isfinite(values).all()):
        raise BadInput(f"a state has values that are not finite, for the {what}")
    return Piece(index(start), values)
