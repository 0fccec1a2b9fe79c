"""Quantize: settings of quantised allreduces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from .. import _skyphos as native
from ..errors import BadInput
from ..inputs.settings import whole

__all__ = ["Quantize"]

Where = Literal["result", "input", "both"]
Scale = Literal["l2", "max"]


@dataclass(frozen=True)
class Quantize:
    """Quantise values to a few bits by stochastic rounding, whose expectation is the value (QSGD).

    Each ``bucket`` of consecutive values is sent as its scale S, a float32, and each value as one of the two
    neighbouring multiples of S/s, with s = 2^(bits - 1) - 1, drawn such that the expectation is the value.

    Parameters
    ----------
    bits : {2, 4, 8}, default 4
        Bits per value.
    bucket : int, default 1024
        Values per bucket, 1 to 2^24. A bucket also ends with an owner's part, and after some 10,000 entries.
    where : {"result", "input", "both"}
        "result": quantise an owner's reduced part before it is sent to all; the owner uses the quantised values too
        (SparCML, section 6). "input": quantise each rank's own values, for the rank itself too (SparCML, Algorithm 1);
        sums of several ranks are sent unquantised. Indices are always exact.
    scale : {"l2", "max"}
        S: the bucket's Euclidean length, for which E|Q(v) - v|² <= min(d/s², √d/s) |v|² with d the bucket, or its
        largest magnitude, whose steps are finer.
    seed : int, default 0
        Seed of all random numbers, 0 to 2^64 - 1. They depend on it, the number of the call in its group, the rank and
        the bucket: the same program draws the same numbers, and each call others.

    Raises
    ------
    BadInput
        For other settings.

    Notes
    -----
    QSGD (Alistarh et al. 2017), as in SparCML, section 6. All ranks pass the same settings, and get the same bits.
    Values must be float16, bfloat16, float32 or float64, and finite as float32; float64 has the precision of float32.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     y = comm.allreduce(np.array([7.0, -7.0, 1.0, 0.0]), quantize=sky.Quantize(bits=4, scale="max"))
    >>> y.shape, bool((abs(y - [7, -7, 1, 0]) < 1).all())
    ((4,), True)
    """

    bits: Literal[2, 4, 8] = 4
    bucket: int = 1024
    where: Where = "result"
    scale: Scale = "l2"
    seed: int = 0

    def __post_init__(self) -> None:
        check_bits(self.bits)
        whole(self.bucket, "bucket", 1, 2**24)
        for name, value, known in (("where", self.where, Where), ("scale", self.scale, Scale)):
            if value not in get_args(known):
                raise BadInput(f"{name} must be one of {', '.join(get_args(known))}, not {value!r}")
        check_seed(self.seed)

    def _native(self) -> native.Quantize:
        """The native library's object."""
        return native.Quantize(int(self.bits), int(self.bucket), self.where, self.scale, int(self.seed))


def check_bits(bits: int) -> None:
    """Refuse numbers of bits that are not supported."""
    if bits not in (2, 4, 8):
        raise BadInput(f"bits must be 2, 4 or 8, not {bits!r}")


def check_seed(seed: int) -> None:
    """Refuse invalid seeds."""
    whole(seed, "seed", 0, 2**64 - 1)
