"""Stochastic quantisation in Triton kernels (QSGD; SparCML, section 6), to the same bytes as the native kernels.

::

    q = floor(v s/S + u),  u uniform in [0, 1);      Q(v) = q S/s;      q in -s .. s,  s = 2^(bits-1) - 1

S is a bucket's largest magnitude or its Euclidean length. Byte format and random numbers (``form.py``) are those of the
native kernels, and so is each rounding: float32 products are not fused with additions, and squares are added in float64
in 16 sums, each of every 16th value, in order. So ranks with and without GPUs can read each other's bytes, and a step
on the GPU equals the step on the CPU to the bit. Triton's own generator (Philox) takes ten rounds instead of two.

**Bias**: none beyond rounding. **Error**: \\|Q(v) - v\\| < S/s. **Variance** with the length: E|Q(v) - v|² <=
min(d/s², √d/s) |v|².

**Cost** for n values of b bytes: b n read, bits n / 8 + 4 n / bucket written, about 25 operations a value; the reverse
for expansion. One program a bucket, 16 values a lane. With ``scale="l2"`` values are read twice (the second time from
the cache) and squared in float64, which is slow on GPUs with few float64 units. ``TopK`` uses ``scale="max"``.

**Tested**: Triton's interpreter against plain torch and the native kernel's bytes; compilation for NVIDIA's
architectures 8.0 and 9.0. **Not tested**: running on a GPU. No number here was measured on one.
"""

from __future__ import annotations

import torch
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

from ...collectives.quantize import Quantize
from . import form
from .jit import kernel, launch, narrowed, widened, width_of

__all__ = ["dequantise", "quantise"]

_HEAD = tl.constexpr(form.HEAD)
_FRACTION = tl.constexpr(form.FRACTION)
_SUMS = tl.constexpr(form.SUMS)
_GOLDEN = tl.constexpr(form.GOLDEN)
_GOLDEN32 = tl.constexpr(form.GOLDEN & 0xFFFFFFFF)
_MIX = tl.constexpr(form.MIX)
_MIX32 = tl.constexpr(form.MIX32)
_INFINITE = tl.constexpr(0x7F800000)
_NAN = tl.constexpr(0x7FC00000)
_LARGEST = tl.constexpr(torch.finfo(torch.float32).max)


