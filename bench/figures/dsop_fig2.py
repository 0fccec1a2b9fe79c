"""*DSOP*, Figs. 2 to 12: speedups over allreduce, run times and their distributions, on 16, 32 and 48 simulated hosts.

One observation is one repetition: a job with a random placement of its hosts (`dsop.py`). The simulator is
deterministic, so a repetition is one run, where the paper takes the median of 24. Intervals are percentiles of 2,000
resamples, as in the paper.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np

from .dsop import PAPERS, RANKS, SIZES, VARIANTS, seconds
from .style import COLOURS, MARKERS, Log, new, plain_numbers

TITLE = "DSOP Figs. 2 to 12: speedups and run times on 16, 32 and 48 hosts"
NEEDS_ROOT = False
REPETITIONS = 15
BASE = "allreduce"
PERCENTILES = (10, 50, 90)


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Seconds of each repetition."""
    points = []
    for ranks in RANKS[: 1 if quick else None]:
        for n in SIZES[: 2 if quick else None]:
            for variant in VARIANTS:
                runs = [seconds(ranks, (n, n), variant, seed) for seed in range(2 if quick else REPETITIONS)]
                chosen = sorted({name for _, name in runs})
                times = [s for s, _ in runs]
                points.append({"ranks": ranks, "n": n, "way": variant, "chosen": chosen, "seconds": times})
                log(f"{ranks} hosts, N = {n}, {variant}: {1e3 * median(times):.1f} ms")
    return {"points": points}


def interval(values: Any, percentile: float) -> tuple[float, float, float]:
    """A percentile with its 95 % interval."""
    values = np.asarray(values)
    draws = np.random.default_rng(1).choice(values, (2000, len(values)))
    low, high = np.percentile(np.percentile(draws, percentile, axis=1), (2.5, 97.5))
    return float(np.percentile(values, percentile)), float(low), float(high)


def name_of(variant: str) -> str:
    """The paper's name of an algorithm, or ours if the paper has none."""
    return PAPERS.get(variant, f"ours: {variant}")


def draw(entry: dict[str, Any]) -> Any:
    """Rows: speedups, run times, distributions; columns: hosts."""
    times_of = {(p["ranks"], p["n"], p["way"]): p["seconds"] for p in entry["points"]}
    all_ranks, sizes = sorted({key[0] for key in times_of}), sorted({key[1] for key in times_of})
    figure, axes = new(len(all_ranks), rows=7, width=6.2 * len(all_ranks), height=26)
    for column, ranks in enumerate(all_ranks):
        for row, percentile in enumerate(PERCENTILES):
            speed, time = axes[row * len(all_ranks) + column], axes[(3 + row) * len(all_ranks) + column]
            for number, variant in enumerate(VARIANTS):
                style = {"color": COLOURS[number], "marker": MARKERS[number], "label": name_of(variant), "zorder": 3}
                pairs = [(times_of[ranks, n, variant], times_of[ranks, n, BASE]) for n in sizes]
                found = [interval(np.asarray(base) / np.asarray(mine), percentile) for mine, base in pairs]
                if variant != BASE:
                    speed.plot(sizes, [f[0] for f in found], **style)
                    speed.fill_between(
                        sizes, [f[1] for f in found], [f[2] for f in found], color=COLOURS[number], alpha=0.2
                    )
                found = [interval(1e3 * np.asarray(mine), percentile) for mine, _ in pairs]
                time.plot(sizes, [f[0] for f in found], **style)
                time.fill_between(sizes, [f[1] for f in found], [f[2] for f in found], color=COLOURS[number], alpha=0.2)
            which = "median" if percentile == 50 else f"{percentile}th percentile"
            speed.axhline(1, color="black", linestyle=":", linewidth=1.2)
            speed.set_title(f"{ranks} hosts: speedup over allreduce, {which}", fontsize=10)
            time.set_title(f"{ranks} hosts: milliseconds, {which}", fontsize=10)
            for each in (speed, time):
                each.set_yscale("log")
                each.set_xlabel("N = M")
        violins = axes[6 * len(all_ranks) + column]
        for number, variant in enumerate(VARIANTS):
            data = [1e3 * np.asarray(times_of[ranks, n, variant]) for n in sizes]
            at = np.arange(len(sizes)) + (number - 2) * 0.16
            parts = violins.violinplot(data, at, widths=0.15, showmedians=True, showextrema=False)
            for body in parts["bodies"]:
                body.set(facecolor=COLOURS[number], alpha=0.7)
            parts["cmedians"].set(color="black", linewidth=0.8)
        violins.set_yscale("log")
        violins.set_xticks(range(len(sizes)), [f"{n:,}" for n in sizes])
        violins.set_title(f"{ranks} hosts: milliseconds of all repetitions", fontsize=10)
        violins.set_xlabel("N = M")
    for each in axes:
        plain_numbers(
            each.yaxis,
            [
                t
                for t in (0.5, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
                if each.get_ylim()[0] <= t <= each.get_ylim()[1]
            ],
        )
    axes[0].legend(fontsize=8.5, frameon=False)
    axes[3 * len(all_ranks)].legend(fontsize=8.5, frameon=False)
    figure.suptitle(f"{TITLE} (simulated)", fontsize=12, fontweight="bold")
    return figure
