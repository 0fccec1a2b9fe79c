"""Top-k with error feedback in one Triton kernel: reads the gradient once, and only chosen values leave the GPU.

::

    acc = residual + gradient                           (or with momentum: velocity = m velocity + gradient;
    t = the k-th largest magnitude of the bucket                           acc = residual + velocity)
    choose all above t, and the first of those equal to t, so that there are k
    residual = 0 where chosen, else acc

A magnitude is a value's bits without the sign, as an integer. It orders values by size, with NaN above infinity. All
NaN are equal here, because devices make NaN of their own (the native kernel orders NaN by their bits).

t is found bit by bit from the top: a bit stays set if at least k magnitudes reach the number so far, and the search
ends once exactly k do. A program holds one bucket, or several small ones, in registers. Up to 512 values it has one
warp, so its sums need no other warp. The number chosen of each bucket is known, so each program knows where to write.

Source: SparCML (Renggli et al. 2019), Algorithm 1; momentum: Deep Gradient Compression (Lin et al. 2018), section 3.2.

**Cost** for n values of b bytes: 3 b n moved (residual and gradient read, residual written; 5 b n with momentum), and b
+ 4 for each chosen value. (Plain torch sorts all values.) A round of the search takes two operations a value and a sum
over a warp. There are at most 8 b - 1 rounds, fewer if the k-th magnitude is far from the next. So float32 should be
bound by memory; float64 may not be. For a bucket of 512 float32 the compiler (architecture 8.0) uses 156 registers a
lane: twelve warps fit a multiprocessor, with 4 KB each in flight. If n and the bucket are multiples of 16, a lane loads
16 bytes at once.

**Tested**: Triton's interpreter against the native kernel and plain torch, bit for bit; compilation for NVIDIA's
architectures 8.0 and 9.0. **Not tested**: running on a GPU. No number here was measured on one.
"""

from __future__ import annotations

import struct

import torch
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

from .jit import kernel, launch, narrowed, widened, width_of
from .plain import INFINITE, chosen_count

__all__ = ["take_topk"]

#: Least number of values in a program. Smaller buckets share one.
_PROGRAM_VALUES = 512

_INTEGERS = {torch.float16: tl.int16, torch.bfloat16: tl.int16, torch.float32: tl.int32, torch.float64: tl.int64}


