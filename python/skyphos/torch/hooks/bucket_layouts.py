"""Layouts of all buckets of a model, by bucket number, with the residuals that they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ...collectives.agreement import fail
from ...errors import BadInput
from ..training.consistency import require_same
from .layout import Layer, Layout, layers_of
from .levels import Levels
from .parameter_names import ParameterNames
from .residual_store import ResidualStore

__all__ = ["BucketLayouts"]


class BucketLayouts:
    """The layout of each bucket, made at its first use, and again when its parameters change."""

    def __init__(self) -> None:
        self._layouts: dict[int, Layout] = {}
        self._store = ResidualStore()

    def state(self) -> dict[str, Any]:
        """All residuals and velocities, as :meth:`ResidualStore.state` has them."""
        return self._store.state(self._layouts.values())

    def load(self, state: dict[str, Any]) -> None:
        """Replace all residuals by those of a state. Nothing changes if it is not a valid state."""
        self._store.load(state)

    def clear(self) -> None:
        """Drop all layouts with their residuals. Residuals that were loaded stay."""
        self._layouts.clear()

    def unclaimed(self) -> str | None:
        """The loaded residuals that no parameter has taken, as an error text, or None."""
        return self._store.unclaimed()

    def layout_of(
        self,
        number: int,
        parameters: list[torch.Tensor],
        vector: torch.Tensor,
        *,
        choose: Callable[[str, torch.Tensor], int | None],
        names: ParameterNames,
        levels: Levels,
        step: int,
        has_velocity: bool,
    ) -> Layout:
        """The layout of a bucket. Collective when it is new or has other parameters.

        ``choose(name, parameter)`` is a layer's k, or None if the layer is not compressed.

        Raises
        ------
        BadInput
            The bucket does not fit its parameters, or a loaded state.
        Mismatch
            Ranks differ in their parameters, or in the number of steps that they have done.
        """
        key = tuple((names[parameter], parameter.numel()) for parameter in parameters)
        layout = self._layouts.get(number)
        if layout is not None and layout.key == key:
            layout.step = step
            return layout
        length = sum(length for _, length in key)
        layers = layers_of(parameters, key, choose)
        problem = self._store.problem(layers, levels.owner, compressed=levels.compresses)
        if length != vector.numel():
            problem = f"a bucket of {vector.numel()} values for parameters of {length}"
        if problem is not None:
            fail(levels.comm, BadInput(problem), goes_on=True)
        require_same(levels.comm, self._facts(vector, layers, step))
        self._store.share_loaded(levels)
        if layout is not None:
            # DDP makes its buckets anew after the first step. Layouts that this step has used are of new buckets.
            current = {n: one for n, one in self._layouts.items() if one.step == step and n != number}
            self._store.take_back([one for n, one in self._layouts.items() if n not in current], levels)
            self._layouts = current
        layout = Layout(key, layers, levels.share(vector.numel()), step=step)
        wanted = {"residual": bool(layout.sparse) and levels.across is not None, "velocity": has_velocity}
        self._store.give(layout, vector.new_empty(0), wanted)
        self._layouts[number] = layout
        return layout

    def _facts(self, vector: torch.Tensor, layers: Iterable[Layer], step: int) -> list[str]:
        """Facts that must be the same on all ranks for a new layout."""
        done = f"{step} steps done{', with a loaded state' * self._store.is_loaded}"
        layouts = [f"{layer.name} of {layer.stop - layer.start} values with k={layer.k}" for layer in layers]
        return [done, str(vector.dtype), *layouts]
