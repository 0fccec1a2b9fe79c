"""Shuffle: sends values by key to the owner of each key and merges them on the path (*Twister*, section 5)."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .explanation import ShuffleExplanation
    from .sender import Partition, Shuffle
    from .text import words

__all__ = ["Partition", "Shuffle", "ShuffleExplanation", "words"]

_WHERE = {"Partition": ".sender", "Shuffle": ".sender", "ShuffleExplanation": ".explanation", "words": ".text"}


def __getattr__(name: str) -> Any:
    """Import names when they are used, because ``skyphos`` imports this package, but few programs shuffle."""
    if name in _WHERE:
        return getattr(import_module(_WHERE[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Module(ModuleType):
    """This package; calling it raises an error that names the function."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise AttributeError(
            "shuffle belongs to a group, not to the module: comm = sky.init(); comm.shuffle(keys, values)"
        )


sys.modules[__name__].__class__ = _Module
