"""*Sparse Allreduce*, Fig. 5: bytes of a message at each level of five butterflies of 64 nodes, Twitter's graph.

Measured as bytes sent by the simulator's ranks, divided by the number of their messages, and compared with *Kylix*'s
Proposition 4.1. The paper's text has two numbers, 0.5 MB for the direct network and 17 MB "for each machine in the
first round" of the binary one.
"""

from __future__ import annotations

from typing import Any

from .graphs import TWITTER, layer_bytes, layers, network, plan
from .style import COLOURS, MARKERS, THEIRS, Log, new, plain_numbers

TITLE = "Sparse Allreduce Fig. 5: bytes of a message at each level"
NEEDS_ROOT = False
RANKS = 64
CHOICES = ((64,), (16, 4), (8, 8), (4, 4, 4), (2,) * 6)
PAPER_MB = {"64": 0.5, "2×2×2×2×2×2": 17.0}
ROUNDING = 1e-4


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Each choice of degrees."""
    found = []
    for degrees in CHOICES[:2] if quick else CHOICES:
        down = plan(TWITTER, degrees, network(RANKS)).phases[-1].rounds[: len(degrees)]
        sizes = [layer.sent_bytes / layer.messages for layer in down]
        model = [whole / RANKS / d for whole, d in zip(layer_bytes(TWITTER, degrees), degrees, strict=False)]
        if any(abs(a / b - 1) > ROUNDING for a, b in zip(sizes, model, strict=True)):
            raise RuntimeError(f"{layers(degrees)}: {sizes} differ from Proposition 4.1: {model}")
        found.append({"degrees": layers(degrees), "message_bytes": sizes})
        log(f"{layers(degrees)}: " + ", ".join(f"{size / 1e6:.3g}" for size in sizes) + " MB")
    return {"graph": TWITTER.name, "ranks": RANKS, "choices": found, "paper_mb": PAPER_MB}


def draw(entry: dict[str, Any]) -> Any:
    """A line for each choice, from level to level."""
    figure, (axes,) = new(width=8, height=4.8)
    for number, found in enumerate(entry["choices"]):
        sizes = [size / 1e6 for size in found["message_bytes"]]
        look = {"color": COLOURS[number], "marker": MARKERS[number], "label": found["degrees"]}
        axes.plot(range(1, len(sizes) + 1), sizes, markersize=7, zorder=3, **look)
        theirs = entry["paper_mb"].get(found["degrees"])
        if theirs is not None:
            axes.plot(0.93, theirs, "*", color=THEIRS, markersize=13, zorder=4)
            words = f"paper: {theirs:g} MB"
            axes.annotate(words, (0.93, theirs), xytext=(-8, 0), textcoords="offset points", ha="right", va="center",
                          fontsize=9, color=THEIRS)  # fmt: skip
    axes.set_yscale("log")
    plain_numbers(axes.yaxis, [0.2, 0.5, 1, 2, 5, 10, 20, 50])
    axes.set_ylim(0.3, 40)
    axes.set_xlim(0, 6.3)
    axes.set_xticks(range(1, 7))
    axes.set_xlabel("level of the butterfly")
    axes.set_ylabel("MB of a message (logarithmic)")
    figure.legend(loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    figure.suptitle(f"{TITLE}, {entry['graph']}", fontsize=12, fontweight="bold")
    return figure
