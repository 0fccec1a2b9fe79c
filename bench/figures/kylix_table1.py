"""*Kylix*, Table I, and *Sparse Allreduce*, Table II (the same numbers): what replicas and dead machines cost.

Each process configures and reduces repeatedly, on vertices of its share of a power-law graph. Compared, as in the
papers:

    same machines        one rank per machine, and one rank per two machines
    same ranks           one rank per machine on half of the machines, and one rank per two machines on all of them

With two machines per rank, 0 to 3 processes are killed before the measured calls, no two of the same rank. The figure
also has the link's lower bound: the fewest bytes of a rank's messages over the link's rate. It holds however replicas
divide the messages among them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from statistics import median
from typing import Any

from lab.cluster import Cluster
from lab.link import FRAMING, rate_bits
from replicas import Group, power_law, slowest
from replication import spread

from .style import COLOURS, THEIRS, Log, new

TITLE = "Kylix Table I, Sparse Allreduce Table II: what replicas and dead machines cost"
NEEDS_ROOT = True
HOSTS, RATE = 8, "100mbit"
N, EDGES = 4_000_000, 6_000_000
#: Calls before processes are killed, calls after it that are dropped, and measured calls.
BEFORE, AFTER, CALLS = 2, 2, 8

#: Seconds of configuration and reduction in the papers.
PAPER = {
    "64 machines, a rank each": (1.2, 0.44),
    "32 machines, a rank each": (1.3, 0.60),
    "two a rank, 0 dead": (1.51, 0.75),
    "two a rank, 1 dead": (1.49, 0.73),
    "two a rank, 2 dead": (1.52, 0.76),
    "two a rank, 3 dead": (1.51, 0.74),
}


def settings() -> Iterator[tuple[str, int, int, int]]:
    """The settings: name, machines, processes of a rank, and the number of killed processes."""
    yield f"{HOSTS} machines, a rank each", HOSTS, 1, 0
    yield f"{HOSTS // 2} machines, a rank each", HOSTS // 2, 1, 0
    for dead in range(4):
        yield f"two a rank, {dead} dead", HOSTS, 2, dead


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Each setting in turn, in several rounds."""
    edges, rounds = (EDGES // 20, 1) if quick else (EDGES, 5)
    times: dict[str, list[tuple[float, float]]] = {}
    with Cluster(HOSTS, RATE, "128k") as cluster:
        for number in range(rounds):
            for name, size, replication, dead in settings():
                got = _calls(cluster, (size, replication, dead), edges, number)
                times.setdefault(name, []).append(got)
                log(f"{name}: configure {got[0]:.3f} s, reduce {got[1]:.3f} s")
    points = []
    for name, size, replication, dead in settings():
        configure, reduce = (median(pair[k] for pair in times[name]) for k in (0, 1))
        ranges = [[min(p[k] for p in times[name]), max(p[k] for p in times[name])] for k in (0, 1)]
        bound = least_s(size // replication, edges)
        points.append(
            {
                "name": name,
                "machines": size,
                "replication": replication,
                "dead": dead,
                "configure_s": configure,
                "reduce_s": reduce,
                "ranges_s": ranges,
                "least_reduce_s": bound,
            }
        )
    return {"rate": RATE, "n": N, "edges": edges, "rounds": rounds, "points": points}


def _calls(cluster: Cluster, setting: tuple[int, int, int], edges: int, seed: int) -> tuple[float, float]:
    """Median seconds of a configuration and of a reduction."""
    size, replication, dead = setting
    words = ["--edges", str(edges), "--n", str(N), "--configure", "--calls", str(BEFORE + AFTER + CALLS)]
    group = Group(cluster, size, replication, words)
    lost = spread(size, dead, random.Random(seed)) if dead else []
    try:
        group.wait_for(BEFORE - 1)
        for host in lost:
            group.processes[host].kill()
        calls = group.results(lost, already_dead=True)
    finally:
        group.kill()
    measured = [each[BEFORE + AFTER :] for each in calls]
    configure = [max(call.configure for call in at) for at in zip(*measured, strict=True)]
    return median(configure), median(slowest(measured))


def least_s(ranks: int, edges: int) -> float:
    """Seconds of a link for a direct reduction: a rank's values go to their owners, and the results come back."""
    entries = sum(len(power_law(rank, ranks, edges, N)) for rank in range(ranks)) / ranks
    return 2 * entries * 4 * (1 - 1 / ranks) * 8 * FRAMING / rate_bits(RATE)


def draw(entry: dict[str, Any]) -> Any:
    """Bars: our times, with the lower bound, and the papers'; relative to half of the machines with a rank each."""
    points = entry["points"]
    figure, axes = new(columns=2, width=11.5, height=4.4)
    for place, (each, what) in enumerate(zip(axes, ("configure", "reduce"), strict=True)):
        base, theirs = points[1][f"{what}_s"], list(PAPER.values())
        for number, point in enumerate(points):
            value = point[f"{what}_s"] / base
            low, high = (limit / base for limit in point["ranges_s"][place])
            each.bar(number - 0.2, value, 0.38, color=COLOURS[0], zorder=3, label="ours" if number == 0 else None)
            each.errorbar(number - 0.2, value, [[value - low], [high - value]], color="black", capsize=2, zorder=4)
            each.bar(
                number + 0.2,
                theirs[number][place] / theirs[1][place],
                0.38,
                color=THEIRS,
                zorder=3,
                label="the papers'" if number == 0 else None,
            )
            if what == "reduce":
                least = point["least_reduce_s"] / base
                label = "least that the links allow" if number == 0 else None
                each.plot([number - 0.4, number], [least, least], color="black", zorder=5, label=label)
        each.axhline(1.0, color="#888888", linewidth=0.8, zorder=2)
        words = [point["name"].replace(", ", ",\n") for point in points]
        each.set_xticks(range(len(points)), words, fontsize=7.5)
        each.set_ylabel(f"{what}: time relative to {points[1]['machines']} ranks without replicas")
        each.legend(fontsize=8, loc="upper left")
    return figure
