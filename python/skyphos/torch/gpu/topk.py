"""Top-k with error feedback in one Triton kernel: a gradient is read once, where it is, and only what is chosen leaves.

::

    acc = residual + gradient                           (or with momentum: velocity = m velocity + gradient;
    t = the k-th largest magnitude of the bucket                           acc = residual + velocity)
    choose all above t, and of those that are t the first, so that there are k
    residual = 0 where chosen, else acc

A magnitude is the bits of a value without its sign, as an integer: the order of absolute values, with NaN above
infinity. All NaN are alike, for devices make some of their own (the native kernel orders them by their bits).

t is found bit by bit from the top: a bit stays if at least k magnitudes of the bucket reach the number so far, and the
search ends once exactly k do. A program holds a bucket (or several small ones) in registers; those of up to 512 values
have one warp, whose sums need no other. How many each bucket gives is known, so each program knows where to write.

Source: SparCML (Renggli et al. 2019), Algorithm 1; momentum: Deep Gradient Compression (Lin et al. 2018), section 3.2.

**Cost** for n values of b bytes: 3 b n moved (residual and gradient read, residual written; 5 b n with momentum), and
b + 4 for each value chosen, where plain torch sorts all. A round of the search takes two operations a value and the sum
over a warp; there are 8 b - 1 rounds at most, and fewer where the k-th magnitude is far from the next. So float32
should be bound by memory, float64 may not be. For a bucket of 512 float32 the compiler (architecture 8.0) takes 156
registers a lane: twelve warps fit a multiprocessor, with 4 KB each under way. Where n and the bucket are multiples of
16, a lane loads 16 bytes at once.

**Tried**: Triton's interpreter against the native kernel and plain torch, bit for bit; compilation for NVIDIA's
architectures 8.0 and 9.0. **Not tried**: running on a GPU; nothing here is a measurement of one.
"""

from __future__ import annotations

import struct

import torch
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

from .jit import kernel, launch, narrowed, widened, width_of
from .plain import INFINITE, chosen_count

__all__ = ["take_topk"]

#: Values of a program at least: smaller buckets share one.
_LEAST = 512

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
    """As :func:`skyphos.torch.gpu.take_topk`, of flat tensors that have been checked, with buckets up to `jit.MOST`."""
    n = residual.numel()
    count = chosen_count(n, k, bucket)
    indices = torch.empty(count, dtype=torch.int32, device=residual.device)
    picked = torch.empty(count, dtype=residual.dtype, device=residual.device)
    width = width_of(bucket)
    rows = max(1, _LEAST // width)
    launch(
        _take,
        -(-n // (rows * bucket)),
        residual,
        rows * width,
        residual,
        gradient,
        velocity,
        indices,
        picked,
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
    return indices, picked


def _bits_of(factor: float) -> int:
    """A factor as it is given to a kernel: Triton would make a float32 of a number."""
    bits: int = struct.unpack("<q", struct.pack("<d", factor))[0]
    return bits


@kernel
def _take(  # noqa: PLR0917 - a kernel has no keywords alone
    residual: tl.tensor,
    gradient: tl.tensor,
    velocity: tl.tensor,
    indices: tl.tensor,
    picked: tl.tensor,
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
    """The k largest of `ROWS` buckets; `WIDE` is what is computed in, `INTEGER` has the bits of a value."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    lanes = tl.arange(0, WIDTH)[None, :]
    at = rows[:, None] * BUCKET + lanes
    there = (lanes < BUCKET) & (at < n)
    wanted = tl.minimum(tl.sum(there.to(tl.int32), 1), k)

    came = tl.load(gradient + at, mask=there, other=0.0)
    if scale is not None:
        came = _product(came, scale, WIDE)
    if velocity is not None:
        speed = _product(tl.load(velocity + at, mask=there, other=0.0), momentum, WIDE)
        speed = _sum(speed, came, WIDE)
        came = speed
    acc = _sum(tl.load(residual + at, mask=there, other=0.0), came, WIDE)

    magnitudes = tl.minimum(acc.to(INTEGER, bitcast=True) & ((1 << BITS) - 1), INFINITY + 1)
    magnitudes = tl.where(there, magnitudes, -1)
    least = _kth_largest(magnitudes, wanted, ROWS, BITS)[:, None]
    above, alike = (magnitudes > least).to(tl.int32), (magnitudes == least).to(tl.int32)
    still = (wanted - tl.sum(above, 1))[:, None]
    # One scan counts both: a bucket has no more values than 15 bits count.
    before = tl.cumsum(above + (alike << 16), 1)
    alike_before = before >> 16
    chosen = (above | (alike & (alike_before <= still).to(tl.int32))) != 0

    to = rows[:, None] * k + (before & 0xFFFF) + tl.minimum(alike_before, still) - 1
    tl.store(indices + to, at.to(tl.int32), mask=chosen)
    tl.store(picked + to, acc, mask=chosen)
    tl.store(residual + at, tl.where(chosen, tl.zeros_like(acc), acc), mask=there)
    if velocity is not None:
        tl.store(velocity + at, tl.where(chosen, tl.zeros_like(speed), speed), mask=there)


@kernel
def _kth_largest(magnitudes: tl.tensor, wanted: tl.tensor, ROWS: tl.constexpr, BITS: tl.constexpr) -> tl.tensor:
    """For each row a number that at least `wanted` reach: the largest such one, or one that exactly so many reach."""
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
    """With the float64 that has the bits of ``factor``."""
    exact = tl.cast(factor, tl.int64).to(tl.float64, bitcast=True)
    return narrowed(widened(a, WIDE) * exact.to(WIDE), a.dtype)
