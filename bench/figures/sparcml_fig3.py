"""*SparCML*, Fig. 3: the time of an allreduce against the number of ranks, and against the density of the input.

The paper has N = 16M. It varies the number of ranks on Piz Daint, at a density of 0.781 %, and the density on Greina
with Gigabit Ethernet, at P = 8.
Ours: N = 2^20 in the lab at 250 Mbit/s, a rate that two cores can serve for 8 hosts; both rate and N are smaller, so
bytes, not calls, still dominate. As in the paper, five experiments with new data, each run ten times (after one
that is dropped), and quartiles over all 50. Dense allreduces are slow and do not depend on the data: they take part in
the first experiment only, at one density.

The paper gives no numbers for this figure, but bounds (section 5.3). Dotted lines are the times of its algorithms'
bytes on this link, without latency: indices as 4 bytes beside values of 4 bytes, framing included. Inputs have k
entries; a union of m inputs has its mean size U(m) = N (1 - (1 - k/N)^m). Bytes that a rank receives:

    recursive_doubling     8 (U(1) + U(2) + U(4) + ... + U(P/2))
    split_allgather        8 (P - 1)/P (k + U(P))
    split_allgather_dense  (P - 1)/P (8 k + 4 N)
    dense (ring)           2 (P - 1)/P 4 N
"""

from __future__ import annotations

from typing import Any

from lab.link import rate_bits, seconds
from lab.run import Result, run
from lab.scenario import Scenario

from .sparcml_fig7 import expected
from .style import COLOURS, MARKERS, Log, as_point, new, plain_numbers, quartiles

TITLE = "SparCML Fig. 3: time of an allreduce"
NEEDS_ROOT = True
RATE = "250mbit"
N = 1 << 20
RANKS = (2, 4, 8)
DENSITIES = (0.001, 0.0078125, 0.03, 0.12)
COMMON_DENSITY = 0.0078125  # the paper's 0.781 %; used at every number of ranks
SPARSE = ("recursive_doubling", "split_allgather", "ring", "allgather", "auto", "split_allgather_dense")
DENSE = ("dense_ring", "gloo", "mpich")
_PAIR_BYTES, _VALUE_BYTES = 8, 4


