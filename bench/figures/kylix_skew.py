"""*Kylix*'s open question, "potential clock skew across the network": a reduction whose ranks enter it late.

Each of 64 ranks enters late by a uniformly random time up to s seconds. No rank can have a complete result before the
last has entered, s 64/65 late on average; the rest is the cost of the reduction. Clocks that are wrong by up to s
change nothing, because no rank reads another's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .graphs import TWITTER, layers, network, plan
from .style import COLOURS, MARKERS, Log, new

TITLE = "Reduce time against how late ranks enter"
NEEDS_ROOT = False
RANKS = 64
CHOICES = {"direct": (64,), "the paper's": TWITTER.optimal, "binary": (2,) * 6}
SKEWS_S = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
SEEDS = 7
#: The last of 64 uniformly random entries is later than this share of the maximum, except once in a million times.
SURE = 0.8


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Each skew, for several seeds."""
    skews, seeds = (SKEWS_S[::6], 1) if quick else (SKEWS_S, SEEDS)
    points: list[dict[str, Any]] = []
    clocks = []
    for choice, degrees in CHOICES.items():
        for skew in skews:
            times = [_reduce_s(degrees, seed, start=f"uniform(0, {skew})") for seed in range(1, seeds + 1)]
            low, middle, high = min(times), float(np.median(times)), max(times)
            if low < SURE * skew:
                raise RuntimeError(f"a result after {low:.3f} s, where the last of the ranks is up to {skew} s late")
            points.append({"choice": choice, "degrees": degrees, "skew_s": skew, "times_s": [low, middle, high]})
        mine = [point for point in points if point["choice"] == choice]
        right, wrong = (_reduce_s(degrees, 1, clock=f"uniform(0, {skew})") for skew in (0, skews[-1]))
        if right != wrong:
            raise RuntimeError(f"wrong clocks change a reduction: {right} s becomes {wrong} s")
        clocks.append({"choice": choice, "right_s": right, "wrong_s": wrong})
        log(f"{choice} {layers(degrees)}: " + ", ".join(f"{1e3 * p['times_s'][1]:.0f}" for p in mine) + " ms")
    return {"ranks": RANKS, "graph": TWITTER.name, "seeds": seeds, "points": points, "clocks": clocks}


def _reduce_s(degrees: tuple[int, ...], seed: int, **skew: str) -> float:
    """Seconds from the earliest possible entry until the last rank has its result."""
    return plan(TWITTER, degrees, network(RANKS, **skew), seed=seed).last_s


def draw(entry: dict[str, Any]) -> Any:
    """The time on the left; the time beyond the last rank's entry on the right."""
    figure, axes = new(2, width=10.5, height=4.8)
    for number, choice in enumerate(dict.fromkeys(point["choice"] for point in entry["points"])):
        mine = [point for point in entry["points"] if point["choice"] == choice]
        x = np.array([1e3 * point["skew_s"] for point in mine])
        low, middle, high = 1e3 * np.array([point["times_s"] for point in mine]).T
        label = f"{choice} ({layers(mine[0]['degrees'])})"
        look = {"color": COLOURS[2 * number], "marker": MARKERS[number], "zorder": 3}
        axes[0].plot(x, middle, label=label, **look)
        axes[0].fill_between(x, low, high, color=look["color"], alpha=0.2, linewidth=0)
        last = x * entry["ranks"] / (entry["ranks"] + 1)
        axes[1].plot(x, middle - last, **look)
        axes[1].fill_between(x, low - last, high - last, color=look["color"], alpha=0.2, linewidth=0)
    largest = 1e3 * max(point["skew_s"] for point in entry["points"])
    axes[0].plot([0, largest], [0, largest], color="#777777", linestyle=":", label="the last rank enters")
    axes[0].set_ylabel("ms until the last rank has its result")
    axes[1].set_ylabel("ms after the expected entry of the last rank")
    for each in axes:
        each.set_ylim(0, None)
        each.set_xlabel("ranks enter up to so many ms late")
    figure.legend(loc="outside lower center", ncols=4, fontsize=8.5, frameon=False)
    figure.suptitle(
        f"{TITLE}: {entry['graph']}, {entry['ranks']} nodes (simulated); median and range of {entry['seeds']} seeds",
        fontsize=11,
        fontweight="bold",
    )
    return figure
