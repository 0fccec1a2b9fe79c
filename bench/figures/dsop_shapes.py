"""*DSOP* beyond its figures: sums that are not square, several pairs a rank, 256 hosts, on the cluster of `dsop.py`."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from .dsop import VARIANTS, seconds
from .dsop_fig2 import name_of
from .style import COLOURS, MARKERS, Log, new, plain_numbers

TITLE = "DSOP beyond its figures: N ≠ M, several pairs, 256 hosts"
NEEDS_ROOT = False
#: Shapes of 16 million numbers each.
SHAPES = ((16_000_000 // 250, 250), (16_000, 1000), (4000, 4000), (1000, 16_000), (250, 16_000_000 // 250))
PAIRS = (1, 4, 16, 64, 256)
SIZES = (1000, 2000, 4000, 8000)
SEEDS = 5


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Medians of a few repetitions."""
    points = []
    cases = [("shape", 48, n, m, 1) for n, m in SHAPES]
    cases += [("pairs", 48, 4000, 4000, pairs) for pairs in PAIRS]
    cases += [("hosts", 256, n, n, 1) for n in SIZES]
    for what, hosts, n, m, pairs in cases[:1] if quick else cases:
        ranks = 8 if quick else hosts
        for variant in VARIANTS:
            runs = [seconds(ranks, (n, m), variant, seed, pairs) for seed in range(1 if quick or ranks > 48 else SEEDS)]
            where = {"what": what, "ranks": ranks, "n": n, "m": m, "pairs": pairs, "way": variant}
            took = median(s for s, _ in runs)
            points.append(where | {"chosen": runs[0][1], "seconds": took})
            log(f"{ranks} hosts, {n} by {m}, {pairs} pairs, {variant} ({runs[0][1]}): {1e3 * took:.1f} ms")
    return {"points": points}


def draw(entry: dict[str, Any]) -> Any:
    """Run times against shape, pairs and hosts."""
    figure, axes = new(3, width=16, height=4.8)
    panels: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
        ("shape", "N by M, 48 hosts, one pair a rank", lambda p: f"{p['n']:,}\nby {p['m']:,}"),
        ("pairs", "pairs a rank, 4000 by 4000, 48 hosts", lambda p: str(p["pairs"])),
        ("hosts", "N = M, 256 hosts, one pair a rank", lambda p: f"{p['n']:,}"),
    )
    for each, (what, label, name) in zip(axes, panels, strict=True):
        for number, variant in enumerate(VARIANTS):
            mine = [p for p in entry["points"] if (p["what"], p["way"]) == (what, variant)]
            style = {"color": COLOURS[number], "marker": MARKERS[number], "label": name_of(variant), "zorder": 3}
            each.plot(range(len(mine)), [1e3 * p["seconds"] for p in mine], **style)
            each.set_xticks(range(len(mine)), [name(p) for p in mine], fontsize=8.5)
        each.set_yscale("log")
        low, high = each.get_ylim()
        ticks = [t for t in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000) if low <= t <= high]
        plain_numbers(each.yaxis, ticks)
        each.set_xlabel(label)
        each.set_ylabel("milliseconds")
    axes[2].legend(fontsize=8.5, frameon=False, loc="upper left")
    figure.suptitle(f"{TITLE} (simulated)", fontsize=12, fontweight="bold")
    return figure
