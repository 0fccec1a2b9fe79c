"""*Kylix*, Fig. 6: direct, the paper's degrees, ours and binary on 64 nodes, on a ladder of networks.

Each rung adds one effect to those before, so that its factor is seen separately:

    latency and rate        10 Gbit/s, 0.1 ms; the processors' work takes no time
    cost of a message       a message occupies the link for 1 ms more, from the paper's Fig. 2 (`figures.graphs`)
    incast                  senders to one host at once slow each other, as `incast` measured in the lab
    processors              the ranks' work takes the default profile's times, on one core
    stragglers              some ranks' work is slow, as often as repeated products on this machine are
    ports of ...            messages wait for TCP's time-outs, as `incast` measured; for each size of a port's
                            buffer, in addition to stragglers

The paper measured that the optimal butterfly is 3 to 5 times as fast as direct and binary; nothing here is fitted to
that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from skyphos.simulate import Network, Simulation

from .graphs import GRAPHS, Graph, idle, layers, network, plan
from .incast import setting_name
from .lateness import measured, reduce_s
from .processor import Stragglers, products, stragglers
from .style import COLOURS, Log, new, plain_numbers

TITLE = "Kylix Fig. 6: configure and reduce by networks"
NEEDS_ROOT = False
RANKS = 64
DIRECT, BINARY = (64,), (2,) * 6


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """All rungs for both graphs; the planner chooses degrees for each rung."""
    repeats, seeds, draws = (5, 1, 20) if quick else (300, 5, 400)
    found = products(1 << 16, 1 << 18, repeats) if quick else products(1 << 20, 1 << 22, repeats)
    slow = stragglers(found.seconds)
    settings = measured()
    incast = max(setting["incast"] for setting in settings)
    log(f"incast {incast:.4f}; stragglers {slow.share:.3f} at {slow.slowness:.2f}")
    points = []
    for graph in GRAPHS[:1] if quick else GRAPHS:
        for rung, on in list(rungs(incast, slow))[4 if quick else 0 :]:
            last = _rung(graph, rung, on, seeds if on.straggler_share else 1)
            points.extend(last)
            log(f"{graph.name}, {rung}: {describe(last)}")
        for setting in settings:
            rung = setting_name(setting["port_buffer"], setting["tcp"])
            late = [_late(point, rung, setting, draws) for point in last]
            points.extend(late)
            log(f"{graph.name}, {rung}: {describe(late)}")
    return {
        "ranks": RANKS,
        "incast": incast,
        "stragglers": {"share": slow.share, "slowness": slow.slowness, "repeats": repeats},
        "points": points,
    }


def rungs(incast: float, slow: Stragglers) -> Iterator[tuple[str, Network]]:
    """Networks, each with one more effect; time-outs are added to the last."""
    yield "latency and rate", network(RANKS, message_s=0.0, machine=idle())
    yield "cost of a message", network(RANKS, machine=idle())
    yield "incast", network(RANKS, incast=incast, machine=idle())
    yield "processors", network(RANKS, incast=incast)
    straggling = {"straggler_share": slow.share, "straggler_slowness": f"{slow.slowness:.4g}"}
    yield "stragglers", network(RANKS, incast=incast, **straggling)


def _rung(graph: Graph, rung: str, on: Network, seeds: int) -> list[dict[str, Any]]:
    """Points of one rung; ``choice`` names the degrees."""
    points = []
    for choice, degrees in (("direct", DIRECT), ("paper", graph.optimal), ("ours", None), ("binary", BINARY)):
        runs: list[Simulation] = [plan(graph, degrees, on, seed=seed + 1) for seed in range(seeds)]
        configure, reduce = ([run.phases[phase].last_s for run in runs] for phase in (0, 1))
        points.append(
            {
                "graph": graph.name,
                "rung": rung,
                "choice": choice,
                "degrees": list(runs[0].phases[-1].degrees),
                "configure_s": float(np.median(configure)),
                "reduce_s": float(np.median(reduce)),
                "range_s": [min(reduce), max(reduce)],
            }
        )
    return points


def _late(point: dict[str, Any], rung: str, setting: dict[str, Any], draws: int) -> dict[str, Any]:
    """A reduction with time-outs added; not for configure, whose messages are smaller than those of the measurement."""
    late = reduce_s(point["degrees"], setting, draws)
    low, middle, high = (point["reduce_s"] + float(part) for part in np.percentile(late, (10, 50, 90)))
    return point | {"rung": rung, "configure_s": None, "reduce_s": middle, "range_s": [low, high]}


def ratio(points: list[dict[str, Any]], choice: str) -> float:
    """Time of a reduction, relative to the better of the paper's degrees and ours."""
    times = {point["choice"]: point["reduce_s"] for point in points}
    return float(times[choice] / min(times["paper"], times["ours"]))


