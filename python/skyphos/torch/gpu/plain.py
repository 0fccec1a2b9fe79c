"""The kernels in plain torch: the reference for their tests, and the fallback without Triton.

Results are the same to the bit. Plain torch takes several passes over memory, and temporary tensors a few times the
input's size.
"""

from __future__ import annotations

import torch

from ...collectives.quantize import Quantize
from . import form

__all__ = ["INFINITE", "INTEGERS", "chosen_count", "dequantise", "quantise", "take_topk"]

#: The integer type of a float's size.
INTEGERS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
#: The bits of infinity as an integer. Those of a NaN are larger.
INFINITE = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80, torch.float32: 0x7F800000, torch.float64: 0x7FF0000000000000}
_LARGEST = torch.finfo(torch.float32).max


def chosen_count(n: int, k: int, bucket: int) -> int:
    """Number of values chosen of n: k of each bucket, or fewer of a short last bucket."""
    return n // bucket * k + min(k, n % bucket)


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
    """Same as :func:`skyphos.torch.gpu.take_topk`, for flat tensors that have been checked.

    Examples
    --------
    >>> import torch
    >>> from skyphos.torch.gpu import plain
    >>> residual = torch.tensor([0.0, 1.0, 0.0, 0.0])
    >>> plain.take_topk(residual, torch.tensor([1.0, 2.0, -5.0, 4.0]), k=1, bucket=2)
    (tensor([1, 2], dtype=torch.int32), tensor([ 3., -5.]))
    >>> residual
    tensor([1., 0., 0., 4.])
    """
    n, dtype = residual.numel(), residual.dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    added = gradient.to(wide)
    if scale != 1.0:
        added = (added * scale).to(dtype).to(wide)
    if velocity is not None:
        velocity.copy_((velocity.to(wide) * momentum).to(dtype).to(wide) + added)
        added = velocity.to(wide)
    residual.copy_(residual.to(wide) + added)

    bits = INTEGERS[dtype]
    buckets = -(-n // bucket)
    # The padding is -1, below all magnitudes.
    magnitudes = torch.full((buckets * bucket,), -1, dtype=bits, device=residual.device)
    magnitudes[:n] = (residual.view(bits) & torch.iinfo(bits).max).clamp(max=INFINITE[dtype] + 1)
    # A stable sort keeps equal magnitudes in the order of their indices.
    largest = magnitudes.view(buckets, bucket).sort(dim=1, descending=True, stable=True).indices[:, :k]
    first = torch.arange(buckets, device=residual.device)[:, None] * bucket
    indices = (largest.sort(dim=1).values + first).flatten()[: chosen_count(n, k, bucket)]
    chosen = residual[indices]
    for tensor in (residual, velocity):
        if tensor is not None:
            tensor[indices] = 0
    return indices.to(torch.int32), chosen


def quantise(values: torch.Tensor, how: Quantize, start: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes, and whether any value could not be quantised. The scale of its bucket is NaN then.

    Examples
    --------
    >>> import torch, skyphos as sky
    >>> from skyphos.torch.gpu import plain
    >>> how = sky.Quantize(bits=8, scale="max")
    >>> packed, bad = plain.quantise(torch.tensor([127.0, -3.0]), how, start=7)
    >>> packed, bool(bad)
    (tensor([  0,   0, 254,  66, 127, 253], dtype=torch.uint8), False)
    """
    n, bits = values.numel(), how.bits
    rows = _rows(values.to(torch.float32), how.bucket)
    buckets, bucket = rows.shape
    finite = (rows.view(torch.int32) & torch.iinfo(torch.int32).max).amax(1) < INFINITE[torch.float32]
    scales = rows.abs().amax(1) if how.scale == "max" else _lengths(rows)
    scales = torch.where(finite, scales, torch.nan)

    lift, factor = _level_factors(scales, form.highest_level(bits))
    exact = torch.where(finite[:, None], rows * lift[:, None] * factor[:, None], 0.0).to(torch.int64)
    drawn = _random(start, buckets, bucket, values.device) >> (32 - form.FRACTION)
    levels = exact + drawn >> form.FRACTION

    per_byte = 8 // bits
    codes = torch.zeros(buckets, -(-bucket // per_byte) * per_byte, dtype=torch.int64, device=values.device)
    codes[:, :bucket] = levels & (1 << bits) - 1
    codes = codes.view(buckets, -1, per_byte) << torch.arange(0, 8, bits, device=values.device)
    heads = scales.view(torch.uint8).view(buckets, form.HEAD)
    packed = torch.cat([heads, codes.sum(2).to(torch.uint8)], dim=1)
    return packed.flatten()[: form.quantised_bytes(n, how)], ~finite.all()


def dequantise(packed: torch.Tensor, how: Quantize, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The expanded values, and whether any scale is negative or not finite."""
    bits, bucket = how.bits, min(how.bucket, n)
    rows = _rows(packed, form.HEAD + form.code_bytes(bucket, bits))
    scales = rows[:, : form.HEAD].clone(memory_format=torch.contiguous_format).view(torch.float32)
    fields = rows[:, form.HEAD :, None].to(torch.int32) >> torch.arange(0, 8, bits, device=packed.device)
    # Sign extension: flip the sign bit, then subtract its weight.
    sign = 1 << (bits - 1)
    levels = ((fields & (1 << bits) - 1) ^ sign) - sign
    values = levels.flatten(1)[:, :bucket].to(torch.float32) * form.unit(bits) * scales
    bad = ~(torch.isfinite(scales) & (scales >= 0)).all()
    return values.flatten()[:n].to(dtype), bad


def _rows(flat: torch.Tensor, width: int) -> torch.Tensor:
    """The tensor as rows of this width (or of its length, if that is less), the last one padded with zeros."""
    width = min(width, flat.numel())
    rows = torch.zeros(-(-flat.numel() // width), width, dtype=flat.dtype, device=flat.device)
    rows.view(-1)[: flat.numel()] = flat
    return rows


def _lengths(rows: torch.Tensor) -> torch.Tensor:
    """The Euclidean length of each row. Squares are added in the order of the native kernel."""
    buckets, bucket = rows.shape
    chunks = -(-bucket // form.SUMS)
    squares = torch.zeros(buckets, chunks * form.SUMS, dtype=torch.float64, device=rows.device)
    squares[:, :bucket] = rows.to(torch.float64) ** 2
    sums = torch.zeros(buckets, form.SUMS, dtype=torch.float64, device=rows.device)
    for chunk in squares.split(form.SUMS, dim=1):
        sums += chunk
    total = torch.zeros(buckets, dtype=torch.float64, device=rows.device)
    for one in sums.unbind(1):
        total += one
    return total.sqrt().clamp(max=_LARGEST).to(torch.float32)


def _level_factors(scales: torch.Tensor, levels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two factors that scale values to levels with :data:`form.FRACTION` bits of fraction."""
    # Two factors, because s/S may not fit a float32.
    # `top` is a tensor, because torch computes number / tensor by a rounded reciprocal.
    top = torch.full_like(scales, levels << form.FRACTION)
    lift = torch.where(scales < 2.0**-64, 2.0**64, 1.0).to(torch.float32)
    lifted = scales * lift
    factor = torch.where(scales == 0, 0.0, top / lifted)
    # No magnitude may exceed the last level, or its code would overflow. The next smaller factor is small enough.
    below = torch.nextafter(factor, torch.zeros_like(factor))
    return lift, torch.where(lifted * factor > top, below, factor)


def _random(start: int, buckets: int, bucket: int, device: torch.device) -> torch.Tensor:
    """32 random bits for each value of each bucket. An int64 wraps around like an unsigned one."""
    keys = torch.arange(buckets, device=device) * form.signed(form.GOLDEN) + form.signed(start)
    shift_1, factor_1, shift_2, factor_2, last_shift = form.MIX
    keys = (keys ^ _shifted(keys, shift_1)) * form.signed(factor_1)
    keys = (keys ^ _shifted(keys, shift_2)) * form.signed(factor_2)
    keys = (keys ^ _shifted(keys, last_shift))[:, None]

    mask = (1 << 32) - 1
    shift_1, factor_1, shift_2, factor_2, last_shift = form.MIX32
    x = torch.arange(bucket, device=device) * (form.GOLDEN & mask) + keys & mask
    x = (x ^ x >> shift_1) * factor_1 & mask ^ _shifted(keys, 32)
    x = (x ^ x >> shift_2) * factor_2 & mask
    return x ^ x >> last_shift


def _shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """Logical shift of 64 bits to the right."""
    return x >> by & (1 << (64 - by)) - 1
