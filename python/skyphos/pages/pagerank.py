"""The page of a PageRank run: volume by layer, residuals, time of each rank and the top vertices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ..text.quantities import human_bytes, human_seconds
from .chart import Chart, scale
from .template import fill

__all__ = ["Layer", "Report", "render"]

#: Colours of the parts of a rank's time.
_PARTS = {
    "load": "slate",
    "configure": "sage",
    "compute": "clay",
    "wait for late peers": "gold",
    "transfer": "umber",
    "merge": "rose",
}

#: Up to this many ranks have a bar each; of more ranks the mean and the slowest are shown.
_MAX_RANKS = 16

#: Up to this many iterations have a dot each.
_MAX_DOTS = 80


@dataclass(frozen=True)
class Layer:
    """Traffic of the whole group in one layer and one direction, in one iteration.

    Attributes
    ----------
    layer, degree : int
        Number of the layer, from 1 at the top; ranks that exchange messages with each other.
    direction : {"down", "up"}
    messages, sent_bytes, kept_bytes : int
        Messages to other ranks, their bytes, and the bytes of ranks' own shares, which are not sent.
    predicted_bytes : float
        Bytes sent by the density model's prediction.
    """

    layer: int
    degree: int
    direction: str
    messages: int
    sent_bytes: int
    kept_bytes: int
    predicted_bytes: float


@dataclass(frozen=True)
class Report:
    """Content of the page.

    Attributes
    ----------
    title : str
        Name of the graph.
    facts : sequence of (str, str)
        Names and values for the head of the page: graph, group, settings.
    residuals : sequence of float
        One per iteration.
    tol : float
        Residual below which the iteration stops.
    layers : sequence of Layer
        Down, then up; as in ``Plan.volume``, summed over ranks.
    seconds : sequence of mapping
        One per rank: seconds by part, the parts in the order of the loop.
    top : sequence of (int, float)
        Vertices and ranks, best first.
    """

    title: str
    facts: Sequence[tuple[str, str]]
    residuals: Sequence[float]
    tol: float
    layers: Sequence[Layer]
    seconds: Sequence[dict[str, float]]
    top: Sequence[tuple[int, float]]


def render(report: Report) -> str:
    """Return the page.

    Examples
    --------
    >>> from skyphos.pages.pagerank import Layer, Report, render
    >>> layers = [Layer(1, 2, direction, 2, 800, 800, 790.0) for direction in ("down", "up")]
    >>> facts, seconds = [("ranks", "2")], [{"compute": 1.0}]
    >>> page = render(Report("a.txt", facts, [0.1, 0.01], 0.05, layers, seconds, [(7, 0.5)]))
    >>> page.startswith("<!doctype html>") and "http://" not in page
    True
    """
    seconds, best = report.seconds, max((rank for _, rank in report.top), default=1.0) or 1.0
    means = {part: sum(split[part] for split in seconds) / len(seconds) for part in seconds[0]} if seconds else {}
    return fill(
        "pagerank.html",
        title=report.title,
        facts=report.facts,
        volume=_volume(report.layers) if any(layer.sent_bytes for layer in report.layers) else None,
        residuals=_residuals(report.residuals, report.tol) if report.residuals else None,
        seconds=_seconds(seconds, means) if seconds else None,
        parts=[(_PARTS.get(part, "faint"), part, mean) for part, mean in means.items()],
        top=[(vertex, rank, 100 * rank / best) for vertex, rank in report.top],
    )


def _volume(layers: Sequence[Layer]) -> Markup:
    """Bars about a common axis: sent bytes in front of all bytes, the prediction as ticks.

    The outline is the shape of the cup after which *Kylix* is named.
    """
    down = [layer for layer in layers if layer.direction == "down"]
    up = sorted((layer for layer in layers if layer.direction == "up"), key=lambda layer: -layer.layer)
    rows = [*down, *up]
    largest = max(layer.sent_bytes + layer.kept_bytes for layer in rows)
    axis, half, height, gap, between = 480.0, 260.0, 34.0, 10.0, 28.0
    tops = [8 + k * (height + gap) + between * (k >= len(down)) for k in range(len(rows))]
    chart = Chart("Bytes by layer")
    rim = [
        (half * (layer.sent_bytes + layer.kept_bytes) / largest, at)
        for layer, y in zip(rows, tops, strict=True)
        for at in (y, y + height)
    ]
    chart.area([*((axis + x, y) for x, y in rim), *((axis - x, y) for x, y in reversed(rim))], "cup")
    if up:
        chart.text(axis, tops[len(down)] - between + 12, "reduced", "middle", "note")
    for layer, y in zip(rows, tops, strict=True):
        both = half * (layer.sent_bytes + layer.kept_bytes) / largest
        sent, expected = half * layer.sent_bytes / largest, half * min(layer.predicted_bytes / largest, 1.1)
        middle = y + height / 2
        chart.bar(axis - both, y, 2 * both, height, "pale")
        chart.bar(axis - sent, y, 2 * sent, height, "clay")
        for at in (axis - expected, axis + expected):
            chart.line((at, y - 3), (at, y + height + 3))
        chart.text(0, middle + 5, f"{'▼' if layer.direction == 'down' else '▲'} layer {layer.layer}")
        chart.text(110, middle + 5, f"degree {layer.degree}", kind="note")
        chart.text(900, middle - 2, human_bytes(layer.sent_bytes), "end")
        chart.text(900, middle + 14, f"{layer.messages} messages", "end", "note")
    return chart.svg(tops[-1] + height + gap)


def _residuals(residuals: Sequence[float], tol: float) -> Markup:
    """Residual of each iteration on a logarithmic scale, and the line at which the iteration stops."""
    left, right, top, bottom = 60.0, 890.0, 14.0, 270.0
    clamped = [max(value, 1e-18) for value in residuals]
    values = [*clamped, tol] if tol > 0 else clamped
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    x = scale(0, max(1, len(clamped) - 1), left, right)
    y = scale(10.0**low, 10.0**high, bottom, top, log=True)
    chart = Chart("Residual of each iteration")
    for power in range(low, high + 1, max(1, (high - low) // 6)):
        at = y(10.0**power)
        chart.line((left, at), (right, at), "line")
        chart.text(left - 8, at + 4, f"1e{power}", "end", "note")
    for k in range(0, len(clamped), max(1, len(clamped) // 8)):
        chart.text(x(k), bottom + 20, str(k + 1), "middle", "note")
    if tol > 0:
        chart.line((left, y(tol)), (right, y(tol)), dashes="4 4")
        # At the left, where the curve is far above the line.
        chart.text(left + 8, y(tol) - 6, f"stop below {tol:.3g}", kind="note")
    points = [(x(k), y(value)) for k, value in enumerate(clamped)]
    chart.path(points, "clay")
    if len(points) <= _MAX_DOTS:
        for point in points:
            chart.dot(point, "clay")
    chart.text(right, bottom + 38, "iteration", "end", "note")
    return chart.svg(bottom + 44)


def _seconds(seconds: Sequence[dict[str, float]], means: dict[str, float]) -> Markup:
    """One bar per rank, split by activity; of many ranks the mean and the slowest."""
    totals = [sum(split.values()) for split in seconds]
    rows = [(f"rank {rank}", split) for rank, split in enumerate(seconds)]
    if len(rows) > _MAX_RANKS:
        slowest = totals.index(max(totals))
        rows = [("mean", means), (f"rank {slowest}, slowest", seconds[slowest])]
    longest = max(1e-9, *totals)
    left, right, height = 130.0, 800.0, 24.0
    chart, y = Chart("Seconds of each rank"), 4.0
    for name, split in rows:
        chart.text(0, y + 17, name)
        x = left
        for part, value in split.items():
            width = (right - left) * max(value, 0.0) / longest
            chart.bar(x, y, width, height, _PARTS.get(part, "faint"), f"{part}: {human_seconds(value)}")
            x += width
        chart.text(900, y + 17, human_seconds(sum(split.values())), "end")
        y += height + 8
    return chart.svg(y)
