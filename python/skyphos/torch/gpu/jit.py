"""Common parts of the Triton kernels: a typed decorator, the launch, and conversions of floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

__all__ = ["MAX_BUCKET", "kernel", "launch", "narrowed", "options_of", "widened", "width_of"]

#: Largest bucket that fits a program's registers (a few values are spilled).
MAX_BUCKET = 8192

#: Values in a warp: 16 in each of 32 lanes.
_WARP_VALUES = 512

#: Arguments that change with each call, so Triton must not specialise a kernel on their values.
_VARYING = ("scale", "momentum", "start")


def kernel(function: Callable[..., Any]) -> Any:
    """Make a function a Triton kernel. It is compiled at its first launch, once for each set of constants."""
    return triton.jit(function, do_not_specialize=_VARYING)


def options_of(width: int) -> dict[str, Any]:
    """Compiler options of a kernel, for programs of ``width`` values."""
    # No fused multiply-add: it rounds once, but torch and the native kernels round twice.
    return {"num_warps": min(16, max(1, width // _WARP_VALUES)), "enable_fp_fusion": False}


def launch(function: Any, programs: int, on: torch.Tensor, width: int, *args: Any, **constants: Any) -> None:
    """Launch ``programs`` programs of ``width`` values each, on a tensor's device and its current stream."""
    with torch.cuda.device_of(on):
        function[(programs,)](*args, **constants, **options_of(width))


def width_of(bucket: int) -> int:
    """Width of a bucket's Triton tensor, a power of two."""
    return max(16, 1 << (bucket - 1).bit_length())


@kernel
def widened(x: tl.tensor, WIDE: tl.constexpr) -> tl.tensor:
    """The same numbers as float32 or float64."""
    if x.dtype == tl.bfloat16:
        return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return x.to(WIDE)


@kernel
def narrowed(x: tl.tensor, DTYPE: tl.constexpr) -> tl.tensor:
    """The nearest numbers of a type, ties to even."""
    if tl.bfloat16 == DTYPE:
        # Integer arithmetic, as in the native kernels, because Triton's interpreter truncates where a GPU rounds.
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        quiet = bits >> 16 | 0x40
        bits = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, quiet, rounded)
        return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(DTYPE)
