"""The results as a picture: a dot and an interval for each contender, and lines for the limits."""

from __future__ import annotations

from pathlib import Path

from .run import Result
from .summary import Limits, Line
from .table import describe

_COLOURS = {"ours": "#0b6e99", "partial": "#8fc1d6", "dense": "#9a9a9a", "sparse": "#d08a3c"} | {
    "together": "#3f8f5f",
    "computing": "#b9b9b9",
}
_NAMES = {
    "ours": "Skyphos",
    "partial": "Skyphos, own indices only",
    "together": "Skyphos, while computing",
    "computing": "computing alone",
    "dense": "other libraries, dense",
    "sparse": "other libraries, sparse",
}


def draw(result: Result, found: list[Line], bound: Limits, path: Path) -> None:
    """Draw the picture into a file; the suffix of its name selects the format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    shown = [line for line in reversed(found) if line.kind != "probe"]
    figure, axes = pyplot.subplots(figsize=(9, 2.1 + 0.34 * len(shown)), layout="constrained")
    for place, line in enumerate(shown):
        middle = 1e3 * line.median.value
        low, high = 1e3 * (line.median.low or line.median.value), 1e3 * (line.median.high or line.median.value)
        colour = _COLOURS[line.kind]
        axes.axhline(place, color="#e6e6e6", linewidth=0.8, zorder=0)
        axes.plot([low, high], [place, place], color=colour, linewidth=5, alpha=0.4, solid_capstyle="butt", zorder=2)
        axes.plot(middle, place, "o", color=colour, markersize=8, zorder=3)
        text = f"{middle:,.0f}" if middle >= 100 else f"{middle:.3g}"
        axes.annotate(
            text,
            (high, place),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            zorder=5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
    limits = [(bound.floor_s, "floor", "#b3261e"), (bound.dense_s, "dense bound", "#444444")]
    for value, name, colour in limits:
        if value is not None:
            axes.axvline(1e3 * value, color=colour, linestyle="--", linewidth=1.2, zorder=4)
            axes.annotate(
                f"{name} {1e3 * value:,.0f}" if value >= 0.1 else f"{name} {1e3 * value:.3g}",
                (1e3 * value, len(shown) - 0.45),
                ha="center",
                va="bottom",
                fontsize=8.5,
                color=colour,
                annotation_clip=False,
            )
    axes.set_yticks(range(len(shown)), [line.name for line in shown])
    axes.set_ylim(-0.6, len(shown) - 0.45)
    axes.set_xscale("log")
    values = [1e3 * line.median.value for line in shown] + [1e3 * v for v, _, _ in limits if v is not None]
    axes.set_xlim(0.6 * min(values), 1.9 * max(values))
    axes.xaxis.set_major_formatter(lambda value, _position: f"{value:,.10g}")
    axes.set_xlabel("milliseconds, median over placements with its 95 % interval (logarithmic)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.8, zorder=0)
    figure.suptitle(result.scenario.title, fontsize=12, fontweight="bold")
    axes.set_title(describe(result), fontsize=8.5, pad=22, color="#444444")
    kinds = [kind for kind in _NAMES if any(line.kind == kind for line in shown)]
    marks = [Line2D([], [], marker="o", linestyle="", color=_COLOURS[kind], label=_NAMES[kind]) for kind in kinds]
    figure.legend(handles=marks, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    figure.savefig(path, dpi=140)
    pyplot.close(figure)
