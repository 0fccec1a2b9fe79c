"""What is held back of a model's gradients from step to step: residuals and velocities, by the names of parameters.

They are in the layouts of vectors while there are such. Before that, when a state was loaded or vectors are made anew,
they are pieces: consecutive values of a parameter, of which with two levels each rank of a host may have some.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import index
from typing import Any

import torch

from ...errors import BadInput
from .layout import Layer, Layout, Piece
from .levels import Levels

__all__ = ["Held"]

_KINDS = ("residual", "velocity")


class Held:
    """Pieces that wait for a layout to take them.

    Examples
    --------
    >>> import torch
    >>> from skyphos.torch.hooks.residual_store import Held
    >>> from skyphos.torch.hooks.layout import Layer
    >>> held = Held()
    >>> held.load({"residual": {"weight": [(0, torch.ones(3))]}, "velocity": {}, "owner": [0, 1, None]})
    >>> held.problem([Layer("weight", 0, 2, 1)], [0, 1, None], compressed=True)
    'a state was loaded that has 3 values of weight from place 0 on, of which there are 2'
    """

    def __init__(self) -> None:
        self._pieces: dict[str, dict[str, list[Piece]]] = {kind: {} for kind in _KINDS}
        #: Whether they are of a state: then each rank has its own alone.
        self.is_loaded = False
        #: Where they are at home: the rank, of how many, and with two levels on which hosts.
        self.owner: list[Any] | None = None

    def state(self, layouts: Iterable[Layout]) -> dict[str, Any]:
        """All pieces, and those of layouts, as pairs of the first value's place and the values, and whose they are."""
        found: dict[str, Any] = {"owner": self.owner}
        for kind, pieces in self._pieces.items():
            of = {name: list(some) for name, some in pieces.items()}
            _add_layouts(of, layouts, kind)
            found[kind] = {name: [(piece.start, piece.values) for piece in some] for name, some in of.items()}
        return found

    def load(self, state: Mapping[str, Any]) -> None:
        """Have what :meth:`state` returned in place of all else."""
        pieces: dict[str, dict[str, list[Piece]]] = {}
        for kind in _KINDS:
            pieces[kind] = {}
            for name, some in state[kind].items():
                pieces[kind][name] = [_piece(kind, name, start, values) for start, values in some]
        self._pieces, self.is_loaded, self.owner = pieces, True, _owner(state["owner"])

    def problem(self, layers: Iterable[Layer], owner: list[Any], *, compressed: bool) -> str | None:
        """What of these layers cannot be taken from a state that was loaded; of one host none are compressed."""
        if self.is_loaded and any(self._pieces.values()) and self.owner is not None and self.owner != owner:
            return (
                f"a state was loaded that is of {_said(self.owner)}, by {_said(owner)}: what each rank holds back is "
                "its own. Save it on each rank and load it there, or begin without what is held back: "
                'state["residual"].clear(), state["velocity"].clear(), state["owner"] = None'
            )
        for layer in layers:
            name, length = layer.name, layer.stop - layer.start
            for pieces in self._pieces.values():
                for piece in pieces.get(name, ()):
                    if piece.start + len(piece.values) > length:
                        return (
                            f"a state was loaded that has {len(piece.values)} values of {name} from place "
                            f"{piece.start} on, of which there are {length}"
                        )
            waiting = any(bool(piece.values.any()) for piece in self._pieces["residual"].get(name, ()))
            if waiting and (layer.k is None or not compressed):
                return (
                    f"a state was loaded that holds back values of {name}, which travels whole now and would never "
                    "send them: go on with the k=, layers= and dense_below= and on the hosts that it was saved with, "
                    f'or leave them out: state["residual"].pop({name!r})'
                )
        return None

    def left(self) -> str | None:
        """What of a state no parameter has taken, now that all have been asked."""
        names = [n for n, some in self._pieces["residual"].items() if any(bool(p.values.any()) for p in some)]
        if not names:
            return None
        return (
            f"a state was loaded that holds back values of {', '.join(sorted(names))}, which no parameter with a "
            "gradient is named: it is of another model, or of parameters without names; rename them in "
            f'state["residual"], or leave them out: state["residual"].pop({min(names)!r})'
        )

    def exchange(self, levels: Levels) -> None:
        """Have the pieces of a loaded state that other ranks of the host have too. Collective there."""
        if self.is_loaded and levels.two:
            self._pieces = _merged(levels.tell_inside(self._pieces))
        self.is_loaded, self.owner = False, levels.owner

    def dissolve(self, layouts: Iterable[Layout], levels: Levels) -> None:
        """Make pieces of all that layouts hold back: other layouts may have another rank's share. Collective there."""
        of: dict[str, dict[str, list[Piece]]] = {kind: {} for kind in _KINDS}
        for kind in _KINDS:
            _add_layouts(of[kind], layouts, kind)
        self._pieces = _merged([self._pieces, *(levels.tell_inside(of) if levels.two else [of])])

    def give(self, layout: Layout, like: torch.Tensor, wanted: Mapping[str, bool]) -> None:
        """Let a layout hold what was held back of its parameters, in a tensor like another one."""
        for kind, is_wanted in wanted.items():
            # Those of other ranks' shares go too: they have them.
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


def _owner(said: Any) -> list[Any] | None:
    """That of a state, if it can be one."""
    if said is None:
        return None
    rank, size, hosts = said
    return [index(rank), index(size), None if hosts is None else [[index(one) for one in ranks] for ranks in hosts]]


def _said(owner: list[Any]) -> str:
    rank, size, hosts = owner
    return f"rank {rank} of {size}{'' if hosts is None else f', on hosts of {hosts}'}"


def _piece(kind: str, name: str, start: Any, values: Any) -> Piece:
    """A piece of a state, if it can be one."""
    what = f"{kind} of {name}"
    if not isinstance(values, torch.Tensor) or values.dim() != 1 or not values.dtype.is_floating_point:
        found = (
            f"{values.dtype} of {tuple(values.shape)}" if isinstance(values, torch.Tensor) else type(values).__name__
        )
        raise BadInput(f"a state has floats in a row, not {found}, for the {what}")
    if index(start) < 0:
        raise BadInput(f"a state has no values from place {start} on, for the {what}")
    if not bool(torch.isfinite(values).all()):
        raise BadInput(f"a state has what is not finite for the {what}")
    return Piece(index(start), values)
