"""*Twister*, Figs. 4 and 5, Tables 5 and 8: broadcasts by every route against nodes, simulated.

The paper's baselines (Open MPI 1.4, MPJ) are not simulated. The figure has all our routes, beside
the paper's chain, simple broadcast (Table 8) and scatter-allgather (Table 5).
"""

from __future__ import annotations

from typing import Any

from .style import COLOURS, MARKERS, THEIRS, Log, new, plain_numbers
from .twister import CHAIN_S, GB, NODES, SCATTER_ALLGATHER_S, SIMPLE_S, SIZES, broadcast, link_s

TITLE = "Twister Figs. 4 and 5, Tables 5 and 8: broadcasts against nodes"
NEEDS_ROOT = False
ROUTES = ("simple", "binomial", "scatter_allgather", "chain")
#: Routes that are simulated at all sizes; the others at this one.
ALL_SIZES = ("chain", "simple")
SIZE = 1.0
QUICK = 1e-3


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Each route, size and number of nodes."""
    points = []
    for route in (*ROUTES, "auto"):
        for size in SIZES if route in ALL_SIZES else (SIZE,):
            # Only Table 5's numbers of nodes: a ring of ranges takes the simulator longest.
            last = len(SCATTER_ALLGATHER_S) if route == "scatter_allgather" else len(NODES)
            for nodes in NODES[: 3 if quick else last]:
                done = broadcast(size * GB * (QUICK if quick else 1), nodes, route)
                where = {"asked": route, "route": done.algorithm, "gb": size, "nodes": nodes}
                points.append(where | {"seconds": done.last_s, "chunk_bytes": done.chunk_bytes})
            row = ", ".join(f"{p['seconds']:.4g}" for p in points if (p["asked"], p["gb"]) == (route, size))
            log(f"{route}, {size:g} GB: {row} s")
    paper = [
        {"route": route, "gb": size, "nodes": nodes, "seconds": seconds}
        for route, table in (
            ("chain", CHAIN_S),
            ("simple", SIMPLE_S),
            ("scatter_allgather", {1.0: SCATTER_ALLGATHER_S}),
        )
        for size, row in table.items()
        for nodes, seconds in zip(NODES, row, strict=False)
    ]
    return {"bytes": QUICK * GB if quick else GB, "points": points, "paper": paper}


def draw(entry: dict[str, Any]) -> Any:
    """All routes at one size, and the chain at each."""
    figure, (routes, chains) = new(2, width=12.5, height=5.6)
    scale = entry["bytes"] / GB
    theirs = {"color": THEIRS, "linestyle": "", "marker": "*", "markersize": 10, "zorder": 4}
    for number, route in enumerate(ROUTES):
        mine = [p for p in entry["points"] if p["asked"] == route and p["gb"] == SIZE]
        style = {"color": COLOURS[number], "marker": MARKERS[number], "zorder": 3}
        routes.plot([p["nodes"] for p in mine], [p["seconds"] for p in mine], label=route, **style)
        paper = [p for p in entry["paper"] if p["route"] == route and p["gb"] == SIZE]
        label = "the paper's, in the route's colour" if route == ROUTES[-1] else None
        routes.plot([p["nodes"] for p in paper], [p["seconds"] for p in paper], label=label,
                    **theirs | {"color": COLOURS[number], "markeredgecolor": "black", "markersize": 12})  # fmt: skip
    bound = link_s(SIZE * GB * scale)
    routes.axhline(bound, color="black", linestyle=":", linewidth=1.2, label=f"what the link allows, {bound:.2f} s")
    routes.set_yscale("log")
    plain_numbers(routes.yaxis, [tick * scale for tick in (8, 16, 32, 64, 128, 256, 512, 1024)])
    routes.set_ylabel("seconds (logarithmic)")
    routes.set_title(f"{SIZE * 1e3 * scale:,g} MB by all routes", fontsize=10)
    for number, size in enumerate(SIZES):
        mine = [p for p in entry["points"] if p["asked"] == "chain" and p["gb"] == size]
        bound = link_s(size * GB * scale)
        style = {"color": COLOURS[number], "marker": MARKERS[number], "zorder": 3}
        chains.plot([p["nodes"] for p in mine], [p["seconds"] / bound for p in mine],
                    label=f"{size * 1e3 * scale:,g} MB: the link allows {bound:.2f} s", **style)  # fmt: skip
        paper = [p for p in entry["paper"] if p["route"] == "chain" and p["gb"] == size]
        label = "the paper's, in the size's colour" if size == SIZES[-1] else None
        chains.plot([p["nodes"] for p in paper], [p["seconds"] / link_s(size * GB) for p in paper], label=label,
                    **theirs | {"color": COLOURS[number], "markeredgecolor": "black", "markersize": 12})  # fmt: skip
    chains.axhline(1, color="black", linestyle=":", linewidth=1.2)
    chains.set_ylim(0.995, None)
    chains.set_ylabel("time, as a multiple of the least that the link allows")
    chains.set_title("the chain at each size", fontsize=10)
    for axes in (routes, chains):
        axes.set_xticks(sorted({p["nodes"] for p in entry["points"]}))
        axes.set_xlabel("nodes that receive")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, fontsize=8.5, frameon=False)
    figure.suptitle(f"{TITLE} (simulated)", fontsize=12, fontweight="bold")
    return figure
