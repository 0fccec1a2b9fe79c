"""*Kylix*, section V: how many machines fail before a rank is lost, and what replicas gain when machines are late.

With two replicas of each of m ranks, and machines that fail in random order, it takes

    4^m / C(2m, m)  ~  sqrt(pi m)

failures on average until both replicas of some rank have failed (the paper: about the square root of m). Here groups
lose one process after the other, in simulated time, until a call reports a lost rank.

The second part is about late machines, because a reduction waits for its slowest rank. Computations of
Pareto-distributed length precede each reduction; groups with one process a rank are compared with groups of two, on
twice the machines.
"""

from __future__ import annotations

import json
import subprocess
from math import comb, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from .style import COLOURS, THEIRS, Log, new

TITLE = "Kylix section V: failures until a rank is lost, and replicas against late machines"
NEEDS_ROOT = False
RANKS, TRIALS = (2, 4, 8, 16, 32), 200
EXPONENTS, SEEDS = (1.1, 1.3, 1.6, 2.0, 3.0, 5.0), 15
CONFIDENCE = 4.5  # standard errors: a correct mean exceeds this in one of 100,000 runs


def expected(ranks: int) -> float:
    """Failures until both replicas of some rank have failed."""
    return float(4**ranks / comb(2 * ranks, ranks))


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Crash groups; then let machines be late."""
    ranks, trials, exponents, seeds = (RANKS[:2], 10, EXPONENTS[::5], 1) if quick else (RANKS, TRIALS, EXPONENTS, SEEDS)
    losses = []
    for count in ranks:
        failures = np.array(_example("failures_to_loss", trials, count)["failures"])
        error = failures.std() / sqrt(trials)
        if abs(failures.mean() - expected(count)) > CONFIDENCE * max(error, 0.5 / sqrt(trials)):
            raise RuntimeError(f"{count} ranks: {failures.mean()} failures, where {expected(count)} are expected")
        low, high = (float(limit) for limit in np.percentile(failures, (10, 90)))
        losses.append({"ranks": count, "mean": float(failures.mean()), "error": float(error), "range": [low, high]})
        log(f"{count} ranks: {failures.mean():.2f} failures until one is lost, expected {expected(count):.2f}")
    late = []
    for exponent in exponents:
        found = _example("stragglers", seeds, exponent)
        one, two = np.array(found["one_ms"]), np.array(found["two_ms"])
        late.append({"exponent": exponent, "one_ms": one.tolist(), "two_ms": two.tolist()})
        log(f"exponent {exponent}: {np.median(one):.0f} ms a call, with replicas {np.median(two):.0f} ms")
    return {"trials": trials, "losses": losses, "late": late}


def _example(name: str, repeat: int, setting: float) -> dict[str, Any]:
    """The output of a Rust example for one setting, repeated ``repeat`` times."""
    cargo = ["cargo", "run", "--quiet", "--release", "--package", "skyphos", "--example", name, "--"]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([*cargo, str(repeat), str(setting)], cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    times: dict[str, Any] = json.loads(done.stdout)
    return times


def draw(entry: dict[str, Any]) -> Any:
    """Failures on the left, late machines on the right."""
    figure, axes = new(columns=2, width=10.5, height=4.4)
    losses, late = entry["losses"], entry["late"]
    x = [point["ranks"] for point in losses]
    low, high = zip(*(point["range"] for point in losses), strict=True)
    axes[0].fill_between(x, low, high, color=COLOURS[2], alpha=0.2, linewidth=0, label="middle 80 % of the trials")
    axes[0].plot(x, [point["mean"] for point in losses], "o", color=COLOURS[2], label="mean of groups that failed")
    axes[0].plot(x, [expected(ranks) for ranks in x], color=THEIRS, label="4^m / C(2m, m)")
    axes[0].set_xscale("log", base=2)
    axes[0].set_yscale("log", base=2)
    axes[0].set_xticks(x, [str(ranks) for ranks in x])
    axes[0].set_yticks([2, 4, 8, 16], ["2", "4", "8", "16"])
    axes[0].set_xlabel("ranks m, two replicas each")
    axes[0].set_ylabel("failures until a rank is lost")
    for number, (key, label) in enumerate(
        (("one_ms", "one process a rank"), ("two_ms", "two a rank, the first counts"))
    ):
        quartiles = np.array([np.percentile(point[key], (25, 50, 75)) for point in late]).T
        places = np.arange(len(late)) + (number - 0.5) * 0.38
        colour = (THEIRS, COLOURS[2])[number]
        axes[1].bar(places, quartiles[1], 0.36, color=colour, label=label, zorder=3)
        spread = [quartiles[1] - quartiles[0], quartiles[2] - quartiles[1]]
        axes[1].errorbar(places, quartiles[1], spread, fmt="none", color="black", capsize=2, zorder=4)
    axes[1].set_xticks(range(len(late)), [str(point["exponent"]) for point in late])
    axes[1].set_xlabel("Pareto exponent of a computation's length (small: heavy tail)")
    axes[1].set_ylabel("ms a computation and reduction")
    for each in axes:
        each.legend(fontsize=8.5)
    figure.suptitle("Two replicas a rank (simulated)", fontsize=11, fontweight="bold")
    return figure
