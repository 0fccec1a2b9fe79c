"""The sizes at which the published Java implementation was measured: 8 processes over loopback TCP, degrees 4x2,
50,000 power-law indices a rank, float32.

Java, on a 2-core machine: configure 120 ms, reduce 83 ms. The bars here: 12 ms and 8.3 ms, and `configure_reduce`
at most 0.85 of the two together.
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np

import skyphos as sky
from common import check, report, spawn, zipf_distinct

RANKS, N, COUNT, DEGREES, ROUNDS, WARM = 8, 1_000_000, 50_000, [4, 2], 40, 10


def timed(comm: sky.Comm, body: object) -> list[float]:
    """Seconds of each round after warm-up: from a barrier to the last rank's end, as rank 0 sees it."""
    spent = []
    for _ in range(ROUNDS + WARM):
        comm.barrier()
        start = time.perf_counter()
        body()  # type: ignore[operator]
        comm.barrier()
        spent.append(time.perf_counter() - start)
    return spent[WARM:]


def main() -> None:
    with sky.init() as comm:
        sets = [zipf_distinct(np.random.default_rng(rank), N, COUNT, 1.1) for rank in range(RANKS)]
        values = [np.random.default_rng(100 + rank).random(COUNT, np.float32) for rank in range(RANKS)]
        mine, row = sets[comm.rank], values[comm.rank]
        total = np.zeros(N, np.float32)
        for indices, other in zip(sets, values, strict=True):
            total[indices] += other
        out = np.empty(COUNT, np.float32)
        barrier = timed(comm, lambda: None)
        configure = timed(comm, lambda: comm.configure(mine, mine, n=N, degrees=DEGREES))
        plan = comm.configure(mine, mine, n=N, degrees=DEGREES)
        reduce = timed(comm, lambda: plan.reduce(row, out=out))
        check("reduce", out, total[mine], 1e-6)
        out[:] = 0
        both = timed(comm, lambda: comm.configure_reduce(mine, mine, row, n=N, degrees=DEGREES, out=out))
        check("configure_reduce", out, total[mine], 1e-6)
        if comm.rank:
            return
        title = f"8 processes over loopback, 4x2, {COUNT:,} Zipf(1.1) indices of {N:,}, float32"
        report(
            f"configure; {title}",
            {"configure": configure, "two barriers": barrier},
            median(configure) / 0.012,
            1,
        )
        report(f"reduce; {title}", {"reduce": reduce}, median(reduce) / 0.0083, 1)
        apart = [a + b for a, b in zip(configure, reduce, strict=True)]
        report(
            f"configure_reduce against both apart; {title}",
            {"configure_reduce": both, "configure + reduce": apart},
            median(both) / median(apart),
            0.85,
        )


if __name__ == "__main__":
    spawn(__file__, RANKS, main)
