"""Modules that have moved: their old names import the new module and warn, for one version."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: New path of each module below ``skyphos`` by its old one.
MODULES = {"bootstrap": "launch.bootstrap", "planner": "planning.planner", "topology": "planning.topology"}


class _Renamed:
    """Finds old module names, and loads the new modules in their place.

    It has no base class of ``importlib.abc``: that module takes 15 ms to import.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, module = name.rpartition(".")
        return ModuleSpec(name, self) if package == __package__ and module in MODULES else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        now = f"{__package__}.{MODULES[spec.name.rpartition('.')[2]]}"
        warnings.warn(f"{spec.name} is {now} now; the next version drops the old name", DeprecationWarning, 2)
        module = ModuleType(spec.name)
        module.__getattr__ = lambda name: getattr(import_module(now), name)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: attributes come from the new module."""


def install() -> None:
    """Make the old names known to ``import``."""
    if not any(isinstance(finder, _Renamed) for finder in sys.meta_path):
        sys.meta_path.append(_Renamed())
