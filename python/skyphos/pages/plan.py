"""What ``skyphos plan`` foretells as one HTML page that needs nothing but itself."""

from __future__ import annotations

from html import escape

from ..planning.forecast import Outlook, layers
from ..planning.planner import Prediction
from .page import CLAY, CUP, PALE, STYLE, bar, human_bytes, human_seconds, svg, text

__all__ = ["render"]

#: Rows of the picture of times, and how many times the fastest its bars may show.
_MOST, _FAR = 16, 4.0

#: What is foretold, and of what there is a bar each.
_TITLES = {
    "allreduce": ("an allreduce", "Of each algorithm"),
    "reduce_scatter": ("a reduce-scatter", "Of each choice of degrees"),
    "reduce": ("a configured reduction", "Of each choice of degrees, once it is configured"),
}


def render(seen: Outlook) -> str:
    """Return the page.

    Examples
    --------
    >>> from skyphos.planning.forecast import Assumed, foretell
    >>> from skyphos.pages.plan import render
    >>> from skyphos.planning import Profile
    >>> page = render(foretell("allreduce", 8, 1000, 10.0, assumed=Assumed(Profile.network(1e8), "defaults")))
    >>> page.startswith("<!doctype html>") and "http://" not in page
    True
    """
    fastest = seen.found[0]
    facts = [
        ("ranks", f"{seen.ranks:,}"),
        ("n", f"{seen.n:,}"),
        ("entries a rank", f"{seen.entries:,.0f} ({seen.entries / seen.n:.3g})"),
        ("entries of the result", f"{seen.result_entries:,.0f} ({seen.result_entries / seen.n:.3g})"),
        ("fastest", f"{fastest.name}, {human_seconds(fastest.seconds)}"),
    ]
    if seen.chosen != fastest:
        facts.append(("taken", f"{seen.chosen.name}, {human_seconds(seen.chosen.seconds)}"))
    if seen.configure_s is not None:
        facts.append(("configured once, in", human_seconds(seen.configure_s)))
    if seen.survey is not None:
        facts.append(("all are asked, once, in", human_seconds(seen.survey.seconds)))
    if seen.ranks > 1:
        degrees = "x".join(map(str, seen.papers_degrees))
        facts.append((f"papers' rule, {human_bytes(seen.min_packet_bytes)}", degrees))
    title, lead = _TITLES[seen.collective]
    return _PAGE.format(
        style=STYLE,
        title=title,
        facts="".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts),
        assumed="".join(f'<p class="lead">{escape(words)}.</p>' for words in _assumed(seen)),
        lead=lead,
        times=_times(seen),
        layers="" if seen.best_butterfly is None else _layers(seen.best_butterfly),
    )


def _assumed(seen: Outlook) -> list[str]:
    """Of machines and network, in sentences."""
    notes = [note[0].upper() + note[1:] for note in seen.assumed.notes]
    return [f"Assumed: {seen.assumed.source}; {seen.assumed.words()}", *notes]


def _times(seen: Outlook) -> str:
    """A bar for each algorithm: its time, and in it the processor's."""
    found = seen.found
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
            text(0, y + 15, "*" if p == seen.chosen else "", "start"),
            text(14, y + 15, p.name, "start"),
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
        f'<p class="key">* {escape(seen.why())}</p>'
    )
    return svg(900, y, parts, "Predicted time of each algorithm") + key


def _layers(best: Prediction) -> str:
    """Bytes of the best butterfly by layer, mirrored about an axis: the kylix."""
    rows = layers(best)
    most = max(1e-12, *(stage.sent_bytes for *_, stage in rows))
    axis, half, height = 480.0, 260.0, 34.0
    parts, y = [], 8.0
    for way, number, degree, stage in rows:
        width = half * stage.sent_bytes / most
        each = stage.sent_bytes / max(1.0, stage.messages)
        parts += [
            bar(axis - half, y, (2 * half, height), CUP),
            bar(axis - width, y, (2 * width, height), CLAY),
            text(0, y + 22, f"{'▼' if way == 'down' else '▲'} layer {number}", "start"),
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
content="width=device-width, initial-scale=1"> <title>Plan of {title} · Skyphos</title>
<style>{style}</style> </head> <body> <h1>Plan of <b>{title}</b></h1> <dl>{facts}</dl> {assumed} <h2>Predicted
time</h2> <p class="lead">{lead}, the fastest first. Degrees are ordered factorisations of the number of ranks.</p>
{times} {layers} </body> </html>
"""
