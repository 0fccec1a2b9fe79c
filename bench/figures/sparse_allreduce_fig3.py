"""*Sparse Allreduce*, Fig. 3: a direct (round-robin) reduction of the same data on more and more nodes.

Twitter's graph has as many parts as there are nodes. A node's bytes shrink with the number of nodes, and each message
almost with its square: from some number on the costs of messages outweigh their bytes, and more nodes take longer.
Simulated up to 256 nodes, because 1,024 have a million messages each way; the planner's prediction covers all sizes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .graphs import SHARE, SMALL, TWITTER, idle, network, plan, predictions
from .style import COLOURS, MARKERS, THEIRS, Log, new, plain_numbers

TITLE = "Sparse Allreduce Fig. 3: direct reduction against nodes"
NEEDS_ROOT = False
NODES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
SIMULATED = 256
#: MB of a message with 64 nodes, in *Sparse Allreduce* and *Kylix*.
PAPER_MB = (0.5, 0.4)


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Each size of cluster, with and without the cost of a message."""
    points = []
    for nodes in NODES[:4] if quick else NODES:
        size = 4 * TWITTER.entries(nodes) / nodes
        alone = network(nodes, machine=idle())
        predicted = next(p.seconds for p in predictions(TWITTER, alone) if p.degrees == (nodes,))
        points.append({"nodes": nodes, "message_bytes": size, "predicted_s": predicted})
        if nodes <= SIMULATED:
            others = {"reduce_s": alone, "bytes_s": replace(alone, message_s=0.0), "with_work_s": network(nodes)}
            points[-1] |= {key: plan(TWITTER, (nodes,), on).last_s for key, on in others.items()}
        simulated = f", simulated {1e3 * points[-1]['reduce_s']:.0f}" if nodes <= SIMULATED else ""
        log(f"{nodes} nodes: messages of {size / 1e6:.3g} MB, predicted {1e3 * predicted:.0f} ms{simulated}")
    return {"graph": TWITTER.name, "points": points, "paper_mb": PAPER_MB}


def draw(entry: dict[str, Any]) -> Any:
    """Times on the left, sizes on the right."""
    figure, axes = new(2, width=10.5, height=4.8)
    points = entry["points"]
    nodes = [point["nodes"] for point in points]
    lines = (
        ("with_work_s", "with the work of our ranks, on one core", COLOURS[3], (0, (4, 2))),
        ("reduce_s", "the network: 10 Gbit/s, 1 ms a message", COLOURS[0], "solid"),
        ("bytes_s", "its bytes and latency alone", COLOURS[6], "solid"),
    )
    for number, (key, label, colour, dash) in enumerate(lines):
        mine = [point for point in points if key in point]
        x, y = [point["nodes"] for point in mine], [1e3 * point[key] for point in mine]
        axes[0].plot(x, y, color=colour, marker=MARKERS[number], linestyle=dash, label=label, zorder=3)
    y = [1e3 * point["predicted_s"] for point in points]
    axes[0].plot(nodes, y, color=COLOURS[0], linestyle=":", label="the network, as the planner predicts it", zorder=2)
    axes[1].plot(
        nodes, [p["message_bytes"] / 1e6 for p in points], color=COLOURS[0], marker="o", label="a message", zorder=3
    )
    for size, star, name in zip(
        entry["paper_mb"], ("*", "P"), ("Sparse Allreduce, 64 nodes", "Kylix, 64 nodes"), strict=True
    ):
        axes[1].plot(64, size, star, color=THEIRS, markersize=9, label=name, zorder=4)
    axes[1].axhline(SMALL / 1e6, color="#777777", linestyle=":", linewidth=1)
    words = f"{100 * SHARE:.0f} % of the full rate (Kylix, Fig. 2)"
    axes[1].annotate(
        words,
        (nodes[0], SMALL / 1e6),
        xytext=(0, -4),
        textcoords="offset points",
        va="top",
        fontsize=8,
        color="#555555",
    )
    axes[0].set_ylabel("ms of a reduction (logarithmic)")
    axes[1].set_ylabel("MB (logarithmic)")
    for each in axes:
        each.set_xscale("log", base=2)
        each.set_yscale("log")
        plain_numbers(each.xaxis, nodes)
        each.set_xlabel("nodes, and parts of the same graph (logarithmic)")
    low, high = (limit(1e3 * v for p in points for k, v in p.items() if k.endswith("_s")) for limit in (min, max))
    axes[0].set_ylim(0.7 * low, 1.4 * high)
    plain_numbers(axes[0].yaxis, [t for t in (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if low < t < 1.4 * high])
    ticks = [t for t in (0.001, 0.01, 0.1, 1, 10, 100) if t > min(p["message_bytes"] for p in points) / 2e6]
    plain_numbers(axes[1].yaxis, ticks)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8.5, frameon=False)
    figure.suptitle(f"{TITLE}, {entry['graph']} (simulated)", fontsize=12, fontweight="bold")
    return figure
