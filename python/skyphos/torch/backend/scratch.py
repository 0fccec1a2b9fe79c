"""Arrays that reductions read from while their results are written where the caller's numbers were."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Scratch"]

#: Arrays of one size that are kept.
_KEPT = 2


class Scratch:
    """Copies of arrays, in memory that is used again: the first touch of new memory costs more than the copy.

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos.torch.backend.scratch import Scratch
    >>> scratch = Scratch()
    >>> copy = scratch.copy_of(np.arange(3.0))
    >>> scratch.give_back(copy)
    >>> scratch.copy_of(np.ones(3)) is copy
    True
    """

    def __init__(self) -> None:
        self._free: dict[tuple[Any, int], list[npt.NDArray[Any]]] = {}
        self._lock = threading.Lock()

    def copy_of(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A copy of a flat array, the caller's until it is given back."""
        with self._lock:
            free = self._free.get((array.dtype, array.size))
            copy = free.pop() if free else np.empty_like(array)
        np.copyto(copy, array)
        return copy

    def give_back(self, copy: npt.NDArray[Any]) -> None:
        """Let others have its memory."""
        with self._lock:
            free = self._free.setdefault((copy.dtype, copy.size), [])
            if len(free) < _KEPT:
                free.append(copy)
