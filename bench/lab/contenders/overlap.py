"""How much of an allreduce hides behind a computation: the two alone, and both at once.

`computing` works as long as an allreduce of this input takes (agreed between the ranks on its first, dropped
iteration): products of small matrices that stay in the cache, in one thread, without the GIL. `overlapped` starts the
allreduce, computes as much, and waits.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np

import skyphos as sky

from ..oracle import Answer
from .ours import Ours
from .sky_group import join

_SIDE = 96
_TRIALS = 5

# Number of products that take as long as the allreduce, by rank of this process.
_agreed: dict[int, int] = {}


def compute(products: int) -> None:
    """Multiply matrices ``products`` times."""
    a = np.full((_SIDE, _SIDE), 1.0 / _SIDE, np.float32)
    b, out = a.copy(), np.empty_like(a)
    for _ in range(products):
        np.dot(a, b, out=out)


def calibrate(comm: sky.Comm, call: Any) -> int:
    """Number of products that take as long as ``call`` on its slowest rank: the best of a few measurements."""
    call_s, product_s = float("inf"), float("inf")
    for _ in range(_TRIALS):
        comm.barrier()
        begin = time.monotonic()
        call()
        call_s = min(call_s, time.monotonic() - begin)
    for _ in range(_TRIALS):
        begin = time.monotonic()
        compute(200)
        product_s = min(product_s, (time.monotonic() - begin) / 200)
    slowest: list[float] = comm.allreduce(np.array([call_s, product_s]), op="max").tolist()
    return max(1, round(slowest[0] / slowest[1]))


class Overlapped(Ours):
    """Start, compute, wait."""

    kind: ClassVar[str] = "together"

    def __init__(self) -> None:
        super().__init__("auto")

    def reduce(self, given: Any, async_op: bool = False) -> Any:
        """The allreduce, blocking or not."""
        return self.comm.allreduce(given, op=self.place.op, async_op=async_op)

    def products(self, given: Any) -> int:
        """Number of products to compute, the same on all ranks."""
        rank = self.place.rank
        if rank not in _agreed:
            _agreed[rank] = calibrate(join(self.place), lambda: self.reduce(given))
        return _agreed[rank]

    def run(self, given: Any) -> Any:
        products = self.products(given)
        work = self.reduce(given, async_op=True)
        compute(products)
        return work.wait()


class Computing(Overlapped):
    """Compute, and reduce nothing."""

    kind: ClassVar[str] = "computing"

    def run(self, given: Any) -> None:
        compute(self.products(given))

    def answer(self, result: Any) -> Answer | None:
        return None
