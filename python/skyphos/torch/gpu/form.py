"""Byte format of quantised values and the start of their random numbers, the same as in the native kernels.

A bucket of d values is its scale S, a little-endian float32, followed by d levels in two's complement of ``bits`` bits,
from the lowest bits on, padded to a whole byte. A random number depends only on (seed, call, rank, bucket, index in the
bucket): a 64-bit mixer (SplitMix64's output function) makes a key from the first four, and a 32-bit mixer (the
constants of Wellons' ``lowbias32``) makes the number from key and index.
"""

from __future__ import annotations

from ...collectives.quantize import Quantize

__all__ = ["code_bytes", "highest_level", "quantised_bytes", "start_of", "unit"]

#: Bytes of a bucket's scale.
HEAD = 4
#: Bits of a level's fraction, and of the random number that is added to it.
FRACTION = 24
#: Number of accumulators in the sum of squares. It affects the result.
SUMS = 16

#: 2^64 over the golden ratio, made odd. Its multiples differ in many bits.
GOLDEN = 0x9E3779B97F4A7C15
#: Shifts and factors of the 64-bit mixer's rounds, then its last shift.
MIX = (30, 0xBF58476D1CE4E5B9, 27, 0x94D049BB133111EB, 31)
#: The same for the 32-bit mixer, which mixes in the key's upper half between its rounds.
MIX32 = (16, 0x7FEB352D, 15, 0x846CA68B, 16)

_MASK = (1 << 64) - 1


def highest_level(bits: int) -> int:
    """The level s of a value that equals the scale: the number of steps from 0 to the scale."""
    return (1 << (bits - 1)) - 1


def unit(bits: int) -> float:
    """1/s in float32."""
    import numpy as np

    return float(np.float32(1) / np.float32(highest_level(bits)))


def code_bytes(values: int, bits: int) -> int:
    """Bytes of this many levels, without the scale."""
    return -(-values * bits // 8)


def quantised_bytes(values: int, how: Quantize) -> int:
    """Bytes of this many quantised values, scales included.

    Examples
    --------
    >>> import skyphos as sky
    >>> from skyphos.torch.gpu import quantised_bytes
    >>> quantised_bytes(1025, sky.Quantize(bits=4))
    521
    """
    whole, rest = divmod(values, how.bucket)
    last = HEAD + code_bytes(rest, how.bits) if rest else 0
    return whole * (HEAD + code_bytes(how.bucket, how.bits)) + last


def start_of(seed: int, call: int, rank: int, first_bucket: int) -> int:
    """64 bits that give the bucket keys: the b-th bucket from here has the key ``mix(start + b * GOLDEN)``."""
    seeded = _mix((seed + GOLDEN) & _MASK)
    called = _mix(seeded ^ (call * GOLDEN + 1) & _MASK)
    stream = _mix(called ^ (rank * GOLDEN + 2) & _MASK)
    return (stream + first_bucket * GOLDEN) & _MASK


def signed(x: int) -> int:
    """An unsigned number of 64 bits as the int64 with the same bits."""
    return x - (1 << 64) if x >> 63 else x


def _mix(x: int) -> int:
    shift_1, factor_1, shift_2, factor_2, last_shift = MIX
    x = (x ^ x >> shift_1) * factor_1 & _MASK
    x = (x ^ x >> shift_2) * factor_2 & _MASK
    return x ^ x >> last_shift
