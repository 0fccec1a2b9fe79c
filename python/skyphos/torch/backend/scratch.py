"""Scratch copies of arrays that are reduced in place: the reduction reads the copy and writes to the array."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Scratch"]

#: Number of copies of one size that are kept for reuse.
_SPARES = 2


class Scratch:
    """Copies of arrays in reused memory. (The first touch of new memory costs more than the copy.)

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
        """A copy of a flat array, the caller's until it calls :meth:`give_back`."""
        with self._lock:
            free = self._free.get((array.dtype, array.size))
            copy = free.pop() if free else np.empty_like(array)
        np.copyto(copy, array)
        return copy

    def give_back(self, copy: npt.NDArray[Any]) -> None:
        """Make a copy's memory available for other copies."""
        with self._lock:
            free = self._free.setdefault((copy.dtype, copy.size), [])
            if len(free) < _SPARES:
                free.append(copy)
