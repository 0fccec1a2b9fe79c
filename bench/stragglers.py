"""What a slow machine costs a map-reduce job by each schedule.

    .venv/bin/python bench/stragglers.py

Four processes of one map thread, 64 partitions of even length, tasks that wait 25 ms each (so that cores are not what
counts). On the slow rank tasks take 10 times as long, or the first one takes 40 times as long. Times from the first
task to the last key, over what all ranks together could do at best: 64 tasks on three quick ranks and a tenth of one;
63 on three.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

RANKS, TASKS, TASK_S = 4, 64, 0.025
TIMES_SLOW = 10
STUCK_S = 40 * TASK_S
ROUNDS = 5
SLOW = RANKS - 1


def main() -> None:
    """A rank; 0 prints."""
    import skyphos as sky
    from skyphos.mapreduce import MapReduce

    folder = Path(sys.argv[1])
    sums_of_all = np.arange(TASKS * 100).reshape(-1, 10).sum(axis=0)
    with sky.init() as comm:
        found: dict[str, list[float]] = {}
        for trouble in ("slow", "stuck"):
            for schedule in ("static", "dynamic", "speculative"):
                for turn in range(ROUNDS + 1):
                    begun = [False]

                    def task(rows: np.ndarray, _: None, trouble: str = trouble, begun: list[bool] = begun) -> object:
                        first, begun[0] = not begun[0], True
                        slow = comm.rank == SLOW
                        if trouble == "slow":
                            time.sleep(TASK_S * (TIMES_SLOW if slow else 1))
                        else:
                            time.sleep(STUCK_S if slow and first else TASK_S)
                        return rows % 10, rows

                    job = MapReduce(
                        comm,
                        map=task,
                        reduce="sum",
                        partitions=str(folder / "parts" / "partitions.json"),
                        schedule=schedule,
                        threads=1,
                    )
                    comm.barrier()
                    keys, sums = job.run()
                    (told,) = job.iterations
                    seconds = told.seconds["map"] + told.seconds["shuffle"]
                    if turn:
                        found.setdefault(f"{trouble} {schedule}", []).append(seconds)
                    assert (sums == sums_of_all[keys]).all(), (keys, sums)
        if comm.rank == 0:
            print(json.dumps({name: median(times) for name, times in found.items()}))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main()
        sys.exit()
    with tempfile.TemporaryDirectory() as place:
        from skyphos.mapreduce import split

        np.save(Path(place) / "rows.npy", np.arange(TASKS * 100))
        split(Path(place) / "rows.npy", Path(place) / "parts", TASKS)
        command = [sys.executable, "-m", "skyphos.cli", "run", "-n", str(RANKS), "--", sys.executable, __file__, place]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        (line,) = [line for line in done.stdout.splitlines() if "{" in line]
        times = json.loads(line[line.index("{") :])
    quick = RANKS - 1
    best = {"slow": TASKS * TASK_S / (quick + 1 / TIMES_SLOW), "stuck": (TASKS - 1) * TASK_S / quick}
    for name, seconds in times.items():
        at_best = best[name.split()[0]]
        print(f"{name:<20} {1e3 * seconds:8.0f} ms   {seconds / at_best:5.2f} of {1e3 * at_best:.0f} ms")
