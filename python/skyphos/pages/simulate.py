"""A simulation as one HTML page that needs nothing but itself: time and volume by layer, and a timeline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from ..simulate.run import LOOKED_AT, Network, Phase, Round, Simulation
from .page import CLAY, CUP, FAINT, INK, LINE, PALE, STYLE, bar, human_bytes, human_seconds, stroke, svg, text

__all__ = ["data_words", "phase_words", "render"]

#: Colours of rounds in the timeline, one after the other.
_ROUNDS = ("#b4532a", "#d98f5c", "#8a9a5b", "#5b8a8a", "#6f6aa3", "#a3698f", "#c2a14d", "#7a7a7a")

#: Least distance of the middle of a time's words from the end of a picture that has words too.
_WORDS = 160.0

#: Stretches of work that a row of the timeline shows at most; those next to each other become one.
_MOST_STRETCHES = 400


def data_words(collective: str, n: int | None, entries: float | None, row_bytes: int) -> list[str]:
    """Return what a simulated collective is of, in words; ``n``, ``entries``: None where there is no such data.

    Examples
    --------
    >>> from skyphos.pages.simulate import data_words
    >>> data_words("allreduce", 1000, 50, 4), data_words("broadcast", 10**9, None, 1)
    (['n = 1,000', '50 entries a rank (0.05)'], ['a message of 1.00 GB'])
    """
    if collective == "broadcast" and n is not None:
        return [f"a message of {human_bytes(n * row_bytes)}"]
    if collective == "shuffle" and entries is not None:
        return [f"{entries:,.0f} rows a rank, which are {human_bytes(entries * row_bytes)}"]
    if collective == "outer_product_sum" and n is not None and entries is not None:
        return [f"{n:,} rows", f"{entries:,.0f} pairs a rank of {row_bytes} bytes a number"]
    words = [] if n is None else [f"n = {n:,}"]
    return words if n is None or entries is None else [*words, f"{entries:,.0f} entries a rank ({entries / n:.3g})"]


def phase_words(phase: Phase) -> str:
    """Return a part's name and how it went: algorithm, chunks, layers.

    Examples
    --------
    >>> from skyphos.simulate import Network, simulate
    >>> from skyphos.pages.simulate import phase_words
    >>> phase_words(simulate(Network(4), "broadcast", n=10**6, algorithm="chain", chunk_bytes=65536).phases[0])
    'broadcast by chain, chunks of 65.5 kB'
    """
    words = f" by {phase.algorithm}" if phase.name in LOOKED_AT["algorithm"] else ""
    words += f", chunks of {human_bytes(phase.chunk_bytes)}" if phase.chunk_bytes else ""
    words += f", degrees {'x'.join(map(str, phase.degrees))}" if phase.degrees else ""
    return phase.name + words


def render(network: Network, n: int | None, entries: float | None, found: Simulation, *, row_bytes: int = 4) -> str:
    """Return the page. ``n``, ``entries``: None where there is no such data; ``row_bytes``: of each row of it.

    Examples
    --------
    >>> from skyphos.simulate import Network, simulate
    >>> from skyphos.pages.simulate import render
    >>> network = Network(8, jitter="exponential(1e-5)")
    >>> page = render(network, 1000, 50, simulate(network, "reduce", n=1000, entries=50))
    >>> page.startswith("<!doctype html>") and "http://" not in page
    True
    """
    hosts = math.ceil(network.ranks / network.ranks_per_host)
    racks = math.ceil(hosts / network.hosts_per_rack) if network.hosts_per_rack else 1
    facts = [
        ("ranks", f"{network.ranks:,} on {hosts:,} hosts" + (f" in {racks:,} racks" if racks > 1 else "")),
        ("data", ", ".join(data_words(found.phases[-1].name, n, entries, row_bytes)) or "none"),
        ("places", _places(network)),
        ("links", f"{human_bytes(network.rate_out)}/s out, {human_bytes(network.rate_in)}/s in"),
        ("latency", human_seconds(network.latency_s)),
        ("each message takes", human_seconds(network.message_s)),
        ("jitter", str(network.jitter) if network.jitter != "0" else "none"),
        ("stragglers", _stragglers(network)),
        *((p.name, human_seconds(p.last_s)) for p in found.phases),
    ]
    shown = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts)
    return _PAGE.format(style=STYLE, facts=shown, phases="".join(_phase(p) for p in found.phases))


def _places(network: Network) -> str:
    """How ranks lie on hosts, and whether they know."""
    words = "at random" if network.scattered else "dealt out in turn" if network.dealt else "host by host"
    return words if network.topology_known else f"{words}, unknown to the ranks"


def _stragglers(network: Network) -> str:
    if network.straggler_share == 0:
        return "none"
    return f"{network.straggler_share:.0%} of ranks, {network.straggler_slowness} times as slow"


def _phase(phase: Phase) -> str:
    colours = {r.name: _ROUNDS[k % len(_ROUNDS)] for k, r in enumerate(phase.rounds)}
    parts = [f"<h2>{escape(phase_words(phase))}: {human_seconds(phase.last_s)}</h2>"]
    if phase.rounds:
        parts += [_layers(phase.rounds, len(phase.seconds)), _timeline(phase, colours)]
    if len(phase.seconds) > 1:
        parts.append(_ends(phase.seconds))
    return "".join(parts)


def _layers(rounds: Sequence[Round], ranks: int) -> str:
    """Time and volume of each layer: volume mirrored about an axis, the kylix."""
    most = max(1, *(r.sent_bytes for r in rounds))
    longest = max(1e-12, *(r.last_s - r.first_s for r in rounds))
    axis, half, height = 330.0, 170.0, 30.0
    left, right = 545.0, 690.0
    parts = [text(axis, 14, "bytes sent", "middle", "note"), text(left, 14, "time", "start", "note")]
    y = 22.0
    for r in rounds:
        width = half * r.sent_bytes / most
        spent = (right - left) * (r.last_s - r.first_s) / longest
        each = r.sent_bytes / max(1, r.messages)
        parts += [
            bar(axis - half, y, (2 * half, height), CUP),
            bar(axis - width, y, (2 * width, height), CLAY, f"{r.sent_bytes:,} bytes in {r.messages:,} messages"),
            bar(left, y + 6, (spent, height - 12), PALE),
            text(0, y + 20, r.name, "start"),
            text(left + spent + 6, y + 20, human_seconds(r.last_s - r.first_s), "start"),
            text(900, y + 13, f"{human_bytes(r.sent_bytes / ranks)} a rank", "end", "note"),
            text(900, y + 27, f"messages of {human_bytes(each)}", "end", "note"),
        ]
        y += height + 8
    return svg(900, y, parts, "Bytes and time of each layer")


def _timeline(phase: Phase, colours: dict[str, str]) -> str:
    """A row for each rank that was watched: its rounds, and under them when it worked."""
    end = max(1e-12, phase.last_s)
    left, right = 70.0, 860.0  # room for half of the last tick's words
    row = max(9.0, min(26.0, 620.0 / max(1, len(phase.timeline))))

    def x(seconds: float) -> float:
        return left + (right - left) * min(1.0, seconds / end)

    parts: list[str] = []
    y = 6.0
    for rank, rounds in phase.timeline.items():
        parts.append(text(left - 8, y + row * 0.72, str(rank), "end", "note"))
        for name, first, last in sorted(rounds, key=lambda r: r[1]):
            if name in colours:
                words = f"rank {rank}, {name}: {human_seconds(first)} to {human_seconds(last)}"
                parts.append(bar(x(first), y, (max(0.6, x(last) - x(first)), row * 0.62), colours[name], words))
        for first, last in _joined(phase.busy.get(rank, []), end):
            parts.append(bar(x(first), y + row * 0.64, (max(0.3, x(last) - x(first)), row * 0.18), INK))
        y += row
    y += 6
    parts.append(stroke((left, y), (right, y), LINE))
    for k in range(6):
        at = end * k / 5
        parts += [stroke((x(at), y), (x(at), y + 5), FAINT), text(x(at), y + 20, human_seconds(at), "middle", "note")]
    keys = "".join(f'<i style="background:{c}"></i>{escape(name)}' for name, c in colours.items())
    key = f'<p class="key">{keys}<i style="background:{INK}"></i>work</p>'
    return svg(900, y + 26, parts, "When each rank was in which layer") + key


def _joined(busy: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    """Stretches nearer to each other than can be seen are one."""
    gap = end / _MOST_STRETCHES
    joined: list[tuple[float, float]] = []
    for first, last in busy:
        if joined and first - joined[-1][1] < gap:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def _ends(seconds: Sequence[float]) -> str:
    """How many ranks had their result by when."""
    ordered = sorted(seconds)
    low, high = ordered[0], ordered[-1]
    if human_seconds(low) == human_seconds(high):
        return f'<p class="key">All ranks have their result after {human_seconds(high)}.</p>'
    left, right, top, bottom = 70.0, 880.0, 10.0, 120.0

    def x(value: float) -> float:
        return left + (right - left) * (value - low) / (high - low)

    step = (bottom - top) / len(ordered)
    points = [f"{x(low):.1f},{bottom:.1f}"]
    points += [f"{x(value):.1f},{bottom - step * (k + 1):.1f}" for k, value in enumerate(ordered)]
    median = ordered[(len(ordered) - 1) // 2]
    # The median's words keep clear of the others, wherever its tick is.
    middle = min(max(x(median), left + _WORDS), right - _WORDS)
    parts = [
        stroke((left, bottom), (right, bottom), LINE),
        f'<polyline points="{" ".join(points)}" fill="none" stroke="{CLAY}" stroke-width="2"/>',
        text(left - 8, top + 8, "all", "end", "note"),
        text(left - 8, bottom, "none", "end", "note"),
        stroke((x(median), bottom), (x(median), bottom + 5), FAINT),
        text(left, bottom + 18, f"first {human_seconds(low)}", "start", "note"),
        text(middle, bottom + 18, f"median {human_seconds(median)}", "middle", "note"),
        text(right, bottom + 18, f"last {human_seconds(high)}", "end", "note"),
    ]
    return svg(900, bottom + 26, parts, "Ranks that are done, by time")


_PAGE = """<!doctype html> <html lang="en"> <head> <meta charset="utf-8"> <meta name="viewport"
content="width=device-width, initial-scale=1"> <title>A simulated cluster · Skyphos</title>
<style>{style}</style> </head> <body> <h1>A <b>simulated</b> cluster</h1> <dl>{facts}</dl> {phases} </body> </html>
"""
