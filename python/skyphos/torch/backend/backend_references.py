"""References to backends that PyTorch loses: with ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` it keeps only their C++ part."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

__all__ = ["hold", "release"]

_backends: set[Any] = set()


def hold(backend: Any) -> None:
    """Keep a backend alive until its group is destroyed, if PyTorch does not."""
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        _backends.add(backend)


def release(backend: Any) -> None:
    """Drop the reference of :func:`hold`."""
    _backends.discard(backend)
