"""Shared by all benchmarks: data, checks, and the printing of figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from statistics import median

import numpy as np


def zipf_distinct(rng: np.random.Generator, n: int, count: int, exponent: float) -> np.ndarray:
    """``count`` distinct indices of ``0..n``, drawn with P(i) ~ (i + 1)^-exponent; sorted."""
    weights = np.arange(1, n + 1, dtype=np.float64) ** -exponent
    cumulative = np.cumsum(weights)
    cumulative /= cumulative[-1]
    found = np.empty(0, np.int64)
    while len(found) < count:
        draws = np.searchsorted(cumulative, rng.random(2 * count))
        found = np.union1d(found, draws)
    return np.sort(rng.choice(found, count, replace=False))


def check(what: str, got: np.ndarray, expected: np.ndarray, tolerance: float = 1e-12) -> None:
    """Stop the benchmark if an answer is wrong."""
    error = np.max(np.abs(got - expected), initial=0) / max(1e-300, np.max(np.abs(expected), initial=0))
    if not error <= tolerance:
        raise SystemExit(f"{what}: wrong by {error:.3g}")


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """Median of the ratios of neighbouring runs."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def report(title: str, seconds: dict[str, list[float]], ratio: float, bar: float) -> None:
    """Print medians and spread, the ratio and its bar; also as JSON if BENCH_JSON names a file."""
    print(title)
    for name, runs in seconds.items():
        digits = 3 if median(runs) >= 1e-3 else 5
        middle, low, high = (f"{1e3 * number:.{digits}f}" for number in (median(runs), min(runs), max(runs)))
        print(f"  {name:<28} {middle:>9} ms   ({low} to {high})")
    verdict = "met" if ratio <= bar else "NOT MET"
    print(f"  ratio {ratio:.3f}, bar {bar}: {verdict}")
    sys.stdout.flush()
    if path := os.environ.get("BENCH_JSON"):
        entry = {
            "title": title,
            "ratio": ratio,
            "bar": bar,
            "median_s": {k: median(v) for k, v in seconds.items()},
        }
        with open(path, "a") as file:
            file.write(json.dumps(entry) + "\n")


def spawn(script: str, ranks: int, main: Callable[[], None]) -> None:
    """Run ``main`` in ``ranks`` local processes: this process only starts them."""
    if "SKYPHOS_RANK" in os.environ:
        main()
        return
    command = [sys.executable, "-m", "skyphos.cli", "run", "-n", str(ranks), script]
    env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    raise SystemExit(subprocess.call(command, env=env))
