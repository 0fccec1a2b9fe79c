"""The report of a run: one HTML page that needs nothing but itself.

All pictures are SVG written here, so the page holds no script, loads nothing, and prints well. The volume
picture is the one that gave *Kylix* its name: bytes by layer, down and up again, mirrored about the axis of
the cup.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ..pages.page import CLAY, CUP, FAINT, INK, LINE, PALE, STYLE, bar, human_bytes, human_seconds, stroke, svg, text

__all__ = ["Layer", "Report", "render"]

_PARTS = {
    "load": "#6b7f8c",
    "configure": "#9aa88b",
    "compute": "#b4532a",
    "wait for late peers": "#d9a441",
    "transfer": "#5b3a2e",
    "merge": "#c98d6d",
}


@dataclass(frozen=True)
class Layer:
    """Traffic of the whole group in one layer and one direction, in one iteration.

    Attributes
    ----------
    layer, degree : int
        Number from 1 at the top; how many ranks talk to each other.
    direction : {"down", "up"}
    messages, sent_bytes, kept_bytes : int
        Messages to other ranks, bytes in them, and bytes that stayed where they were.
    predicted_bytes : float
        What the density model expected to be sent.
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
    """Everything that a report shows.

    Attributes
    ----------
    title : str
        What was ranked.
    facts : sequence of (str, str)
        Names and values for the head of the page: graph, group, settings.
    residuals : sequence of float
        One an iteration.
    tol : float
        Where the iteration was to stop.
    layers : sequence of Layer
        Down, then up; as in ``Plan.volume``, summed over ranks.
    seconds : sequence of mapping
        One a rank: seconds by part, the parts in the order of the loop.
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
    """Return the report as one self-contained HTML page.

    Examples
    --------
    >>> from skyphos.graph.report import Layer, Report, render
    >>> layers = [Layer(1, 2, way, 2, 800, 800, 790.0) for way in ("down", "up")]
    >>> facts, seconds = [("ranks", "2")], [{"compute": 1.0}]
    >>> page = render(Report("a.txt", facts, [0.1, 0.01], 0.05, layers, seconds, [(7, 0.5)]))
    >>> page.startswith("<!doctype html>") and "http://" not in page
    True
    """
    facts = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in report.facts)
    return _PAGE.format(
        title=escape(report.title),
        style=STYLE,
        facts=facts,
        volume=_volume_picture(report.layers),
        residuals=_residual_picture(report.residuals, report.tol),
        seconds=_time_picture(report.seconds),
        top=_top_table(report.top),
    )


def _volume_picture(layers: Sequence[Layer]) -> str:
    """Bars about a common axis: what was sent in clay, what stayed pale behind it, the prediction as
    ticks."""
    down = [layer for layer in layers if layer.direction == "down"]
    # Up the cup again, the deepest layer first.
    up = sorted((layer for layer in layers if layer.direction == "up"), key=lambda layer: -layer.layer)
    rows = [*down, *up]
    if not any(layer.sent_bytes for layer in rows):
        return '<p class="note">One rank: nothing was sent.</p>'
    most = max(layer.sent_bytes + layer.kept_bytes for layer in rows)
    axis, half, height, gap = 480.0, 260.0, 34.0, 10.0
    parts: list[str] = []
    cup: list[tuple[float, float]] = []  # its right side, from the rim down and from the foot up
    y = 8.0
    for number, layer in enumerate(rows):
        if number == len(down):
            parts.append(text(axis, y + 12, "reduced", "middle", "note"))
            y += 28
        both = half * (layer.sent_bytes + layer.kept_bytes) / most
        sent, expected = half * layer.sent_bytes / most, half * min(layer.predicted_bytes / most, 1.1)
        middle = y + height / 2
        cup += [(both, y), (both, y + height)]
        parts += [
            bar(axis - both, y, (2 * both, height), PALE),
            bar(axis - sent, y, (2 * sent, height), CLAY),
            *(stroke((axis + at, y - 3), (axis + at, y + height + 3)) for at in (-expected, expected)),
            text(0, middle + 5, f"{'▼' if layer.direction == 'down' else '▲'} layer {layer.layer}", "start"),
            text(110, middle + 5, f"degree {layer.degree}", "start", "note"),
            text(900, middle - 2, human_bytes(layer.sent_bytes), "end"),
            text(900, middle + 14, f"{layer.messages} messages", "end", "note"),
        ]
        y += height + gap
    legend = (
        f'<p class="key"><i style="background:{CLAY}"></i>sent to other ranks'
        f'<i style="background:{PALE}"></i>stays on its rank'
        f'<i class="tick"></i>sent, as predicted (Kylix, Proposition 4.1)</p>'
    )
    corners = [(axis + x, at) for x, at in cup] + [(axis - x, at) for x, at in reversed(cup)]
    outline = " ".join(f"{x:.1f},{at:.1f}" for x, at in corners)
    return svg(900, y, [f'<polygon points="{outline}" fill="{CUP}"/>', *parts], "Bytes by layer") + legend


def _residual_picture(residuals: Sequence[float], tol: float) -> str:
    """Change of each iteration on a logarithmic scale, and the line at which it stops."""
    if not residuals:
        return '<p class="note">No iteration was made.</p>'
    left, right, top, bottom = 60.0, 890.0, 14.0, 270.0
    shown = [max(value, 1e-18) for value in residuals]
    marks = [*shown, tol] if tol > 0 else shown
    low, high = math.floor(math.log10(min(marks))), math.ceil(math.log10(max(marks)))
    high = max(high, low + 1)

    def x(k: int) -> float:
        return left + (right - left) * (k / max(1, len(shown) - 1))

    def y(value: float) -> float:
        return bottom - (bottom - top) * (math.log10(value) - low) / (high - low)

    parts = []
    for power in range(low, high + 1, max(1, (high - low) // 6)):
        parts.append(stroke((left, y(10.0**power)), (right, y(10.0**power)), LINE))
        parts.append(text(left - 8, y(10.0**power) + 4, f"1e{power}", "end", "note"))
    for k in range(0, len(shown), max(1, len(shown) // 8)):
        parts.append(text(x(k), bottom + 20, str(k + 1), "middle", "note"))
    if tol > 0:
        parts.append(stroke((left, y(tol)), (right, y(tol)), INK, "4 4"))
        # At the left, where the curve is high above the line.
        parts.append(text(left + 8, y(tol) - 6, f"stop below {tol:.3g}", "start", "note"))
    points = " ".join(f"{x(k):.1f},{y(value):.1f}" for k, value in enumerate(shown))
    parts.append(f'<polyline points="{points}" fill="none" stroke="{CLAY}" stroke-width="2.5"/>')
    if len(shown) <= 80:
        parts += [f'<circle cx="{x(k):.1f}" cy="{y(v):.1f}" r="3.2" fill="{CLAY}"/>' for k, v in enumerate(shown)]
    parts.append(text(right, bottom + 38, "iteration", "end", "note"))
    return svg(900, bottom + 44, parts, "Residual of each iteration")


def _time_picture(seconds: Sequence[dict[str, float]]) -> str:
    """One bar a rank, split by where its time went; above 16 ranks, the mean and the slowest."""
    if not seconds:
        return ""
    totals = [sum(split.values()) for split in seconds]
    rows = [(f"rank {rank}", split) for rank, split in enumerate(seconds)]
    if len(rows) > 16:
        mean = {part: sum(split[part] for split in seconds) / len(seconds) for part in seconds[0]}
        slowest = totals.index(max(totals))
        rows = [("mean", mean), (f"rank {slowest}, slowest", seconds[slowest])]
    longest = max(1e-9, *totals)
    left, right, height = 130.0, 800.0, 24.0
    parts, y = [], 4.0
    for name, split in rows:
        parts.append(text(0, y + 17, name, "start"))
        x = left
        for part, value in split.items():
            width = (right - left) * max(value, 0.0) / longest
            parts.append(bar(x, y, (width, height), _PARTS.get(part, FAINT), f"{part}: {human_seconds(value)}"))
            x += width
        parts.append(text(900, y + 17, human_seconds(sum(split.values())), "end"))
        y += height + 8
    mean_of = {part: sum(split[part] for split in seconds) / len(seconds) for part in seconds[0]}
    key = "".join(
        f'<i style="background:{_PARTS.get(part, FAINT)}"></i>{part} <b>{human_seconds(mean_of[part])}</b>'
        for part in mean_of
    )
    return svg(900, y, parts, "Seconds of each rank") + f'<p class="key">{key} (mean of the ranks)</p>'


def _top_table(top: Sequence[tuple[int, float]]) -> str:
    best = max((rank for _, rank in top), default=1.0) or 1.0
    rows = "".join(
        f'<tr><td>{place}</td><td class="id">{vertex}</td><td>{rank:.8f}</td>'
        f'<td class="bar"><i style="width:{100 * rank / best:.1f}%"></i></td></tr>'
        for place, (vertex, rank) in enumerate(top, 1)
    )
    return f'<table><tr><th></th><th>vertex</th><th>rank</th><th class="bar"></th></tr>{rows}</table>'


_PAGE = """<!doctype html> <html lang="en"> <head> <meta charset="utf-8"> <meta name="viewport"
content="width=device-width, initial-scale=1"> <title>PageRank of {title} · Skyphos</title>
<style>{style}</style> </head> <body> <h1>PageRank of <b>{title}</b></h1> <dl>{facts}</dl> <h2>Volume by
layer</h2> <p class="lead">Bytes that all ranks send in one iteration: values are added on their way down
and handed out on their way up. Where indices of several ranks fall together, the cup narrows.</p> {volume}
<h2>Residual</h2> <p class="lead">Change summed over all vertices, by iteration.</p> {residuals}
<h2>Time</h2> {seconds} <h2>Top vertices</h2> {top} </body> </html>
"""
