"""The form of quantised values and what their random numbers start from, as the native kernels have them.

A bucket of d values is its scale S, a little-endian float32, then d levels in two's complement of ``bits`` bits, the
first in the lowest bits, up to a whole byte. A random number depends on (seed, call, rank, bucket, place in the bucket)
alone: a 64-bit mixer (SplitMix64's output function) makes a key of the first four, and a 32-bit one (the constants of
Wellons' ``lowbias32``) makes a number of key and place.
"""

from __future__ import annotations

from ...collectives.quantize import Quantize

__all__ = ["code_bytes", "levels", "quantised_bytes", "start_of", "unit"]

#: Bytes of a bucket's scale.
HEAD = 4
#: Binary digits of a level's fraction, and of the random number that is added to it.
FRACTION = 24
#: Accumulators of the sum of squares. Part of the result's definition.
SUMS = 16

#: 2^64 over the golden ratio, odd: multiples of it are far apart in all bits.
GOLDEN = 0x9E3779B97F4A7C15
#: Shifts and factors of the 64-bit mixer's rounds, then its last shift.
MIX = (30, 0xBF58476D1CE4E5B9, 27, 0x94D049BB133111EB, 31)
#: The same of the 32-bit one, which takes in the key's upper half between its rounds.
MIX32 = (16, 0x7FEB352D, 15, 0x846CA68B, 16)

_MASK = (1 << 64) - 1


def levels(bits: int) -> int:
    """Steps from 0 to the scale, s."""
    return (1 << (bits - 1)) - 1


def unit(bits: int) -> float:
    """1/s, as a float32 has it."""
    import numpy as np

    return float(np.float32(1) / np.float32(levels(bits)))


def code_bytes(values: int, bits: int) -> int:
    """Bytes of so many levels, without the scale."""
    return -(-values * bits // 8)


def quantised_bytes(values: int, how: Quantize) -> int:
    """Bytes that so many values take, scales included.

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
    """What the keys of buckets are made of: that of the b-th from here is ``mix(start + b * GOLDEN)``. 64 bits."""
    seeded = _mix((seed + GOLDEN) & _MASK)
    called = _mix(seeded ^ (call * GOLDEN + 1) & _MASK)
    stream = _mix(called ^ (rank * GOLDEN + 2) & _MASK)
    return (stream + first_bucket * GOLDEN) & _MASK


def signed(x: int) -> int:
    """64 bits as the signed number that int64 has for them."""
    return x - (1 << 64) if x >> 63 else x


def _mix(x: int) -> int:
    first, one, second, two, last = MIX
    x = (x ^ x >> first) * one & _MASK
    x = (x ^ x >> second) * two & _MASK
    return x ^ x >> last
