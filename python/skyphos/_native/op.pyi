"""Reduce operations."""

from typing import final

import numpy as np

from .arrays import Array

@final
class Operation:
    def __new__(cls, op: str | np.ufunc, identity: Array | None = None) -> Operation: ...
