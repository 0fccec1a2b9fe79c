"""Time of a map-reduce job with a slow machine, by schedule.

    .venv/bin/python bench/stragglers.py

Four processes with one map thread each, 64 equal partitions, tasks that wait for 25 ms each (so that the number of
cores does not matter). On the last rank all tasks take 10 times as long ("slow"), or only its first one takes 40 times
as long ("stuck"). Times are from the first task to the last key, relative to the best possible: with a slow rank, 64
tasks on three fast ranks and one of a tenth of their speed; with a stuck task, the other 63 tasks on the three fast
ranks.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from common import spawn

RANKS, TASKS, TASK_S = 4, 64, 0.025
TIMES_SLOW, TIMES_STUCK = 10, 40
ROUNDS = 5
SLOW_RANK = RANKS - 1
FAST_RANKS = RANKS - 1  # their number
BEST_S = {"slow": TASKS * TASK_S / (FAST_RANKS + 1 / TIMES_SLOW), "stuck": (TASKS - 1) * TASK_S / FAST_RANKS}


def main() -> None:
    """Run a rank; rank 0 prints."""
    import skyphos as sky
    from skyphos.mapreduce import MapReduce, split

    sums_of_all = np.arange(TASKS * 100).reshape(-1, 10).sum(axis=0)
    with sky.init() as comm, tempfile.TemporaryDirectory() as folder:
        parts = None
        if comm.rank == 0:
            np.save(Path(folder) / "rows.npy", np.arange(TASKS * 100))
            parts = split(Path(folder) / "rows.npy", Path(folder) / "parts", TASKS)
        parts = comm.broadcast(parts)
        for trouble, best in BEST_S.items():
            for schedule in ("static", "dynamic", "speculative"):
                times = []
                for turn in range(ROUNDS + 1):
                    begun = [False]

                    def task(rows: np.ndarray, _: None, trouble: str = trouble, begun: list[bool] = begun) -> object:
                        first, begun[0] = not begun[0], True
                        factor = {"slow": TIMES_SLOW, "stuck": TIMES_STUCK if first else 1}[trouble]
                        time.sleep(TASK_S * (factor if comm.rank == SLOW_RANK else 1))
                        return rows % 10, rows

                    job = MapReduce(comm, map=task, reduce="sum", partitions=parts, schedule=schedule, threads=1)
                    comm.barrier()
                    keys, sums = job.run()
                    assert (sums == sums_of_all[keys]).all(), (keys, sums)
                    seconds = job.iterations[0].seconds
                    if turn:
                        times.append(seconds["map"] + seconds["shuffle"])
                if comm.rank == 0:
                    took = median(times)
                    ratio = f"{took / best:5.2f} times the least possible, {1e3 * best:.0f} ms"
                    print(f"{trouble:<5} {schedule:<12} {1e3 * took:8.0f} ms   {ratio}")
        comm.barrier()  # rank 0 deletes its folder with the partitions only when all ranks are done


if __name__ == "__main__":
    spawn(__file__, RANKS, main)
