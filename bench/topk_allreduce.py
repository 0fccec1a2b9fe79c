"""`topk_allreduce` in the setting in which its authors' code was measured: 8 processes on one host, n = 2^24, k = 1 %,
float32.

Their code takes 744 ms, 58 of them for communication, and exceeds its bound of 6·k words; the bar is their time. The
line "entries selected before" is the call on preselected entries, which only sends, adds and selects 8·k entries.
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np

import skyphos as sky
from common import check, report, spawn

RANKS, N, ROUNDS = 8, 1 << 24, 15
K = N // 100


def gradient(rank: int) -> np.ndarray:
    """A part common to all ranks, and noise of the same size."""
    common = np.random.default_rng(99).standard_normal(N, np.float32)
    return common + np.random.default_rng(rank).standard_normal(N, np.float32)


def largest(values: np.ndarray, k: int) -> np.ndarray:
    """Indices of the k largest magnitudes, sorted; of equal ones those of lower index."""
    magnitude = np.abs(values)
    bound = np.partition(magnitude, len(values) - k)[len(values) - k]
    above = np.flatnonzero(magnitude > bound)
    return np.union1d(above, np.flatnonzero(magnitude == bound)[: k - len(above)])


def main() -> None:
    with sky.init() as comm:
        x = gradient(comm.rank)
        mine = largest(x, K)
        chosen = sky.SparseVector(mine, x[mine], n=N)
        total = comm.reduce(chosen, root=0)
        whole: list[float] = []
        selected: list[float] = []
        for _ in range(ROUNDS + 1):
            for spent, given in ((whole, x), (selected, chosen)):
                comm.barrier()
                start = time.perf_counter()
                result = comm.topk_allreduce(given, K)
                comm.barrier()
                spent.append(time.perf_counter() - start)
        if comm.rank:
            return
        sums = np.zeros(N, np.float32)
        sums[total.indices] = total.values
        indices = largest(sums, K)
        check("which entries", result.indices, indices)
        check("sums", result.values, sums[indices], 1e-5)
        report(
            f"topk_allreduce, {RANKS} processes over loopback, k = {K:,} of {N:,}; time / its authors' 744 ms",
            {"whole": whole[1:], "entries selected before": selected[1:]},
            median(whole[1:]) / 0.744,
            1,
        )


if __name__ == "__main__":
    spawn(__file__, RANKS, main)
