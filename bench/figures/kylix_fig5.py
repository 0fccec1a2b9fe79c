"""*Kylix*, Fig. 5: bytes of each layer on 64 nodes, which shrink like a Kylix.

As in the paper: values of all nodes, including a node's packets to itself; the last bar is the reduced vector at the
bottom. Three methods: Proposition 4.1; the bytes sent by the simulator's ranks (times d/(d - 1) for the packets to
themselves); and a simulation of the same protocol on random index sets, in a space a thousandth as large.
"""

from __future__ import annotations

from typing import Any

from skyphos.simulate import Network, Simulation, simulate

from .graphs import ALPHA, GRAPHS, Graph, layer_bytes, layers, network, plan
from .style import COLOURS, Log, new

TITLE = "Kylix Fig. 5: volume of each layer"
NEEDS_ROOT = False
RANKS = 64
SMALLER = 1000
#: Largest relative error against the proposition: messages have whole numbers of values, and random sets vary.
ROUNDING, CHANCE = 1e-4, 0.01


def counted(done: Simulation, degrees: tuple[int, ...]) -> list[float]:
    """Bytes of each layer on the way down, including packets to oneself."""
    down = done.phases[-1].rounds[: len(degrees)]
    return [layer.sent_bytes * d / (d - 1) for layer, d in zip(down, degrees, strict=True)]


def drawn(graph: Graph, smaller: int) -> Simulation:
    """Simulate the same reduction with random sets in a smaller space."""
    entries = graph.entries(RANKS) / smaller
    n = graph.n // smaller
    return simulate(Network(RANKS), "reduce", n=n, entries=entries, alpha=ALPHA, degrees=graph.optimal, watch=[])


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Both graphs with their optimal degrees."""
    smaller = 20 * SMALLER if quick else SMALLER
    found = []
    for graph in GRAPHS[:1] if quick else GRAPHS:
        expected = layer_bytes(graph, graph.optimal)
        sent = counted(plan(graph, graph.optimal, network(RANKS)), graph.optimal)
        real = [smaller * each for each in counted(drawn(graph, smaller), graph.optimal)]
        for got, tolerance in ((sent, ROUNDING), (real, 5 * CHANCE if quick else CHANCE)):
            if any(abs(a / b - 1) > tolerance for a, b in zip(got, expected, strict=False)):
                raise RuntimeError(f"{graph.name}: {got} differ from Proposition 4.1: {expected}")
        degrees = layers(graph.optimal)
        found.append({"graph": graph.name, "degrees": degrees, "model": expected, "sent": sent, "drawn": real})
        log(f"{graph.name} {degrees}: " + ", ".join(f"{each / 1e9:.2f}" for each in expected) + " GB")
    return {"ranks": RANKS, "alpha": ALPHA, "smaller": smaller, "graphs": found}


def draw(entry: dict[str, Any]) -> Any:
    """The cup shape: each layer a centred bar."""
    figure, axes = new(len(entry["graphs"]), width=10, height=4.2)
    for each, found in zip(axes, entry["graphs"], strict=True):
        model, last = found["model"], len(found["model"]) - 1
        widest = model[0] / 1e9
        for level, volume in enumerate(model):
            size = volume / 1e9
            colour = COLOURS[5] if level == last else COLOURS[2]
            each.barh(level, size, left=-size / 2, height=0.62, color=colour, zorder=3)
            words = f"{size:.2f} GB"
            if level < last:
                others = (found["sent"][level] / 1e9, found["drawn"][level] / 1e9)
                words += f"\nsent {others[0]:.2f}, drawn {others[1]:.2f}"
            each.annotate(
                words, (widest / 2, level), xytext=(8, 0), textcoords="offset points", va="center", fontsize=9
            )
        names = [f"layer {level + 1}\n(degree {d})" for level, d in enumerate(found["degrees"].split("×"))]
        each.set_yticks(range(last + 1), [*names, "reduced values\nat the bottom"])
        each.invert_yaxis()
        each.set_xlim(-0.55 * widest, 1.05 * widest)
        each.set_xticks([])
        each.grid(visible=False)
        each.spines[["bottom", "left"]].set_visible(False)
        each.tick_params(length=0)
        each.set_title(f"{found['graph']}, {found['degrees']}", fontsize=11)
    figure.suptitle(f"{TITLE}, {entry['ranks']} nodes", fontsize=12, fontweight="bold")
    return figure