def take_topk(
    residual: torch.Tensor,
    gradient: torch.Tensor,
    k: int,
    bucket: int,
    *,
    velocity: torch.Tensor | None = None,
    momentum: float = 0.9,
    scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Same as :func:`skyphos.torch.gpu.take_topk`, for checked flat tensors and buckets up to ``jit.MAX_BUCKET``."""
    n = residual.numel()
    count = chosen_count(n, k, bucket)
    indices = torch.empty(count, dtype=torch.int32, device=residual.device)
    chosen = torch.empty(count, dtype=residual.dtype, device=residual.device)
    width = width_of(bucket)
    rows = max(1, _PROGRAM_VALUES // width)
    launch(
        _take,
        -(-n // (rows * bucket)),
        residual,
        rows * width,
        residual,
        gradient,
        velocity,
        indices,
        chosen,
        n,
        k,
        None if scale == 1.0 else _bits_of(scale),
        _bits_of(momentum),
        ROWS=rows,
        BUCKET=bucket,
        WIDTH=width,
        BITS=8 * residual.element_size() - 1,
        INFINITY=INFINITE[residual.dtype],
        INTEGER=_INTEGERS[residual.dtype],
        WIDE=tl.float64 if residual.dtype == torch.float64 else tl.float32,
    )
    return indices, chosen


def _bits_of(factor: float) -> int:
    """A factor's bits, to pass to a kernel. (Triton would round a float argument to float32.)"""
    bits: int = struct.unpack("<q", struct.pack("<d", factor))[0]
    return bits


@kernel
def _take(  # noqa: PLR0917 - kernels have no keyword-only arguments
    residual: tl.tensor,
    gradient: tl.tensor,
    velocity: tl.tensor,
    indices: tl.tensor,
    values: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    scale: tl.tensor,
    momentum: tl.tensor,
    ROWS: tl.constexpr,
    BUCKET: tl.constexpr,
    WIDTH: tl.constexpr,
    BITS: tl.constexpr,
    INFINITY: tl.constexpr,
    INTEGER: tl.constexpr,
    WIDE: tl.constexpr,
) -> None:
    """The k largest of `ROWS` buckets. `WIDE` is the type for arithmetic, `INTEGER` the type of a value's bits."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    lanes = tl.arange(0, WIDTH)[None, :]
    at = rows[:, None] * BUCKET + lanes
    there = (lanes < BUCKET) & (at < n)
    wanted = tl.minimum(tl.sum(there.to(tl.int32), 1), k)

    added = tl.load(gradient + at, mask=there, other=0.0)
    if scale is not None:
        added = _product(added, scale, WIDE)
    if velocity is not None:
        speed = _product(tl.load(velocity + at, mask=there, other=0.0), momentum, WIDE)
        speed = _sum(speed, added, WIDE)
        added = speed
    acc = _sum(tl.load(residual + at, mask=there, other=0.0), added, WIDE)

    magnitudes = tl.minimum(acc.to(INTEGER, bitcast=True) & ((1 << BITS) - 1), INFINITY + 1)
    magnitudes = tl.where(there, magnitudes, -1)
    least = _kth_largest(magnitudes, wanted, ROWS, BITS)[:, None]
    above, equal = (magnitudes > least).to(tl.int32), (magnitudes == least).to(tl.int32)
    remaining = (wanted - tl.sum(above, 1))[:, None]
    # One scan makes both counts, which include the value itself: a bucket's size fits 15 bits.
    so_far = tl.cumsum(above + (equal << 16), 1)
    equal_so_far = so_far >> 16
    chosen = (above | (equal & (equal_so_far <= remaining).to(tl.int32))) != 0

    to = rows[:, None] * k + (so_far & 0xFFFF) + tl.minimum(equal_so_far, remaining) - 1
    tl.store(indices + to, at.to(tl.int32), mask=chosen)
    tl.store(values + to, acc, mask=chosen)
    tl.store(residual + at, tl.where(chosen, tl.zeros_like(acc), acc), mask=there)
    if velocity is not None:
        tl.store(velocity + at, tl.where(chosen, tl.zeros_like(speed), speed), mask=there)


@kernel
def _kth_largest(magnitudes: tl.tensor, wanted: tl.tensor, ROWS: tl.constexpr, BITS: tl.constexpr) -> tl.tensor:
    """For each row the largest number that at least `wanted` magnitudes reach, or any that exactly `wanted` reach."""
    found = tl.zeros((ROWS,), magnitudes.dtype)
    reached = tl.sum((magnitudes >= 0).to(tl.int32), 1)
    bit = tl.zeros((ROWS,), magnitudes.dtype) + 1 << (BITS - 1)
    while (tl.max(bit, 0) > 0) & (tl.max(reached - wanted, 0) > 0):
        trial = found | bit
        reach = tl.sum((magnitudes >= trial[:, None]).to(tl.int32), 1)
        found = tl.where(reach >= wanted, trial, found)
        reached = tl.where(reach >= wanted, reach, reached)
        bit = bit >> 1
    return found


@kernel
def _sum(a: tl.tensor, b: tl.tensor, WIDE: tl.constexpr) -> tl.tensor:
    return narrowed(widened(a, WIDE) + widened(b, WIDE), a.dtype)


@kernel
def _product(a: tl.tensor, factor: tl.tensor, WIDE: tl.constexpr) -> tl.tensor:
    """The product with the float64 whose bits are ``factor``."""
    exact = tl.cast(factor, tl.int64).to(tl.float64, bitcast=True)
    return narrowed(widened(a, WIDE) * exact.to(WIDE), a.dtype)
