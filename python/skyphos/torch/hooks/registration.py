"""Registration of hooks: ``DistributedDataParallel.register_comm_hook`` passes its model to the hook's state.

PyTorch passes hooks a bucket of tensors, by which neither the model nor the names of its parameters can be found.
"""

from __future__ import annotations

import functools
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from .hook_state import HookState

__all__ = ["extend_register_comm_hook"]


def extend_register_comm_hook() -> None:
    """Make ``register_comm_hook`` call :meth:`HookState.registered_with`. A second call does nothing."""
    original = DistributedDataParallel.register_comm_hook
    if hasattr(original, "_tells_skyphos"):
        return

    @functools.wraps(original)
    def register_comm_hook(self: Any, state: object, hook: Any) -> None:
        original(self, state, hook)
        if isinstance(state, HookState):
            state.registered_with(self)

    register_comm_hook._tells_skyphos = True  # type: ignore[attr-defined]
    DistributedDataParallel.register_comm_hook = register_comm_hook