def describe(points: list[dict[str, Any]]) -> str:
    """One rung of one graph as a line of text."""
    times = ", ".join(f"{layers(p['degrees'])} {1e3 * p['reduce_s']:.0f} ms" for p in points)
    return f"{times}; direct/best {ratio(points, 'direct'):.2f}, binary/best {ratio(points, 'binary'):.2f}"


def draw(entry: dict[str, Any]) -> Any:
    """Bars by rungs, a panel for each graph."""
    graphs = list(dict.fromkeys(point["graph"] for point in entry["points"]))
    names = list(dict.fromkeys(point["rung"] for point in entry["points"]))
    first_ports = sum(not name.startswith("ports") for name in names)
    figure, axes = new(rows=len(graphs), width=10.5, height=4.7 * len(graphs))
    looks = {
        "direct": (COLOURS[0], ""),
        "paper": (COLOURS[3], "//"),
        "ours": (COLOURS[6], ""),
        "binary": ("#d9d9d9", ".."),
    }
    for each, graph in zip(axes, graphs, strict=True):
        for place, rung in enumerate(names):
            mine = [p for p in entry["points"] if (p["graph"], p["rung"]) == (graph, rung)]
            for number, point in enumerate(mine):
                colour, hatch = looks[point["choice"]]
                x, y = place + 0.2 * (number - 1.5), 1e3 * point["reduce_s"]
                each.bar(x, y, 0.19, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4, zorder=3)
                low, high = (1e3 * limit for limit in point["range_s"])
                if high > 1.01 * low:
                    each.errorbar(x, y, [[y - low], [high - y]], color="black", capsize=2, linewidth=0.9, zorder=4)
                if point["configure_s"] is not None:
                    y = 1e3 * point["configure_s"]
                    for colour, width in (("white", 4), ("black", 1.6)):  # seen on bars of any colour
                        each.plot(x, y, "_", color=colour, markersize=7, markeredgewidth=width, zorder=5)
            top = 1e3 * max(p["range_s"][1] for p in mine)
            ratios = f"direct {ratio(mine, 'direct'):.2g}×\nbinary {ratio(mine, 'binary'):.2g}×"
            each.annotate(ratios, (place, top), xytext=(0, 5), textcoords="offset points", ha="center", fontsize=8)
        each.set_yscale("log")
        low, high = (limit(1e3 * p["reduce_s"] for p in entry["points"] if p["graph"] == graph) for limit in (min, max))
        each.set_ylim(0.06 * low, 4.5 * high)
        plain_numbers(each.yaxis, [t for t in (5, 10, 20, 50, 100, 200, 500, 1000, 2000) if 0.06 * low < t < 4 * high])
        words = [name.replace(", ", ",\n").replace(" of ", "\nof ").replace("latency ", "latency\n") for name in names]
        each.set_xticks(range(len(names)), words, fontsize=8)
        each.axvspan(first_ports - 0.5, len(names) - 0.5, color="#f3f1ec", zorder=0)
        top_edge = {"transform": each.get_xaxis_transform(), "va": "top"}
        each.text(first_ports - 0.45, 0.985, "and time-outs at", fontsize=8.5, **top_edge)
        each.grid(axis="x", visible=False)
        each.set_title(f"{graph}; the paper's degrees: {_papers(graph)}", fontsize=10)
    for each in axes:
        each.set_ylabel("ms of a reduction (logarithmic)")
    _legend(figure, looks)
    figure.suptitle(f"{TITLE}, {entry['ranks']} nodes (simulated)", fontsize=12, fontweight="bold")
    return figure


def _papers(name: str) -> str:
    return layers(next(graph.optimal for graph in GRAPHS if graph.name == name))


def _legend(figure: Any, looks: dict[str, tuple[str, str]]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    words = {
        "direct": f"direct ({layers(DIRECT)})",
        "paper": "the paper's optimal degrees",
        "ours": "our planner's choice, for each network",
        "binary": "binary (2×2×2×2×2×2)",
    }
    patches = [Patch(facecolor=c, hatch=h, edgecolor="white", label=words[k]) for k, (c, h) in looks.items()]
    mark = Line2D([], [], marker="_", linestyle="", color="black", markersize=8, label="time of its configure")
    figure.legend(handles=[*patches, mark], loc="outside lower center", ncols=3, fontsize=8.5, frameon=False)
