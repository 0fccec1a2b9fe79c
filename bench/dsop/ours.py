"""A rank of Skyphos, started by `places.ours` with CASES ALGORITHMS ITERATIONS; writes seconds of each iteration."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import skyphos as sky


def factor(rank: int, which: int, pairs: int, width: int) -> np.ndarray[Any, Any]:
    """A factor of small whole numbers, whose sums are exact in any order."""
    k, i = np.ogrid[:pairs, :width]
    numbers: np.ndarray[Any, Any] = (rank * 31 + which * 17 + k * 7 + i * 13) % 9 - 4
    return numbers.astype(np.float64)


def check(out: np.ndarray[Any, Any], size: int, pairs: int) -> None:
    """Compare some rows with NumPy's result."""
    n, m = out.shape
    rows = np.unique(np.linspace(0, n - 1, 7).astype(int))
    want = sum(factor(p, 0, pairs, n)[:, rows].T @ factor(p, 1, pairs, m) for p in range(size))
    if not np.array_equal(out[rows], want):
        raise SystemExit("wrong")


def main() -> None:
    cases, names, iterations = json.loads(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3])
    rows = []
    with sky.init(timeout=600) as comm:
        for case in cases:
            n, m, pairs = case["n"], case["m"], case["pairs"]
            a, b = factor(comm.rank, 0, pairs, n), factor(comm.rank, 1, pairs, m)
            out = np.zeros((n, m))
            seconds: dict[str, list[float]] = {name: [] for name in names}
            chosen: dict[str, str] = {}
            # In turns, so that all have the same noise.
            for iteration in range(iterations + 1):
                for name in names:
                    variant: Any = name
                    comm.barrier()
                    start = time.perf_counter()
                    _, how = comm.outer_product_sum(a, b, algorithm=variant, out=out, explain=True)
                    took = time.perf_counter() - start
                    if iteration:
                        seconds[name].append(took)
                        continue
                    check(out, comm.size, pairs)
                    chosen[name] = str(how).splitlines()[0]
                    if "BENCH_TELL" in os.environ and comm.rank == 0:
                        print(how, flush=True)
            rows += [{"name": x, "case": case, "seconds": seconds[x], "chosen": chosen[x]} for x in names]
        rank = comm.rank
    Path(os.environ["BENCH_ROWS"], f"rank-{rank:04d}").write_text(json.dumps(rows))


main()
