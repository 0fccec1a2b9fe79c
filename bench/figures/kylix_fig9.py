"""*Kylix*, Fig. 9: an iteration of PageRank on 4 to 64 nodes, and beyond them on 256, 1,024 and 4,096.

Communication is simulated on the paper's cluster (10 Gbit/s, 1 ms a message; the ranks' work takes the default
profile's times, on one core), with degrees that the planner chooses for each size. Computation is the number of a
node's edges times the seconds per edge of SciPy's sparse product, on one core of this machine; the paper's BIDMat used
eight cores with Intel's library.
"""

from __future__ import annotations

from typing import Any

from .graphs import GRAPHS, layers, network, plan, short_layers
from .processor import products
from .style import COLOURS, MARKERS, THEIRS, Log, new, plain_numbers

TITLE = "Kylix Fig. 9: an iteration against nodes"
NEEDS_ROOT = False
NODES = (4, 8, 16, 32, 64, 256, 1024, 4096)
#: Range of the speed-up at 64 nodes over 4, and seconds of an iteration at 64, from the paper's text.
PAPER_SPEEDUP = (7.0, 11.0)
PAPER_S = {"Twitter": 0.55, "Yahoo": 2.5}


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Each size of cluster and each graph."""
    product = products(1 << 16, 1 << 18, 5) if quick else products(1 << 23, 1 << 24, 15)
    log(f"{1e9 * product.edge_s:.2f} ns an edge")
    points = []
    for graph in GRAPHS[:1] if quick else GRAPHS:
        for nodes in NODES[2:5] if quick else NODES:
            reduce = plan(graph, None, network(nodes)).phases[-1]
            points.append(
                {
                    "graph": graph.name,
                    "nodes": nodes,
                    "degrees": list(reduce.degrees),
                    "communication_s": reduce.last_s,
                    "computation_s": graph.edges / nodes * product.edge_s,
                }
            )
            times = f"{reduce.last_s:.3f} s and {points[-1]['computation_s']:.3f}"
            log(f"{graph.name}, {nodes}: {layers(reduce.degrees)}, {times}")
    known = {"edge_s": product.edge_s, "product_n": product.n, "product_edges": product.edges}
    return known | {"points": points, "paper_speedup": PAPER_SPEEDUP, "paper_s": PAPER_S}


def total_s(point: dict[str, Any]) -> float:
    """Seconds of an iteration: communication, then computation."""
    return float(point["communication_s"] + point["computation_s"])


def draw(entry: dict[str, Any]) -> Any:
    """Parts of the time, and the speed-up, over nodes."""
    graphs = list(dict.fromkeys(point["graph"] for point in entry["points"]))
    figure, axes = new(len(graphs) + 1, width=13, height=4.9)
    for number, graph in enumerate(graphs):
        mine = [point for point in entry["points"] if point["graph"] == graph]
        nodes = [point["nodes"] for point in mine]
        each = axes[number]
        for key, colour, marker, dash in (
            ("computation_s", COLOURS[5], "s", (0, (4, 2))),
            ("communication_s", COLOURS[2], "o", "solid"),
        ):
            label = key.removesuffix("_s") if number == 0 else None
            each.plot(nodes, [p[key] for p in mine], color=colour, marker=marker, linestyle=dash, label=label, zorder=3)
        label = "both" if number == 0 else None
        each.plot(nodes, [total_s(p) for p in mine], color="black", linewidth=2, label=label, zorder=2)
        theirs = {"color": THEIRS, "marker": "*", "markersize": 13, "linestyle": ""}
        each.plot(64, entry["paper_s"][graph], label="the paper's iteration" if number == 0 else None, **theirs)
        for point in mine:
            each.annotate(
                short_layers(point["degrees"]),
                (point["nodes"], point["communication_s"]),
                xytext=(-4, -5),
                textcoords="offset points",
                ha="right",
                va="top",
                fontsize=7.5,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8},
                zorder=4,
            )
        each.set_yscale("log")
        each.set_ylim(0.35 * min(p["communication_s"] for p in mine), None)
        each.set_xlim(0.5 * nodes[0], 1.5 * nodes[-1])
        each.set_title(graph, fontsize=10)
        each.set_ylabel("seconds (logarithmic)" if number == 0 else "")
        speed = [total_s(mine[0]) / total_s(point) for point in mine]
        axes[-1].plot(nodes, speed, color=COLOURS[number], marker=MARKERS[number], label=f"speed-up, {graph}", zorder=3)
    nodes = sorted({point["nodes"] for point in entry["points"]})
    axes[-1].plot(nodes, [n / nodes[0] for n in nodes], color="#999999", linestyle=":", label="linear")
    low, high = entry["paper_speedup"]
    axes[-1].errorbar([64], [(low * high) ** 0.5], [[(low * high) ** 0.5 - low], [high - (low * high) ** 0.5]],
                      color=THEIRS, capsize=6, linewidth=3, label="the paper, 7 to 11", zorder=1)  # fmt: skip
    axes[-1].set_yscale("log", base=2)
    axes[-1].set_ylim(0.8, 1.3 * nodes[-1] / nodes[0])
    plain_numbers(axes[-1].yaxis, [2**power for power in range(11)])
    axes[-1].set_title(f"speed-up over {nodes[0]} nodes", fontsize=10)
    for each in axes:
        each.set_xscale("log", base=4)
        plain_numbers(each.xaxis, nodes)
        each.tick_params(axis="x", labelsize=8, rotation=45)
        each.set_xlabel("nodes (logarithmic)")
    figure.legend(loc="outside lower center", ncols=8, fontsize=8.5, frameon=False)
    figure.suptitle(f"{TITLE} (communication simulated)", fontsize=12, fontweight="bold")
    return figure
