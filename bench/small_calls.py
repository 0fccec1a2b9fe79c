"""Many small allreduces: one after the other, concurrently, and fused. 8 processes over loopback, 32 sparse vectors of
200 entries.

The only bar: fused calls must not be slower than calls one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

import skyphos as sky
from common import check, report, spawn

RANKS, CALLS, ENTRIES, N, ROUNDS = 8, 32, 200, 100_000, 60


def main() -> None:
    with sky.init() as comm:

        def vector(rank: int, call: int) -> sky.SparseVector:
            rng = np.random.default_rng([rank, call])
            indices = np.sort(rng.choice(N, ENTRIES, replace=False))
            return sky.SparseVector(indices, rng.standard_normal(ENTRIES, np.float32), n=N)

        mine = [vector(comm.rank, call) for call in range(CALLS)]

        def waiting() -> list[sky.SparseVector]:
            return [comm.allreduce(x) for x in mine]

        def many() -> list[sky.SparseVector]:
            works = [comm.allreduce(x, async_op=True) for x in mine]
            return [work.wait() for work in works]

        def fused() -> list[sky.SparseVector]:
            with comm.fuse():
                works = [comm.allreduce(x, async_op=True) for x in mine]
            return [work.wait() for work in works]

        variants: dict[str, Callable[[], list[sky.SparseVector]]] = {
            "one after the other": waiting,
            "many under way": many,
            "fused": fused,
        }
        spent: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(ROUNDS + 1):
            for name, variant in variants.items():
                comm.barrier()
                start = time.perf_counter()
                results = variant()
                comm.barrier()
                spent[name].append(time.perf_counter() - start)
                for call in (0, CALLS - 1):
                    want = sum(vector(rank, call).to_dense().astype(np.float64) for rank in range(RANKS))
                    check(name, results[call].to_dense(), np.asarray(want), 1e-5)
        if comm.rank:
            return
        title = f"{CALLS} allreduces of {ENTRIES} entries, {RANKS} processes over loopback; fused / one by one"
        shown = {name: runs[1:] for name, runs in spent.items()}
        report(title, shown, median(shown["fused"]) / median(shown["one after the other"]), 1)


if __name__ == "__main__":
    spawn(__file__, RANKS, main)
