"""Selection and quantisation of top-k."""

from typing import final

from .arrays import Array
from .quantize import Quantize

@final
class TopkLayer:
    def __new__(cls, start: int, stop: int, k: int, bucket: int) -> TopkLayer: ...
    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def bucket(self) -> int: ...

def topk_take(
    residual: Array | None,
    gradient: Array,
    *,
    k: int | None = None,
    bucket: int | None = None,
    threshold: Array | None = None,
) -> tuple[Array, Array]: ...

# Returns indices, values, and the number (from 0) of the first of these values that is not finite.
def topk_take_layers(
    residual: Array,
    gradient: Array,
    layers: list[TopkLayer],
    scale: float | None,
    velocity: Array | None,
    momentum: float,
) -> tuple[Array, Array, int | None]: ...
def topk_quantise(values: Array, quantize: Quantize, call: int, rank: int) -> None: ...
def dequantise(packed: Array, quantize: Quantize, values: Array) -> None: ...

# Adds picked - sent to the residual at indices.
def topk_put_back(residual: Array, indices: Array, picked: Array, sent: Array) -> None: ...
