"""*DSOP*, Figs. 2, 4 and 5 for 8 hosts: its variants and ours in the lab at 1 Gbit/s, measured.

The paper's rules (section 6.1) with fewer repetitions: iterations start at a barrier, the first is dropped, the slowest
rank counts, and the median of a group of processes is one observation. Its variants are `bench/dsop/variants.c` over
MPICH.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from dsop.places import MPI, Case, mpi_here, ours, variant
from lab.cluster import Cluster

from .style import COLOURS, MARKERS, Log, new, plain_numbers

TITLE = "DSOP on 8 hosts in the lab: its variants and ours"
NEEDS_ROOT = True
RATE, HOSTS = "1gbit", 8
SIZES = (1000, 2000, 3000, 4000, 6000, 8000)
VARIANTS = ("allreduce", "allgather", "allreduce-ring", "g-rabenseifner-dsop")
OURS = ("auto", "rabenseifner", "ring")
REPETITIONS, ITERATIONS = 3, 3


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """The median of each repetition, by contender and size."""
    found: dict[tuple[str, int], list[float]] = {}
    cases = [Case(n, n, 1) for n in SIZES[: 2 if quick else None]]
    with TemporaryDirectory() as folder, Cluster(HOSTS, RATE, "128k") as place:
        mpi = MPI.compiled(mpi_here(), Path(folder))
        for _ in range(1 if quick else REPETITIONS):
            for name, by_case in ours(place, list(OURS), cases, ITERATIONS, log).items():
                for case, times in by_case.items():
                    found.setdefault((f"ours: {name}", case.n), []).append(median(times))
            for case in cases:
                for name in VARIANTS:
                    times = variant(place, mpi, name, case, ITERATIONS)
                    found.setdefault((name, case.n), []).append(median(times))
                log(
                    f"N = {case.n}: "
                    + ", ".join(f"{k[0]} {1e3 * v[-1]:.1f}" for k, v in found.items() if k[1] == case.n)
                )
    points = [{"name": name, "n": n, "seconds": times} for (name, n), times in found.items()]
    return {"rate": RATE, "hosts": HOSTS, "points": points}


def draw(entry: dict[str, Any]) -> Any:
    """Run times, and speedups over MPICH's allreduce."""
    times_of = {(p["name"], p["n"]): p["seconds"] for p in entry["points"]}
    names, sizes = list(dict.fromkeys(name for name, _ in times_of)), sorted({n for _, n in times_of})
    figure, (times, speedups) = new(2, width=12.5, height=5)
    for number, name in enumerate(names):
        style = {"color": COLOURS[number], "marker": MARKERS[number], "label": name, "zorder": 3}
        each = [times_of[name, n] for n in sizes]
        times.plot(sizes, [1e3 * median(t) for t in each], **style)
        times.fill_between(
            sizes, [1e3 * min(t) for t in each], [1e3 * max(t) for t in each], color=COLOURS[number], alpha=0.2
        )
        if name != VARIANTS[0]:
            ratios = [median(times_of[VARIANTS[0], n]) / median(times_of[name, n]) for n in sizes]
            speedups.plot(sizes, ratios, **style)
    for axes, ticks in ((times, (5, 20, 100, 500, 2000, 10000)), (speedups, (0.5, 1, 2, 3, 5, 10, 20, 40))):
        axes.set_yscale("log")
        plain_numbers(axes.yaxis, ticks)
        axes.set_xlabel("N = M, one pair a rank")
    times.set_ylabel("milliseconds")
    speedups.set_ylabel("times as fast as MPICH's allreduce")
    speedups.axhline(1, color="black", linestyle=":", linewidth=1.2)
    times.legend(fontsize=8.5, frameon=False)
    figure.suptitle(f"{TITLE}, {entry['rate']}", fontsize=12, fontweight="bold")
    return figure
