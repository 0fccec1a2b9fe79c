"""What all Triton kernels here need: their decorator (one whose type is known), their launch, conversions of floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

__all__ = ["MOST", "kernel", "launch", "narrowed", "options_of", "widened", "width_of"]

#: Values of the largest bucket that a program holds in its registers, but for a few of them.
MOST = 8192

#: Values a warp holds: 16 a lane of 32.
_A_WARP = 512

#: Arguments for whose values Triton is not to compile anew: others come with each call.
_VARYING = ("scale", "momentum", "start")


def kernel(function: Callable[..., Any]) -> Any:
    """A function in Triton's language: compiled when it is first launched, once for each set of constants."""
    return triton.jit(function, do_not_specialize=_VARYING)


def options_of(width: int) -> dict[str, Any]:
    """What a kernel is compiled with, for programs of ``width`` values."""
    # Without fusing of a product and a sum, which rounds once where torch and the native kernels do twice.
    return {"num_warps": min(16, max(1, width // _A_WARP)), "enable_fp_fusion": False}


def launch(function: Any, programs: int, on: torch.Tensor, width: int, *args: Any, **constants: Any) -> None:
    """Start so many programs of a kernel, of ``width`` values each, on a tensor's device and its current stream."""
    with torch.cuda.device_of(on):
        function[(programs,)](*args, **constants, **options_of(width))


def width_of(bucket: int) -> int:
    """Lanes for a bucket: Triton's tensors have powers of two."""
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
        # By the integers, as the native kernels do: Triton's interpreter cuts digits off where a GPU rounds.
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        quiet = bits >> 16 | 0x40
        bits = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, quiet, rounded)
        return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(DTYPE)