def theirs(name: str, n: int, density: float, ranks: int) -> float:
    """Bytes that a rank receives in the paper's algorithm of this name."""
    k, others = density * n, (ranks - 1) / ranks
    return {
        "recursive_doubling": _PAIR_BYTES * sum(expected(round(k), n, 1 << i) for i in range(ranks.bit_length() - 1)),
        "split_allgather": _PAIR_BYTES * others * (k + expected(round(k), n, ranks)),
        "split_allgather_dense": others * (_PAIR_BYTES * k + _VALUE_BYTES * n),
        "dense_ring": 2 * others * _VALUE_BYTES * n,
    }[name]


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Quartiles of every contender at each number of ranks and each density."""
    n, experiments, turns = (1 << 14, 2, 3) if quick else (N, 5, 11)
    ranks, densities = (RANKS[:2], (COMMON_DENSITY, 0.12)) if quick else (RANKS, DENSITIES)
    largest = ranks[-1]
    places = [(p, COMMON_DENSITY, True) for p in ranks]
    places += [(largest, d, False) for d in densities if d != COMMON_DENSITY]
    times: dict[tuple[str, int, float], list[float]] = {}
    for experiment in range(experiments):
        for p, density, dense in places:
            log(f"experiment {experiment + 1} of {experiments}: P = {p}, density {100 * density:.3g} %")
            slow: dict[str, dict[str, Any]] = {name: {} for name in DENSE} if dense and experiment == 0 else {}
            scenario = Scenario(
                name="sparcml_fig3",
                title=TITLE,
                hosts=p,
                n=n,
                data={"kind": "uniform", "density": density},
                contenders=slow | {name: {} for name in SPARSE},
                rate=RATE,
                iterations=turns,
                placements=1,
                seed=experiment + 1,
            )
            for name, found in _times(run(scenario, lambda _said: None)).items():
                times.setdefault((name, p, density), []).extend(found)
    points = [
        as_point(quartiles(found), name=name, ranks=p, density=density) for (name, p, density), found in times.items()
    ]
    bounds = [
        {"name": name, "ranks": p, "density": d, "seconds": seconds(theirs(name, n, d, p), rate_bits(RATE))}
        for name in ("recursive_doubling", "split_allgather", "split_allgather_dense", "dense_ring")
        for p, d, _ in places
    ]
    return {"n": n, "rate": RATE, "dtype": "float32", "experiments": experiments, "points": points, "papers": bounds}


def _times(result: Result) -> dict[str, list[float]]:
    """Times of all contenders that took part. Missing ones are left out; a wrong answer or an error ends the figure."""
    if result.failed:
        raise RuntimeError("; ".join(f"{name} failed: {reason}" for name, reason in result.failed.items()))
    return {name: placements[0] for name, placements in result.times.items()}


def draw(entry: dict[str, Any]) -> Any:
    """Against ranks on the left, against density on the right."""
    figure, axes = new(2, width=10.5, height=5.4)
    largest = max(point["ranks"] for point in entry["points"])
    names = list(dict.fromkeys(point["name"] for point in entry["points"]))
    names.sort(key=[*SPARSE, *DENSE].index)
    for number, name in enumerate(names):
        look = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        if name in DENSE:
            look |= {"color": ("#000000", "#777777", "#aaaaaa")[DENSE.index(name)], "markerfacecolor": "white"}
        for side, (where, scale) in enumerate((("ranks", 1), ("density", 100))):
            mine = _chosen(entry["points"], name, side, largest)
            aside = 1.015 ** (number - len(names) / 2)  # so that bars do not hide each other
            x, y = [aside * scale * p[where] for p in mine], [1e3 * p["median"] for p in mine]
            if side and name in DENSE:  # measured at one density
                x, y = [0.07, 17], y * 2
                axes[1].plot(x, y, linewidth=1, zorder=2, color=look["color"], linestyle=(0, (6, 2)))
                continue
            spread = [[1e3 * (p["median"] - p["low"]) for p in mine], [1e3 * (p["high"] - p["median"]) for p in mine]]
            label = name if side == 0 else None
            axes[side].errorbar(x, y, spread, capsize=3, linewidth=1.4, markersize=6, label=label, zorder=3, **look)
            papers = _chosen(entry["papers"], name, side, largest)
            axes[side].plot(
                [scale * p[where] for p in papers],
                [1e3 * p["seconds"] for p in papers],
                color=look["color"],
                linestyle=":",
                linewidth=1.3,
                zorder=2,
            )
    _label(figure, axes, entry, largest)
    return figure


def _chosen(points: list[dict[str, Any]], name: str, side: int, ranks: int) -> list[dict[str, Any]]:
    """Points of a contender on one side of the figure (1: by density, for this number of ranks), from left to right."""
    key, value = ("ranks", ranks) if side else ("density", COMMON_DENSITY)
    mine = [point for point in points if point["name"] == name and point[key] == value]
    return sorted(mine, key=lambda point: point["density" if side else "ranks"])


def _label(figure: Any, axes: list[Any], entry: dict[str, Any], ranks: int) -> None:
    densities = sorted({100 * point["density"] for point in entry["points"]})
    axes[0].set_xscale("log", base=2)
    plain_numbers(axes[0].xaxis, sorted({point["ranks"] for point in entry["points"]}))
    axes[0].set_xlabel("ranks P (logarithmic)")
    axes[0].set_title(f"density {100 * COMMON_DENSITY:.3g} %", fontsize=10)
    axes[1].set_xscale("log")
    plain_numbers(axes[1].xaxis, densities, [f"{density:.3g}" for density in densities])
    axes[1].set_xlabel("density of each input in % (logarithmic)")
    axes[1].set_title(f"P = {ranks}", fontsize=10)
    low = 0.8 * 1e3 * min(p["low"] for p in entry["points"])
    high = 1.3 * 1e3 * max(p["high"] for p in entry["points"])
    for each in axes:
        each.set_yscale("log")
        each.set_ylim(low, high)
        plain_numbers(each.yaxis, [t for t in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if low < t < high])
    axes[0].set_ylabel("ms (logarithmic), median and quartiles")
    axes[0].plot([], [], color="#333333", linestyle=":", label="link's time for SparCML's bytes, same colour")
    figure.legend(loc="outside lower center", ncols=5, fontsize=8.5, frameon=False)
    figure.suptitle(
        f"{TITLE}, N = {entry['n']:,}, float32, {entry['rate'].replace('mbit', ' Mbit/s')}",
        fontsize=12,
        fontweight="bold",
    )
