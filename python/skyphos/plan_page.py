"""Predictions of an allreduce as one HTML page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .page import CLAY, CUP, PALE, STYLE, bar, human_bytes, human_seconds, svg, text
from .planner import Prediction

__all__ = ["render"]

#: Rows of the picture of times, and how many times the fastest its bars may show.
_MOST, _FAR = 16, 4.0


def render(ranks: int, n: int, entries: float, result: float, found: Sequence[Prediction]) -> str:
    """Return the page.

    Parameters
    ----------
    ranks, n, entries
        As in :func:`skyphos.planner.predict_allreduce`.
    result : float
        Entries of the result.
    found : sequence of Prediction
        Fastest first.

    Examples
    --------
    >>> from skyphos.plan_page import render
    >>> from skyphos.planner import Profile, predict_allreduce
    >>> page = render(8, 1000, 10.0, 77.0, predict_allreduce(8, 1000, 10, profile=Profile.network(1e8)))
    >>> page.startswith("<!doctype html>") and "http://" not in page
    True
    """
    facts = [
        ("ranks", f"{ranks:,}"),
        ("n", f"{n:,}"),
        ("entries a rank", f"{entries:,.0f} ({entries / n:.3g})"),
        ("entries of the result", f"{result:,.0f} ({result / n:.3g})"),
        ("fastest", f"{found[0].name}, {human_seconds(found[0].seconds)}"),
    ]
    shown = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts)
    best = next((p for p in found if p.algorithm == "butterfly"), None)
    layers = _layers(best) if best is not None and best.degrees != (1,) else ""
    return _PAGE.format(style=STYLE, facts=shown, times=_times(found), layers=layers)


def _times(found: Sequence[Prediction]) -> str:
    """A bar for each algorithm: its time, and in it the processor's."""
    rows = list(found[:_MOST])
    # The others by name, for who looks for one of them; of butterflies the best are enough.
    rows += [p for p in found[_MOST:] if p.algorithm != "butterfly"]
    # Those far behind must not make the others too short to compare.
    longest = max(1e-12, min(rows[-1].seconds, _FAR * rows[0].seconds))
    left, right, height = 250.0, 690.0, 20.0
    parts, y = [], 4.0
    for p in rows:
        width = (right - left) * min(1.0, p.seconds / longest)
        busy = width * min(1.0, sum(s.compute_s for s in p.stages) / max(p.seconds, 1e-12))
        parts += [
            text(0, y + 15, p.name, "start"),
            bar(left, y, (width, height), PALE),
            bar(left, y, (busy, height), CLAY),
            text(800, y + 15, human_seconds(p.seconds), "end"),
            text(900, y + 15, human_bytes(p.sent_bytes), "end", "note"),
        ]
        if p.seconds > longest:
            parts.append(text(right + 4, y + 15, "▸", "start", "note"))
        y += height + 7
    key = (
        f'<p class="key"><i style="background:{PALE}"></i>predicted time'
        f'<i style="background:{CLAY}"></i>kernels, of it; at the right the bytes that a rank sends</p>'
    )
    return svg(900, y, parts, "Predicted time of each algorithm") + key


def _layers(best: Prediction) -> str:
    """Bytes of the best butterfly by layer, mirrored about an axis: the kylix."""
    depth = len(best.degrees)
    down, up = best.stages[-2 * depth : -depth], best.stages[-depth:]
    numbered = [(k, d) for k, d in enumerate(best.degrees)]
    rows = [("▼", k, d, stage) for (k, d), stage in zip(numbered, down, strict=True)]
    rows += [("▲", k, d, stage) for (k, d), stage in zip(reversed(numbered), up, strict=True)]
    most = max(1e-12, *(stage.sent_bytes for *_, stage in rows))
    axis, half, height = 480.0, 260.0, 34.0
    parts, y = [], 8.0
    for arrow, k, degree, stage in rows:
        width = half * stage.sent_bytes / most
        each = stage.sent_bytes / max(1.0, stage.messages)
        parts += [
            bar(axis - half, y, (2 * half, height), CUP),
            bar(axis - width, y, (2 * width, height), CLAY),
            text(0, y + 22, f"{arrow} layer {k + 1}", "start"),
            text(110, y + 22, f"degree {degree}", "start", "note"),
            text(900, y + 15, f"{human_bytes(stage.sent_bytes)}, {human_seconds(stage.seconds)}", "end"),
            text(900, y + 31, f"{_messages(stage.messages)} of {human_bytes(each)}", "end", "note"),
        ]
        y += height + 10
    picture = svg(900, y, parts, "Bytes of the best butterfly by layer")
    return f"<h2>{escape(best.name)}, by layer</h2>{picture}"


def _messages(count: float) -> str:
    return f"{count:,.0f} message{'' if round(count) == 1 else 's'}"


_PAGE = """<!doctype html> <html lang="en"> <head> <meta charset="utf-8"> <meta name="viewport"
content="width=device-width, initial-scale=1"> <title>Plan of an allreduce · Skyphos</title>
<style>{style}</style> </head> <body> <h1>Plan of an <b>allreduce</b></h1> <dl>{facts}</dl> <h2>Predicted
time</h2> <p class="lead">Of each algorithm, the fastest first. Butterflies are of all ordered factorisations of
the number of ranks.</p> {times} {layers} </body> </html>
"""
