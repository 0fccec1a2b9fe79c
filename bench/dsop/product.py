"""One rank's product compared with NumPy's BLAS on the same shapes, in turns, one thread each."""

from __future__ import annotations

import time
from statistics import median

import numpy as np

import skyphos as sky

SHAPES = [(4000, 4000), (1000, 8000), (500, 4000)]
PAIRS = [1, 8, 16, 64, 128, 256, 2048]
BAR = 0.7


def product() -> None:
    """Print a line for each shape."""
    with sky.init() as comm:
        for dtype in (np.float64, np.float32):
            for n, m in SHAPES:
                for pairs in PAIRS:
                    compare(comm, np.dtype(dtype), n, m, pairs)


def compare(comm: sky.Comm, dtype: np.dtype, n: int, m: int, pairs: int) -> None:
    """Time both products in turns, and print a line."""
    rng = np.random.default_rng(1)
    a, b = rng.random((pairs, n)).astype(dtype), rng.random((pairs, m)).astype(dtype)
    ours, theirs = np.zeros((n, m), dtype), np.zeros((n, m), dtype)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(9):
        start = time.perf_counter()
        comm.outer_product_sum(a, b, out=ours, algorithm="allgather")
        middle = time.perf_counter()
        np.matmul(a.T, b, out=theirs)
        times[0].append(middle - start)
        times[1].append(time.perf_counter() - middle)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4 if dtype == np.float32 else 1e-10)
    took, blas = median(times[0]), median(times[1])
    rate = 2e-9 * n * m * pairs / took
    speed = blas / took
    verdict = "" if speed >= BAR else f"   BELOW {BAR}"
    shape = f"{dtype} {n:>5} by {m:<5} {pairs:>5} pairs"
    print(f"{shape}  {1e3 * took:8.2f} ms  {rate:6.1f} GFLOP/s  {speed:.2f} times NumPy's speed{verdict}")
