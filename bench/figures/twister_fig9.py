"""*Twister*, Fig. 9: the communication of one iteration of k-means on 125 nodes, stage by stage, simulated.

As in the paper: 7.42 M vectors of 512 dimensions, 1 M centroids, 10,000 map tasks (80 a node), 125 reduce tasks. 512 MB
go from the driver to all nodes; each map task makes 2 GB, 20 TB together, which local reduction turns into 2 GB a node,
250 GB. Each reduce task gets 2 GB of them, and sends its result, 4 MB, to the driver.

The network is simulated; adding takes the time of one core of this machine. Local reduction is not in the sum but
reported beside it, because it is part of the map stage here: each task's rows are added as they are made. The time to
compute distances, the map stage's real work, is neither in the sum nor in the time of local reduction.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from skyphos.simulate import simulate

from .folding import folding
from .style import COLOURS, THEIRS, Log, new, plain_numbers
from .twister import GB, RACKS, broadcast, cluster, link_s, shuffle_bound_s, shuffle_s

TITLE = "Twister Fig. 9: communication of an iteration"
NEEDS_ROOT = False
NODES, TASKS, CENTROIDS, ROW_BYTES = 125, 80, 1_000_000, 512
#: Bytes that a map task makes, and bytes that a node sends after local reduction.
TASK_BYTES = 2 * GB
PAPER_S = 169.0
STAGES = ("broadcast", "shuffle", "reduce", "combine")


def combine_s(nodes: int, centroids: int) -> float:
    """Seconds until the driver has gathered all centroids, of which each node sends the same number, as real data."""
    on = cluster(nodes + 1, RACKS[nodes])
    share = centroids // nodes
    return simulate(on, "gather", n=centroids, entries=share, row_bytes=ROW_BYTES, watch=[]).last_s


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Each stage, the least time of its bytes, and the shuffle without local reduction."""
    scale = 1e-3 if quick else 1.0
    adding = folding(500) if quick else folding()
    message, node = CENTROIDS * ROW_BYTES * scale, TASK_BYTES * scale
    bound = shuffle_bound_s(node, NODES)
    stages = {
        "broadcast": (broadcast(message, NODES, "auto").last_s, link_s(message)),
        "shuffle": (shuffle_s(node, NODES), max(bound)),
        "reduce": (adding.seconds(node / NODES, NODES), 0.0),
        "combine": (combine_s(NODES, round(CENTROIDS * scale)), link_s(message)),
    }
    points = [{"stage": stage, "seconds": took, "least_s": least} for stage, (took, least) in stages.items()]
    for point in points:
        log(f"{point['stage']}: {point['seconds']:.4g} s; the link needs {point['least_s']:.4g}")
    whole = TASKS * stages["shuffle"][0]
    log(f"without local reduction, {TASKS} times as many bytes to shuffle: {whole:.4g} s")
    return {
        "adding": asdict(adding),
        "points": points,
        "local_reduction_s": adding.seconds(node, TASKS),
        "unreduced_shuffle_s": whole,
        "paper_s": PAPER_S,
    }


def draw(entry: dict[str, Any]) -> Any:
    """The stages one after the other, the paper's sum, and the effect of local reduction."""
    figure, (axes, beside) = new(2, width=12, height=3.9)
    left = 0.0
    for number, point in enumerate(entry["points"]):
        label = f"{point['stage']}, {point['seconds']:.2g} s"
        axes.barh(1, point["seconds"], left=left, height=0.6, color=COLOURS[2 + number], label=label, zorder=3)
        left += point["seconds"]
    axes.text(left + 2, 1, f"{left:.0f} s", va="center", fontsize=10)
    axes.barh(0, entry["paper_s"], height=0.6, color=THEIRS, zorder=3)
    axes.text(entry["paper_s"] + 2, 0, f"{entry['paper_s']:.0f} s", va="center", fontsize=10)
    axes.set_yticks([0, 1], ["the paper", "ours"])
    axes.set_xlim(0, 1.12 * max(left, entry["paper_s"]))
    axes.set_xlabel("seconds an iteration")
    axes.legend(fontsize=8.5, frameon=False, loc="lower right", bbox_to_anchor=(1, 0.42))
    axes.set_title("stage by stage", fontsize=10)
    rows = {
        "shuffle of 20 TB,\nwithout local reduction": entry["unreduced_shuffle_s"],
        "local reduction of 160 GB a node,\none core": entry["local_reduction_s"],
        "shuffle of 250 GB": next(p["seconds"] for p in entry["points"] if p["stage"] == "shuffle"),
    }
    for at, seconds in enumerate(reversed(rows.values())):
        beside.barh(at, seconds, height=0.6, color=COLOURS[(3, 5, 1)[at]], zorder=3)
        beside.text(seconds * 1.08, at, f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s", va="center")
    beside.set_yticks(range(len(rows)), list(reversed(rows)))
    beside.set_xscale("log")
    beside.set_xlim(0.2 * min(rows.values()), 6 * max(rows.values()))
    plain_numbers(beside.xaxis, (10, 100, 1000, 10_000) if min(rows.values()) > 1 else (0.01, 0.1, 1, 10))
    beside.set_xlabel("seconds (logarithmic)")
    beside.set_title("what local reduction costs and saves", fontsize=10)
    for each in (axes, beside):
        each.grid(visible=False, axis="y")
    figure.suptitle(f"{TITLE}, {NODES} nodes (simulated)", fontsize=12, fontweight="bold")
    return figure
