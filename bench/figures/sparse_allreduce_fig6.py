"""*Sparse Allreduce*, Fig. 6: reduce time and throughput of every choice of degrees on 64 nodes.

Throughput as in the paper: billions of input values reduced a second, over all nodes. Each choice is simulated twice:
the network alone (10 Gbit/s, 1 ms a message), and with the work of our ranks, on one core. The paper's best is 16×4 for
both graphs, with 0.44 s for Twitter's (its Table II).
"""

from __future__ import annotations

from typing import Any

from .graphs import GRAPHS, factorisations, idle, layers, network, plan
from .style import COLOURS, THEIRS, Log, new

TITLE = "Sparse Allreduce Fig. 6: every choice of degrees"
NEEDS_ROOT = False
RANKS = 64
PAPER_BEST, PAPER_S = "16×4", 0.44


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """All ordered factorisations."""
    points: list[dict[str, Any]] = []
    for graph in GRAPHS[:1] if quick else GRAPHS:
        values = RANKS * graph.entries(RANKS)
        for degrees in factorisations(RANKS, 1 if quick else None):
            alone, with_work = (
                plan(graph, degrees, on).last_s for on in (network(RANKS, machine=idle()), network(RANKS))
            )
            points.append(
                {
                    "graph": graph.name,
                    "degrees": layers(degrees),
                    "network_s": alone,
                    "reduce_s": with_work,
                    "billions_per_s": values / with_work / 1e9,
                    "network_billions_per_s": values / alone / 1e9,
                }
            )
        for key in ("network_s", "reduce_s"):
            first = sorted((p[key], p["degrees"]) for p in points if p["graph"] == graph.name)[:3]
            log(f"{graph.name}, {key}: " + ", ".join(f"{degrees} {1e3 * s:.0f} ms" for s, degrees in first))
    return {
        "ranks": RANKS,
        "points": points,
        "paper": {"best": PAPER_BEST, "graph": GRAPHS[0].name, "seconds": PAPER_S},
    }


def draw(entry: dict[str, Any]) -> Any:
    """Bars of time, fastest first, with throughput beside them."""
    graphs = list(dict.fromkeys(point["graph"] for point in entry["points"]))
    figure, axes = new(len(graphs), width=11.5, height=7.6)
    for each, graph in zip(axes, graphs, strict=True):
        mine = sorted((p for p in entry["points"] if p["graph"] == graph), key=lambda p: float(p["network_s"]))
        for place, point in enumerate(mine):
            each.barh(place, 1e3 * point["reduce_s"], 0.8, color=COLOURS[6], zorder=2)
            each.barh(place, 1e3 * point["network_s"], 0.8, color=COLOURS[2], zorder=3)
            words = f"{point['network_billions_per_s']:.2g} / {point['billions_per_s']:.2g}"
            each.annotate(words, (1e3 * point["reduce_s"], place), xytext=(4, 0), textcoords="offset points",
                          va="center", fontsize=8)  # fmt: skip
        paper = entry["paper"]
        if graph == paper["graph"]:
            place = [point["degrees"] for point in mine].index(paper["best"]) if len(mine) > 1 else 0
            each.plot(1e3 * paper["seconds"], place, "*", color=THEIRS, markersize=12, zorder=5)
            each.annotate(f"the paper: {paper['best']}, {paper['seconds']} s", (1e3 * paper["seconds"], place),
                          xytext=(0, -7), textcoords="offset points", ha="center", va="top", fontsize=8,
                          color=THEIRS)  # fmt: skip
        each.set_yticks(range(len(mine)), [point["degrees"] for point in mine], fontsize=8)
        each.invert_yaxis()
        widest = max(p["reduce_s"] for p in mine)
        each.set_xlim(0, 1e3 * max(1.22 * widest, 1.25 * paper["seconds"]))
        each.grid(axis="y", visible=False)
        each.set_xlabel("ms of a reduction")
        each.set_title(graph, fontsize=10)
    axes[0].barh([0], [0], color=COLOURS[2], label="network alone")
    axes[0].barh([0], [0], color=COLOURS[6], label="with the work of our ranks, on one core")
    axes[0].plot([], [], " ", label="numbers: billions of values a second, network alone / with work")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8.5, frameon=False)
    figure.suptitle(f"{TITLE}, {entry['ranks']} nodes (simulated)", fontsize=12, fontweight="bold")
    return figure
