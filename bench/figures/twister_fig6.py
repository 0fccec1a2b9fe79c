"""*Twister*, Fig. 6: a chain in the order of racks, and one in random order, simulated.

Ranks are placed on hosts at random. If they know the racks, the chain goes rack by rack, and crosses each uplink once
each way. If they do not, it goes in rank order, and several of its streams share an uplink.

The bound by oversubscription: f streams through an uplink have 1/f of its rate each, and the slowest stream sets the
pace of the chain, so it takes max(1, f R / U) times as long as a chain without that bottleneck, R being the rate of a
host's link, U an uplink's, and f the most streams into or out of a rack.
"""

from __future__ import annotations

import statistics
from collections import Counter
from itertools import pairwise
from typing import Any

from .style import COLOURS, MARKERS, THEIRS, Log, new
from .twister import CHAIN_S, GB, NODES, RACKS, RATE, UPLINK, broadcast, cluster

TITLE = "Twister Fig. 6: a chain with and without knowing racks"
NEEDS_ROOT = False
SEEDS = range(1, 6)
#: The paper's text: the speed-up by knowing the topology.
PAPER_TIMES = 5.0


def allowed(hosts: list[int], hosts_per_rack: int) -> float:
    """Bound by the uplinks: time of a chain through these hosts in their order, relative to an unlimited one."""
    racks = [host // hosts_per_rack for host in hosts]
    crossing = [(a, b) for a, b in pairwise(racks) if a != b]
    out, into = (Counter(pair[side] for pair in crossing) for side in (0, 1))
    return max([1.0, *(streams * RATE / UPLINK for streams in (*out.values(), *into.values()))])


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Both chains with the same placement, for each number of nodes and each seed."""
    size, points = GB * (1e-2 if quick else 1), []
    for nodes in NODES[1:3] if quick else NODES:
        for seed in SEEDS[:1] if quick else SEEDS:
            known_s, unknown_s = (
                broadcast(size, nodes, "chain", seed=seed, scattered=True, topology_known=known).last_s
                for known in (True, False)
            )
            on = cluster(nodes + 1, RACKS[nodes], scattered=True)
            bound = allowed(on.hosts_of_ranks(seed), on.hosts_per_rack)
            points.append({"nodes": nodes, "seed": seed, "known_s": known_s, "unknown_s": unknown_s, "allowed": bound})
        mine = [p for p in points if p["nodes"] == nodes]
        ratio, bound = median(mine, "speed_up"), median(mine, "allowed")
        log(f"{nodes} nodes: {median(mine, 'known_s'):.3f} and {median(mine, 'unknown_s'):.3f} s, "
             f"speed-up {ratio:.2f}, bound {bound:.2f}, >= {min(map(share_of_bound, mine)):.3f} of it")  # fmt: skip
    theirs = dict(zip(NODES, CHAIN_S[1.0], strict=True))
    return {"bytes": size, "points": points, "paper": {"known_s": theirs, "times": PAPER_TIMES}}


def speed_up(point: dict[str, Any]) -> float:
    """Speed-up by knowing the racks."""
    return float(point["unknown_s"] / point["known_s"])


def share_of_bound(point: dict[str, Any]) -> float:
    """The speed-up relative to its bound."""
    return speed_up(point) / float(point["allowed"])


def median(points: list[dict[str, Any]], name: str) -> float:
    """Median over the seeds."""
    return statistics.median(speed_up(p) if name == "speed_up" else p[name] for p in points)


def draw(entry: dict[str, Any]) -> Any:
    """Times of both, and their ratio beside its bound."""
    figure, (seconds, ratios) = new(2, width=12, height=4.8)
    nodes = sorted({p["nodes"] for p in entry["points"]})
    seeds = {n: [p for p in entry["points"] if p["nodes"] == n] for n in nodes}
    for number, (name, label) in enumerate((("unknown_s", "by the ranks' numbers"), ("known_s", "rack by rack"))):
        middle = [median(seeds[n], name) for n in nodes]
        spread = [
            [m - min(p[name] for p in seeds[n]) for n, m in zip(nodes, middle, strict=True)],
            [max(p[name] for p in seeds[n]) - m for n, m in zip(nodes, middle, strict=True)],
        ]
        seconds.errorbar(nodes, middle, spread, color=COLOURS[1 + number], marker=MARKERS[number], capsize=3,
                         label=label, zorder=3)  # fmt: skip
    known = {int(n): s * entry["bytes"] / GB for n, s in entry["paper"]["known_s"].items()}
    star = {"color": THEIRS, "markerfacecolor": "none", "linestyle": "", "marker": "*", "markersize": 13, "zorder": 4}
    seconds.plot(list(known), list(known.values()), label="the paper's chain, rack by rack", **star)
    last = max(known)
    seconds.plot([last], [known[last] * entry["paper"]["times"]], label=f"{entry['paper']['times']:g} times that",
                 **star | {"marker": "P"})  # fmt: skip
    seconds.set_ylim(0, None)
    seconds.set_ylabel("seconds")
    seconds.set_title(f"a broadcast of {entry['bytes'] / 1e6:,.0f} MB: median and range of seeds", fontsize=10)
    bounds = [median(seeds[n], "allowed") for n in nodes]
    ratios.plot(nodes, bounds, color="black", linestyle=":", label="what uplinks allow (median)", zorder=2)
    ratios.plot(nodes, [median(seeds[n], "speed_up") for n in nodes], color=COLOURS[2], marker=MARKERS[2],
                label="ours (median)", zorder=3)  # fmt: skip
    each = [(p["nodes"], speed_up(p)) for p in entry["points"]]
    ratios.plot([n for n, _ in each], [t for _, t in each], color=COLOURS[2], linestyle="", marker=".", alpha=0.5,
                label="each seed")  # fmt: skip
    ratios.plot([last], [entry["paper"]["times"]], label="the paper", **star)
    ratios.set_ylim(0, None)
    ratios.set_ylabel("speed-up by knowing the racks")
    ratios.set_title("ratio of the two times", fontsize=10)
    for axes in (seconds, ratios):
        axes.set_xticks(sorted(known))
        axes.set_xlabel("nodes that receive")
        axes.legend(fontsize=8.5, frameon=False)
    figure.suptitle(f"{TITLE} (simulated)", fontsize=12, fontweight="bold")
    return figure
