"""Time of small blocking calls between two processes of this host. Each kind of call is timed separately.

Before, one allreduce of each kind and one reduction of each plan are checked.
``--against FOLDER`` alternates with another build: FOLDER is the ``python`` folder of its tree, with its native
library. Ratios are of neighbouring runs.

    python bench/call_latency.py
    python bench/call_latency.py --against /path/to/another/tree/python --rounds 8
    SKYPHOS_SHARED_MEMORY=0 python bench/call_latency.py        # over loopback sockets
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import skyphos as sky
from common import check, median_ratio

RANKS, ENTRIES, N, REPEATS, CALLS = 2, 20, 1000, 5, 600
HERE = str(Path(sky.__file__).resolve().parents[1])


def calls_of(comm: sky.Comm) -> dict[str, Callable[[], Any]]:
    """The calls to time, by name."""
    rng = np.random.default_rng(comm.rank)
    vector = sky.SparseVector(np.sort(rng.choice(N, ENTRIES, replace=False)), np.ones(ENTRIES), N)
    dense = np.ones(8)
    plans = {count: comm.configure(np.arange(count), np.arange(count), n=count) for count in (10, 2000)}
    check("allreduce of 8 numbers", comm.allreduce(dense), np.full(8, float(RANKS)))
    check("sparse allreduce", comm.allreduce(vector).values.sum(keepdims=True), np.array([float(RANKS * ENTRIES)]))
    for count, plan in plans.items():
        check(f"reduce of {count}", plan.reduce(np.ones(count)), np.full(count, float(RANKS)))
    return {
        "barrier": comm.barrier,
        "allreduce, 8 numbers": lambda: comm.allreduce(dense),
        f"allreduce, {ENTRIES} entries": lambda: comm.allreduce(vector),
        f"allgather, {ENTRIES} entries": lambda: comm.allgather(vector),
        "plan.reduce, 10 numbers": lambda: plans[10].reduce(np.ones(10)),
        "plan.reduce, 2000 numbers": lambda: plans[2000].reduce(np.ones(2000)),
    }


def measure() -> None:
    """Run one of the two processes; rank 0 prints microseconds per call, the least of some repetitions."""
    with sky.init(timeout=60) as comm:
        spent = {}
        for name, call in calls_of(comm).items():
            runs = []
            for _ in range(REPEATS + 1):
                comm.barrier()
                start = time.perf_counter()
                for _ in range(CALLS):
                    call()
                runs.append((time.perf_counter() - start) / CALLS)
            spent[name] = 1e6 * min(runs[1:])
        if comm.rank == 0:
            print(json.dumps(spent))


def run(folder: str) -> dict[str, float]:
    """One measurement, with the package in this folder."""
    env = os.environ | {"PYTHONPATH": folder, "CALL_LATENCY": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "skyphos.cli", "run", "--no-prefix", "-n", str(RANKS), __file__]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    if "CALL_LATENCY" in os.environ:
        measure()
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", metavar="FOLDER", help="the python folder of another build")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    ours, theirs = [], []
    for _ in range(options.rounds):
        if options.against:
            theirs.append(run(options.against))
        ours.append(run(HERE))
    for name in ours[0]:
        mine = [one[name] for one in ours]
        line = f"{name:<28} {median(mine):7.2f} µs"
        if theirs:
            other = [one[name] for one in theirs]
            line += f"   other build {median(other):7.2f} µs   ratio {median_ratio(mine, other):.3f}"
        print(line)


if __name__ == "__main__":
    main()
