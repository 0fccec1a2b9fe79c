"""Backends that PyTorch would lose: under ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` it wraps them and forgets their Python."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

__all__ = ["keep", "let_go"]

_kept: set[Any] = set()


def keep(backend: Any) -> None:
    """Hold a backend until its group is destroyed, where PyTorch does not."""
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        _kept.add(backend)


def let_go(backend: Any) -> None:
    """It is not needed any more."""
    _kept.discard(backend)
