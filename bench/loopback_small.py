"""`configure` and `reduce` on 8 processes over loopback TCP, degrees 4x2, 50,000 power-law indices a rank, float32.

The published Java implementation was measured with these sizes on a 2-core machine: configure took 120 ms, reduce 83.
The bars here: 12 ms and 8.3 ms, and `configure_reduce` at most 0.85 of the sum of the two.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

import skyphos as sky
from common import check, report, spawn, zipf_distinct

RANKS, N, COUNT, DEGREES, ROUNDS, WARM = 8, 1_000_000, 50_000, [4, 2], 200, 20


def timed(comm: sky.Comm, bodies: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds of each body in each round after the warm-up. A round runs the bodies one after the other; each is timed
    from a barrier to the last rank's end."""
    spent: dict[str, list[float]] = {name: [] for name in bodies}
    for _ in range(ROUNDS + WARM):
        for name, body in bodies.items():
            comm.barrier()
            start = time.perf_counter()
            body()
            comm.barrier()
            spent[name].append(time.perf_counter() - start)
    return {name: runs[WARM:] for name, runs in spent.items()}


def main() -> None:
    with sky.init() as comm:
        sets = [zipf_distinct(np.random.default_rng(rank), N, COUNT, 1.1) for rank in range(RANKS)]
        values = [np.random.default_rng(100 + rank).random(COUNT, np.float32) for rank in range(RANKS)]
        mine, row = sets[comm.rank], values[comm.rank]
        total = np.zeros(N, np.float32)
        for indices, other in zip(sets, values, strict=True):
            total[indices] += other
        expected = total[mine]
        plan = comm.configure(mine, mine, n=N, degrees=DEGREES)
        out, both_out = np.empty(COUNT, np.float32), np.empty(COUNT, np.float32)
        same = {"n": N, "degrees": DEGREES}
        spent = timed(
            comm,
            {
                "configure": lambda: comm.configure(mine, mine, **same),
                "configure, missing identity": lambda: comm.configure(mine, mine, missing="identity", **same),
                "reduce": lambda: plan.reduce(row, out=out),
                "configure_reduce": lambda: comm.configure_reduce(mine, mine, row, out=both_out, **same),
                "barrier alone": lambda: None,
            },
        )
        check("reduce", out, expected, 1e-6)
        check("configure_reduce", both_out, expected, 1e-6)
        if comm.rank:
            return
        title = f"8 processes over loopback, 4x2, {COUNT:,} Zipf(1.1) indices of {N:,}, float32"
        shown = {k: spent[k] for k in ("configure", "configure, missing identity", "barrier alone")}
        report(f"configure; {title}", shown, median(spent["configure"]) / 0.012, 1)
        report(f"reduce; {title}", {"reduce": spent["reduce"]}, median(spent["reduce"]) / 0.0083, 1)
        apart = [a + b for a, b in zip(spent["configure"], spent["reduce"], strict=True)]
        report(
            f"configure_reduce relative to the two calls; {title}",
            {"configure_reduce": spent["configure_reduce"], "configure + reduce": apart},
            median(spent["configure_reduce"]) / median(apart),
            0.85,
        )


if __name__ == "__main__":
    spawn(__file__, RANKS, main)
