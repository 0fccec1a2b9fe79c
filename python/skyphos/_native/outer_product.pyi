"""Sums of outer products."""

from typing import Any, final

import numpy as np
import numpy.typing as npt

from .arrays import Array
from .comm import Comm
from .report import Stage, Traffic
from .vector import Vector

@final
class OuterShape:
    def __new__(cls, n: int, m: int, pairs: int) -> OuterShape: ...

@final
class OuterOptions:
    def __new__(
        cls,
        algorithm: str = "auto",
        *,
        exchange: str | None = None,
        owners: str | None = None,
        grid: tuple[int, int] | None = None,
        scatter: bool = False,
        fresh: bool = False,  # whether the memory for the result is new
    ) -> OuterOptions: ...

@final
class OuterReport:
    @property
    def algorithm(self) -> str: ...
    @property
    def exchange(self) -> str | None: ...
    @property
    def owners(self) -> str: ...
    @property
    def grid(self) -> tuple[int, int] | None: ...
    @property
    def pairs(self) -> int: ...
    @property
    def stages(self) -> list[Stage]: ...
    @property
    def predicted_seconds(self) -> float | None: ...
    @property
    def others(self) -> list[tuple[str, float]]: ...
    @property
    def traffic(self) -> Traffic: ...

@final
class SparseOuterSum:
    @property
    def sum(self) -> Vector: ...
    @property
    def report(self) -> OuterReport: ...

@final
class FactorEntries:
    def __new__(cls, indices: npt.NDArray[np.uint64], values: Array) -> FactorEntries: ...
    @property
    def indices(self) -> Array: ...
    @property
    def values(self) -> Array: ...

@final
class GatheredFactors:
    @property
    def a(self) -> Any: ...
    @property
    def b(self) -> Any: ...
    @property
    def report(self) -> OuterReport: ...

def outer_product_sum(
    comm: Comm, factors: tuple[Array, Array], out: Array, shape: OuterShape, options: OuterOptions, async_op: bool
) -> Any: ...
def outer_factors(
    comm: Comm, factors: tuple[Array, Array], shape: OuterShape, options: OuterOptions, async_op: bool
) -> Any: ...
def sparse_outer_product_sum(
    comm: Comm, a: FactorEntries, b: FactorEntries, shape: OuterShape, options: OuterOptions, async_op: bool
) -> Any: ...
def sparse_outer_factors(
    comm: Comm, a: FactorEntries, b: FactorEntries, shape: OuterShape, options: OuterOptions, async_op: bool
) -> Any: ...

# Adds scale aᵀ b to out.
def add_product(a: Array, b: Array, out: Array, of: OuterShape, scale: float, threads: int) -> None: ...
