"""`Plan.reduce` in memory: P = 4, one layer, on one core, compared with `memcpy` of the same values.

The bar: at most 4 times the time of copying each rank's values once for each hop (one down, one up).
"""

from __future__ import annotations

import os
import threading
import time

import numpy as np

import skyphos as sky
from common import check, median_ratio, report, zipf_distinct

RANKS = 4
N = 1 << 24
COUNT = 1_000_000
ROUNDS = 15


def oracle(sets: list[np.ndarray], values: list[np.ndarray]) -> np.ndarray:
    total = np.zeros(N)
    for indices, row in zip(sets, values, strict=True):
        total[indices] += row
    return total


def main() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rng = np.random.default_rng(7)
    sets = [zipf_distinct(rng, N, COUNT, 1.1) for _ in range(RANKS)]
    values = [rng.random(COUNT) for _ in range(RANKS)]
    expected = oracle(sets, values)
    sources = [v.copy() for v in values]
    targets = [np.empty_like(v) for v in values]

    def copy_hops() -> float:
        start = time.perf_counter()
        for _hop in range(2):
            for source, target in zip(sources, targets, strict=True):
                np.copyto(target, source)
        return time.perf_counter() - start

    comms = sky.local(RANKS, threads=1)
    reduce_s, copy_s, merge_s = [], [], []
    failures: list[BaseException] = []

    def body(comm: sky.Comm) -> None:
        try:
            mine = sets[comm.rank]
            plan = comm.configure(mine, mine, n=N, degrees=[RANKS])
            out = np.empty(COUNT)
            for round_ in range(ROUNDS + 3):
                comm.barrier()
                start = time.perf_counter()
                plan.reduce(values[comm.rank], out=out)
                comm.barrier()
                spent = time.perf_counter() - start
                if comm.rank == 0 and round_ >= 3:
                    reduce_s.append(spent)
                    copy_s.append(copy_hops())
                    merge_s.append(plan.stats.merge)
                comm.barrier()
            check("reduce", out, expected[mine])
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=body, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise SystemExit(1)
    report(
        f"reduce, local, P={RANKS}, degrees {RANKS}, n=2^24, {COUNT:,} Zipf(1.1) indices a rank, float64, 1 core",
        {"reduce": reduce_s, "memcpy, once a hop": copy_s, "merge on rank 0": merge_s},
        ratio=median_ratio(reduce_s, copy_s),
        bar=4.0,
    )


if __name__ == "__main__":
    main()
