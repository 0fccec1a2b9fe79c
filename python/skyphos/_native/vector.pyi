"""Vectors of indices and values in Python arrays."""

from typing import final

import numpy as np
import numpy.typing as npt

from .arrays import Array

@final
class Vector:
    def __new__(
        cls, n: int, width: int, indices: Array | None, values: Array, present: npt.NDArray[np.uint64] | None
    ) -> Vector: ...
    @property
    def n(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def indices(self) -> Array | None: ...
    @property
    def values(self) -> Array: ...
    @property
    def present(self) -> npt.NDArray[np.uint64] | None: ...
