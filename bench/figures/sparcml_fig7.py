"""*SparCML*, Fig. 7: how many entries the sum of P sparse vectors has, where each has k of N = 512 at random.

    E[K] = N (1 - (1 - k/N)^P)                                         (ours)
         = N sum over i = 1..P of (-1)^(i-1) C(P, i) (k/N)^i           (the paper's, appendix B)

Beside the formula: the unions of random sets, and the results of real allreduces among P ranks of this process.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np

import skyphos as sky

from .style import COLOURS, MARKERS, Log, new, plain_numbers

TITLE = "SparCML Fig. 7: entries of the reduced vector"
NEEDS_ROOT = False
N = 512
PER_RANK = (1, 4, 16, 64, 128)
RANKS = (1, 2, 4, 8, 16, 32, 64)
CONFIDENCE = 3.89  # standard errors: a correct mean exceeds this in one of 10,000 runs


def expected(k: int, n: int, ranks: int) -> float:
    """Entries of the union of ``ranks`` random sets of ``k`` out of ``n``."""
    return float(n * (1 - (1 - k / n) ** ranks))


def papers_expected(k: int, n: int, ranks: int) -> Fraction:
    """The same as :func:`expected` by the paper's alternating sum, in exact fractions because its terms cancel."""
    return n * sum(
        ((-1) ** (i - 1) * math.comb(ranks, i) * Fraction(k, n) ** i for i in range(1, ranks + 1)), Fraction(0)
    )


def deviation(k: int, n: int, ranks: int) -> float:
    """Standard deviation of the size of one union, from the probabilities that one and that two indices are absent."""
    one = (1 - k / n) ** ranks
    two = ((n - k) * (n - k - 1) / (n * (n - 1))) ** ranks
    return math.sqrt(max(0.0, n * (n - 1) * two + n * one - (n * one) ** 2))


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Mean unions and mean results for each k and P."""
    unions, reduces = (200, 2) if quick else (1000, 10)
    per_rank, group_sizes = (PER_RANK[1:3], RANKS[:4]) if quick else (PER_RANK, RANKS)
    rng = np.random.default_rng(7)
    points = []
    for ranks in group_sizes:
        log(f"P = {ranks}: {reduces} allreduces and {unions} unions for each of {len(per_rank)} k")
        comms = sky.local(ranks, threads=1)
        with ThreadPoolExecutor(ranks) as pool:
            for k in per_rank:
                sizes = [_union(_sets(rng, k, ranks)) for _ in range(unions)]
                results = [_allreduce(pool, comms, _sets(rng, k, ranks)) for _ in range(reduces)]
                points.append(_point(k, ranks, sizes, results))
            list(pool.map(lambda comm: comm.close(), comms))
    return {"n": N, "unions": unions, "allreduces": reduces, "points": points}


def _point(k: int, ranks: int, sizes: list[int], results: list[int]) -> dict[str, Any]:
    """Formula and means; raises if a mean is too far from the formula, or if the two formulas differ."""
    formula = expected(k, N, ranks)
    if abs(float(papers_expected(k, N, ranks)) - formula) > 1e-9 * N:
        raise RuntimeError(f"the formulas differ for k = {k}, P = {ranks}")
    spread = deviation(k, N, ranks)
    for what, found in (("unions", sizes), ("results", results)):
        mean = float(np.mean(found))
        if abs(mean - formula) > CONFIDENCE * spread / len(found) ** 0.5 + 1e-9:
            raise RuntimeError(f"k = {k}, P = {ranks}: {what} have {mean:.2f} entries, not {formula:.2f}")
    return {
        "k": k,
        "ranks": ranks,
        "expected": formula,
        "union": float(np.mean(sizes)),
        "allreduce": float(np.mean(results)),
        "spread": spread,
    }


def _sets(rng: np.random.Generator, k: int, ranks: int) -> list[np.ndarray]:
    return [np.sort(rng.choice(N, k, replace=False)) for _ in range(ranks)]


def _union(sets: list[np.ndarray]) -> int:
    return int(np.count_nonzero(np.bincount(np.concatenate(sets), minlength=N)))


def _allreduce(pool: ThreadPoolExecutor, comms: list[sky.Comm], sets: list[np.ndarray]) -> int:
    """Entries of an allreduce's result, whose values are checked: each index counts the sets that contain it."""

    def body(comm: sky.Comm) -> Any:
        mine = sets[comm.rank]
        # `allgather` never turns the result dense, as the figure assumes.
        return comm.allreduce(sky.SparseVector(mine, np.ones(len(mine), np.float32), N), algorithm="allgather")

    counts = np.bincount(np.concatenate(sets), minlength=N)
    for reduced in pool.map(body, comms):
        if not np.array_equal(reduced.to_dense(), counts):
            raise RuntimeError("an allreduce is wrong")
    return int(reduced.nnz)


def draw(entry: dict[str, Any]) -> Any:
    """Lines for the formula, marks for what was measured."""
    figure, (axes,) = new()
    ranks = np.unique([point["ranks"] for point in entry["points"]])
    fine = np.geomspace(ranks[0], ranks[-1], 200)
    for number, k in enumerate(sorted({point["k"] for point in entry["points"]})):
        mine = [point for point in entry["points"] if point["k"] == k]
        colour, x = COLOURS[number], [point["ranks"] for point in mine]
        axes.plot(fine, N * (1 - (1 - k / N) ** fine), color=colour, linewidth=1.2, zorder=2)
        axes.plot(
            x,
            [p["union"] for p in mine],
            MARKERS[number],
            markerfacecolor="none",
            markeredgecolor=colour,
            markersize=11,
            zorder=3,
        )
        axes.plot(x, [p["allreduce"] for p in mine], MARKERS[number], color=colour, markersize=5, zorder=4)
        axes.annotate(
            f"k = {k}",
            (ranks[0], mine[0]["expected"]),
            xytext=(-10, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            color=colour,
            fontsize=9,
        )
    axes.axhline(N, color="#777777", linestyle=":", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    plain_numbers(axes.xaxis, ranks.tolist())
    plain_numbers(axes.yaxis, [2**i for i in range(10)])
    axes.set_ylim(0.7, 760)
    axes.set_xlim(0.55 * ranks[0], 1.2 * ranks[-1])
    axes.set_xlabel("ranks P (logarithmic)")
    axes.set_ylabel("entries of the result K, of N = 512 (logarithmic)")
    _legend(figure, entry)
    figure.suptitle(TITLE, fontsize=12, fontweight="bold")
    return figure


def _legend(figure: Any, entry: dict[str, Any]) -> None:
    from matplotlib.lines import Line2D

    marks = [
        Line2D([], [], color="black", linewidth=1.2, label="the paper's formula"),
        Line2D(
            [],
            [],
            marker="o",
            linestyle="",
            markerfacecolor="none",
            markeredgecolor="black",
            markersize=11,
            label=f"unions of random sets, mean of {entry['unions']:,}",
        ),
        Line2D(
            [],
            [],
            marker="o",
            linestyle="",
            color="black",
            markersize=5,
            label=f"results of our allreduce, mean of {entry['allreduces']}",
        ),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=3, fontsize=8.5, frameon=False)