def quantise(values: torch.Tensor, how: Quantize, start: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Same as :func:`skyphos.torch.gpu.plain.quantise`, for buckets up to ``jit.MAX_BUCKET``."""
    n = values.numel()
    packed = torch.empty(form.quantised_bytes(n, how), dtype=torch.uint8, device=values.device)
    bad = torch.zeros(1, dtype=torch.int32, device=values.device)
    shape = _shape(how, n)
    constants = {"TOP": float(form.highest_level(how.bits) << form.FRACTION), "LENGTH": how.scale == "l2", **shape}
    args = (values, packed, bad, n, form.signed(start))
    launch(_encode, -(-n // shape["BUCKET"]), values, shape["WIDTH"], *args, **constants)
    return packed, bad


def dequantise(packed: torch.Tensor, how: Quantize, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Same as :func:`skyphos.torch.gpu.plain.dequantise`, for buckets up to ``jit.MAX_BUCKET``."""
    values = torch.empty(n, dtype=dtype, device=packed.device)
    bad = torch.zeros(1, dtype=torch.int32, device=packed.device)
    shape = _shape(how, n)
    args = (packed, values, bad, n)
    launch(_decode, -(-n // shape["BUCKET"]), packed, shape["WIDTH"], *args, UNIT=form.unit(how.bits), **shape)
    return values, bad


def _shape(how: Quantize, n: int) -> dict[str, int]:
    bucket = min(how.bucket, n)
    stride = form.HEAD + form.code_bytes(bucket, how.bits)
    return {"BUCKET": bucket, "STRIDE": stride, "WIDTH": width_of(bucket), "BITS": how.bits}


@kernel
def _encode(  # noqa: PLR0917 - kernels have no keyword-only arguments
    values: tl.tensor,
    packed: tl.tensor,
    bad: tl.tensor,
    n: tl.tensor,
    start: tl.tensor,
    BUCKET: tl.constexpr,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    BITS: tl.constexpr,
    TOP: tl.constexpr,
    LENGTH: tl.constexpr,
) -> None:
    """Quantise one bucket: its scale, then its levels, `8 // BITS` to a byte."""
    row = tl.program_id(0).to(tl.int64)
    values += row * BUCKET
    packed += row * STRIDE
    count = tl.minimum(n - row * BUCKET, BUCKET)
    lanes = tl.arange(0, WIDTH)
    v = widened(tl.load(values + lanes, mask=lanes < count, other=0.0), tl.float32)

    # Magnitudes are ordered like their bits. Infinity and NaN come last.
    largest = tl.max(v.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0)
    finite = largest < _INFINITE
    scale = largest.to(tl.float32, bitcast=True)
    if LENGTH:
        scale = _length(values, count, BUCKET)
    head = tl.where(finite, scale.to(tl.int32, bitcast=True), _NAN)
    place = tl.arange(0, _HEAD)
    tl.store(packed + place, (head >> 8 * place).to(tl.uint8))
    tl.store(bad, 1, mask=finite == 0)

    # Two factors, because s/S may not fit a float32. No magnitude may exceed the last level, or its code would
    # overflow: the next smaller factor is small enough.
    top = tl.full((), TOP, tl.float32)
    lift = tl.where(scale < 2.0**-64, 2.0**64, 1.0)
    lifted = scale * lift
    factor = tl.div_rn(top, tl.where(scale == 0.0, 1.0, lifted))
    below = (factor.to(tl.int32, bitcast=True) - 1).to(tl.float32, bitcast=True)
    factor = tl.where(lifted * factor > top, below, factor)
    # In a bucket of zeros every factor gives the same result.
    exact = tl.where(finite, v * lift * factor, 0.0).to(tl.int32)
    drawn = (_random(start, row, lanes.to(tl.uint32)) >> (32 - _FRACTION)).to(tl.int32)
    fields = (exact + drawn >> _FRACTION) & ((1 << BITS) - 1)

    PER_BYTE: tl.constexpr = 8 // BITS
    BYTES: tl.constexpr = WIDTH // PER_BYTE
    shifts = tl.arange(0, PER_BYTE) * BITS
    codes = tl.sum(tl.reshape(fields, (BYTES, PER_BYTE)) << shifts[None, :], 1)
    to = tl.arange(0, BYTES)
    tl.store(packed + _HEAD + to, codes.to(tl.uint8), mask=to * PER_BYTE < count)


@kernel
def _decode(  # noqa: PLR0917 - kernels have no keyword-only arguments
    packed: tl.tensor,
    values: tl.tensor,
    bad: tl.tensor,
    n: tl.tensor,
    BUCKET: tl.constexpr,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    BITS: tl.constexpr,
    UNIT: tl.constexpr,
) -> None:
    """Expand one bucket."""
    row = tl.program_id(0).to(tl.int64)
    values += row * BUCKET
    packed += row * STRIDE
    count = tl.minimum(n - row * BUCKET, BUCKET)
    place = tl.arange(0, _HEAD)
    head = tl.sum(tl.load(packed + place).to(tl.int32) << 8 * place, 0)
    scale = head.to(tl.float32, bitcast=True)
    tl.store(bad, 1, mask=((scale >= 0.0) & ((head & 0x7FFFFFFF) < _INFINITE)) == 0)

    lanes = tl.arange(0, WIDTH)
    there = lanes < count
    PER_BYTE: tl.constexpr = 8 // BITS
    code = tl.load(packed + _HEAD + lanes // PER_BYTE, mask=there, other=0).to(tl.int32)
    field = code >> (lanes % PER_BYTE) * BITS & ((1 << BITS) - 1)
    # Sign extension: flip the sign bit, then subtract its weight.
    SIGN: tl.constexpr = 1 << (BITS - 1)
    level = (field ^ SIGN) - SIGN
    v = level.to(tl.float32) * UNIT * scale
    tl.store(values + lanes, narrowed(v, values.dtype.element_ty), mask=there)


@kernel
def _length(values: tl.tensor, count: tl.tensor, BUCKET: tl.constexpr) -> tl.tensor:
    """The Euclidean length, or the largest float32 if it exceeds that."""
    lanes = tl.arange(0, _SUMS)
    sums = tl.zeros((_SUMS,), tl.float64)
    for first in range(0, BUCKET, _SUMS):
        v = widened(tl.load(values + first + lanes, mask=first + lanes < count, other=0.0), tl.float32)
        sums += v.to(tl.float64) * v.to(tl.float64)
    total = tl.zeros((), tl.float64)
    for one in tl.static_range(_SUMS):
        total += tl.sum(tl.where(lanes == one, sums, 0.0), 0)
    return tl.minimum(tl.sqrt(total), _LARGEST).to(tl.float32)


@kernel
def _random(start: tl.tensor, row: tl.tensor, place: tl.tensor) -> tl.tensor:
    """32 random bits for values of a bucket."""
    key = tl.cast(start, tl.int64).to(tl.uint64, bitcast=True) + row.to(tl.uint64) * _GOLDEN
    key = (key ^ key >> _MIX[0]) * _MIX[1]
    key = (key ^ key >> _MIX[2]) * _MIX[3]
    key = key ^ key >> _MIX[4]
    x = place * _GOLDEN32 + key.to(tl.uint32)
    x = (x ^ x >> _MIX32[0]) * _MIX32[1] ^ (key >> 32).to(tl.uint32)
    x = (x ^ x >> _MIX32[2]) * _MIX32[3]
    return x ^ x >> _MIX32[4]
