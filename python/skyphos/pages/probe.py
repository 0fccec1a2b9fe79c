"""What a probe found as one HTML page that needs nothing but itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..planning.profile_file import Measured
from ..probe.summary import half_rate, host_names, micro, together, transport
from .page import CLAY, CUP, FAINT, INK, LINE, PALE, STYLE, bar, human_bytes, stroke, svg, text

__all__ = ["render"]

Matrix = npt.NDArray[np.float64]

#: Ranks up to which cells say their number, and up to which each has a row of its own.
_WITH_NUMBERS, _MOST_ROWS = 8, 64
_DARK = "#7c2d12"


def render(found: Measured) -> str:
    """Return the page.

    Examples
    --------
    >>> import skyphos as sky
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> from skyphos.probe import probe
    >>> from skyphos.pages.probe import render
    >>> with ThreadPoolExecutor(2) as pool:
    ...     found, _ = pool.map(lambda comm: probe(comm, seconds=0.5), sky.local(2))
    >>> page = render(found)
    >>> page.startswith("<!doctype html>") and "http://" not in page
    True
    """
    profile, names = found.profile, host_names(found)
    racks = found.topology.racks
    facts = [
        ("ranks", f"{found.ranks} over {transport(found)}"),
        ("hosts", ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")),
        *([("racks", f"{len(racks)}")] if len(racks) > 1 else []),
        ("half of the best rate at", half_rate(found)),
        ("all exchange", f"{together(profile)}; {human_bytes(profile.rate)}/s"),
        ("measured", f"{found.measured[:16].replace('T', ' ')} UTC"),
    ]
    shown = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts)
    return _PAGE.format(
        style=STYLE + _MORE_STYLE,
        facts=shown,
        curve=_curve(found),
        maps=_maps(found),
        incast=_incast(found),
        numbers=_numbers(found),
        places=_places(found),
    )


def _places(found: Measured) -> str:
    """Which ranks are where, rack by rack."""
    names, racks = host_names(found), found.topology.racks
    lines = []
    for number, rack in enumerate(racks, 1):
        hosts = [f"{escape(names[host])}: <b>{_ranges(found.hosts[host].ranks)}</b>" for host in rack[:32]]
        more = f" and {len(rack) - 32} more hosts" if len(rack) > 32 else ""
        head = f"Rack {number}: " if len(racks) > 1 else "Ranks by host: "
        lines.append(f'<p class="key">{head}{"; ".join(hosts)}{more}</p>')
    return "".join(lines)


def _ranges(ranks: Sequence[int]) -> str:
    """Numbers as people list them.

    >>> _ranges([0, 1, 2, 5])
    '0–2, 5'
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return ", ".join("–".join(map(str, run)) for run in runs)


class _Axes:
    """Two logarithmic axes in a box."""

    def __init__(self, box: tuple[float, float, float, float], x: tuple[float, float], y: tuple[float, float]) -> None:
        self.left, self.top, self.right, self.bottom = box
        self._x, self._y = [math.log(v) for v in x], [math.log(v) for v in y]

    def x(self, value: float) -> float:
        low, high = self._x
        return self.left + (self.right - self.left) * (math.log(value) - low) / max(high - low, 1e-9)

    def y(self, value: float) -> float:
        low, high = self._y
        return self.bottom - (self.bottom - self.top) * (math.log(value) - low) / max(high - low, 1e-9)

    def path(self, points: Sequence[tuple[float, float]], colour: str, dashes: str = "") -> str:
        places = " ".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>'

    def area(self, upper: Sequence[tuple[float, float]], lower: Sequence[tuple[float, float]], colour: str) -> str:
        places = " ".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in [*upper, *reversed(lower)])
        return f'<polygon points="{places}" fill="{colour}" opacity="0.7"/>'


def _curve(found: Measured) -> str:
    """Effective throughput against message size: the picture of Kylix, Fig. 2."""
    curve = found.curve
    rates = [(p.size, p.size / p.seconds) for p in curve]
    among = [(p.size, p.size / p.together_s) for p in curve if p.together_s > 0]
    fast = [(p.size, p.size / max(p.low_s, 1e-12)) for p in curve]
    slow = [(p.size, p.size / max(p.high_s, 1e-12)) for p in curve]
    every = [rate for _, rate in [*rates, *among, *fast, *slow]]
    low, high = 10 ** math.floor(math.log10(min(every))), 10 ** math.ceil(math.log10(max(every)))
    axes = _Axes((86, 14, 880, 372), (curve[0].size, max(curve[-1].size, curve[0].size * 2)), (low, high))
    parts = []
    decade = float(low)
    while decade <= high * 1.001:
        y = axes.y(decade)
        parts += [stroke((axes.left, y), (axes.right, y), LINE), text(76, y + 5, _rate(decade), "end", "note")]
        decade *= 10
    size = 1
    while size <= curve[-1].size:
        x = axes.x(size)
        parts += [stroke((x, axes.bottom), (x, axes.bottom + 5), FAINT), text(x, 394, _size(size), "middle", "note")]
        size *= 4
    best, half = min(max(rate for _, rate in rates), 1 / found.loggp.G_s), found.half_rate_bytes
    x, y = axes.x(half), axes.y(best / 2)
    parts += [
        axes.area(fast, slow, PALE),
        axes.path(among, FAINT, "5 4"),
        axes.path(rates, CLAY),
        *(f'<circle cx="{axes.x(a):.1f}" cy="{axes.y(b):.1f}" r="3.2" fill="{CLAY}"/>' for a, b in rates),
        stroke((x, y), (x, axes.bottom), INK, "2 3"),
        stroke((axes.left, y), (x, y), INK, "2 3"),
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="none" stroke="{INK}" stroke-width="1.6"/>',
        text(x - 9, y - 10, f"half of {_rate(best)} at {human_bytes(half)}", "end"),
        text(axes.right, 414, "bytes of one message", "end", "note"),
    ]
    key = (
        f'<p class="key"><i style="background:{CLAY}"></i>one pair, the others wait (median; quartiles shaded)'
        f'<i style="background:{FAINT}"></i>all ranks in pairs at once</p>'
    )
    return svg(900, 420, parts, "Throughput against message size") + key


@dataclass(frozen=True)
class _Rows:
    """Ranks as they are shown, and how many of them each host and each rack has."""

    order: list[int]
    hosts: list[int]
    racks: list[int]


def _maps(found: Measured) -> str:
    """Latency and rate of every pair, ranks grouped by rack and host."""
    topology = found.topology
    groups = [list(found.hosts[host].ranks) for rack in topology.racks for host in rack]
    latency, rate = topology.latency_s, topology.rate
    if found.ranks > _MOST_ROWS and len(groups) > 1:
        latency, rate = _by_group(latency, groups), _by_group(rate, groups)
        groups = [[k] for k in range(len(groups))]
    ends = np.cumsum([0] + [len(rack) for rack in topology.racks])
    sizes = [len(group) for group in groups]
    racks = [sum(sizes[a:b]) for a, b in pairwise(ends)]
    rows = _Rows([rank for group in groups for rank in group], sizes, racks)
    left = _heat(latency, rows, 0, micro, dark_is_high=True)
    right = _heat(rate, rows, 470, lambda v: f"{human_bytes(v)}/s", dark_is_high=False)
    heads = [
        text(0, 16, "latency: dark is far", "start"),
        text(470, 16, "rate of a stream: dark is slow", "start"),
    ]
    return svg(900, 500, [*heads, *left, *right], "Latency and rate of every pair")


def _by_group(matrix: Matrix, groups: Sequence[Sequence[int]]) -> Matrix:
    """The median between groups."""
    joined = np.full((len(groups), len(groups)), np.nan)
    for i, mine in enumerate(groups):
        for j, theirs in enumerate(groups):
            pairs = matrix[np.ix_(mine, theirs)]
            known = pairs[np.isfinite(pairs)]
            joined[i, j] = np.median(known) if known.size else np.nan
    return joined


def _heat(
    matrix: Matrix,
    rows: _Rows,
    left: float,
    words: Callable[[float], str],
    *,
    dark_is_high: bool,
) -> list[str]:
    """A square of pairs; thin frames around each host's ranks, thick ones around each rack's."""
    order = rows.order
    side = 400.0 / len(order)
    x0, y0 = left + 28, 48.0
    known = matrix[np.isfinite(matrix)]
    low, high = (float(known.min()), float(known.max())) if known.size else (1.0, 1.0)
    # Numbers that differ by noise only shall not look far apart.
    span = max(math.log(high / low), math.log(2.0))
    parts = []
    for i, a in enumerate(order):
        for j, b in enumerate(order):
            value = matrix[a, b]
            x, y = x0 + j * side, y0 + i * side
            if not np.isfinite(value):
                parts.append(bar(x, y, (side - 0.5, side - 0.5), "#efe7dc" if a != b else "#fbf7f0"))
                continue
            depth = math.log(value / low) / span if dark_is_high else math.log(high / value) / span
            parts.append(bar(x, y, (side - 0.5, side - 0.5), _blend(depth), f"{a} and {b}: {words(value)}"))
            if len(order) <= _WITH_NUMBERS:
                kind = "lit" if depth > 0.45 else "dim"
                number, _, unit = words(value).partition(" ")
                parts.append(text(x + side / 2, y + side / 2 - 1, number, "middle", kind))
                parts.append(text(x + side / 2, y + side / 2 + 14, unit, "middle", kind))
    if len(order) <= 32:
        for i, a in enumerate(order):
            parts.append(text(x0 - 6, y0 + (i + 0.5) * side + 4, str(a), "end", "note"))
            parts.append(text(x0 + (i + 0.5) * side, y0 - 6, str(a), "middle", "note"))
    for sizes, width in ((rows.hosts, 1.0), (rows.racks, 2.5)):
        start = 0
        for count in sizes:
            if len(sizes) > 1 and count > 1:
                parts.append(_frame(x0 + start * side, y0 + start * side, count * side, width))
            start += count
    if known.size:
        parts.append(text(x0, y0 + 424, f"{words(low)} to {words(high)}", "start", "note"))
    return parts


def _frame(x: float, y: float, size: float, width: float) -> str:
    """A box around ranks that belong together."""
    box = f'x="{x:.1f}" y="{y:.1f}" width="{size:.1f}" height="{size:.1f}"'
    return f'<rect {box} fill="none" stroke="{INK}" stroke-width="{width}"/>'


def _blend(depth: float) -> str:
    """Between the cup's clay, light and dark."""
    share = min(1.0, max(0.0, depth))
    light, dark = ([int(c[k : k + 2], 16) for k in (1, 3, 5)] for c in (CUP, _DARK))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(light, dark, strict=True))


def _incast(found: Measured) -> str:
    """What several senders reach together, beside what one does."""
    most = max(rate for _, rate in found.incast)
    parts, y = [], 6.0
    for senders, rate in found.incast:
        label = f"{senders} sender{'' if senders == 1 else 's'}"
        parts += [
            text(0, y + 17, label, "start"),
            bar(110, y, (560, 24), CUP),
            bar(110, y, (560 * rate / most, 24), CLAY),
            text(790, y + 17, f"{human_bytes(rate)}/s", "end"),
            text(900, y + 17, f"{human_bytes(rate / senders)}/s each", "end", "note"),
        ]
        y += 34
    share = f"{found.profile.incast:.1%}"
    key = f'<p class="key">The planner counts <b>{share}</b> more time for each further sender.</p>'
    return svg(900, y, parts, "Bytes a second that reach one rank") + key


def _numbers(found: Measured) -> str:
    """LogGP's parameters, the machine's rates and the profile, with what they mean."""
    loggp, p, machine = found.loggp, found.profile, found.machine
    rows = [
        ("LogGP, one pair", ""),
        ("L", micro(loggp.L_s), "on the way, of a small message"),
        ("o_s", micro(loggp.o_s_s), "the sender's processor"),
        ("o_r", micro(loggp.o_r_s), "the receiver's processor"),
        ("g", micro(loggp.g_s), "between small messages of a stream"),
        ("G", micro(loggp.G_s), f"a byte of a stream of large ones: {human_bytes(1 / loggp.G_s)}/s"),
        ("All ranks at once", ""),
        ("latency", micro(p.latency_s), "until a small message is there"),
        ("message", micro(p.message_s), "for which each takes a link, whatever its length"),
        ("call", micro(p.call_s), "more, where ranks share processors: until all have had a turn"),
        ("rate", f"{human_bytes(p.rate)}/s", "of a rank's link, each way"),
        ("ring", f"{p.ring_gain:.2f}", "times that rate, when each rank sends to the next one by hosts and racks"),
        ("cores", f"{p.cores:.2f}", "share of a core that a rank has"),
        ("Processor time", ""),
        ("wake", micro(p.wake_s), "of a message that is waited for"),
        ("frame", micro(p.frame_s), "of a frame, at either end"),
        ("byte", micro(p.byte_s), "of a byte in frames of up to 32 KB, at either end"),
        ("array byte", micro(p.array_byte_s), "of a byte in frames of 128 KB"),
        ("encode", micro(p.encode_s), "an entry of a sparse vector, to the wire"),
        ("place", micro(p.place_s), "an entry that came, to the result"),
        ("merge", f"{micro(p.merge_s)} + {micro(p.merge_more_s)}", "an entry into a sum; more for each source"),
        ("block", f"{micro(p.block_s)}; {micro(p.position_s)}", "an entry by blocks; a position of a block"),
        ("dense byte", micro(p.dense_byte_s), "of an array, read, added or copied"),
        ("fresh byte", micro(p.fresh_byte_s), "of an array, given by the system and cleared"),
        ("bitmap", micro(p.bitmap_s), "an entry more, where an array has a bitmap"),
        ("gather", micro(p.gather_s), "a row of a plan into a message"),
        ("fold", micro(p.fold_s), "a row that came, onto a sum"),
        ("row byte", micro(p.row_byte_s), "more of either, for each byte of a row"),
        ("set code", micro(p.set_code_s), "an index of a configuration, to the wire or from it"),
        ("set join", micro(p.set_join_s), "an index, with those of other ranks"),
        ("Machine, a rank while all compute", ""),
        ("copy", f"{human_bytes(machine['copy_rate'])}/s", "memory"),
        ("float32", f"{machine['float32_gflops']:.1f} GFLOP/s", "matrix product, 512 × 512"),
        ("float64", f"{machine['float64_gflops']:.1f} GFLOP/s", "matrix product, 512 × 512"),
    ]
    lines = []
    for row in rows:
        if len(row) == 2:
            lines.append(f'<tr><th colspan="3">{escape(row[0])}</th></tr>')
        else:
            lines.append(f"<tr><td>{escape(row[0])}</td><td>{escape(row[1])}</td><td>{escape(row[2])}</td></tr>")
    return f'<table class="numbers">{"".join(lines)}</table>'


def _rate(rate: float) -> str:
    """A rate without digits that say nothing."""
    number, _, unit = human_bytes(rate).partition(" ")
    return f"{float(number):g} {unit}/s"


def _size(size: int) -> str:
    for unit, scale in (("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= scale:
            return f"{size // scale} {unit}"
    return f"{size} B"


_MORE_STYLE = f""" svg text.lit {{ font-size: 13px; fill: #fbf7f0; }} svg text.dim {{ font-size: 13px; }}
table.numbers td {{ width: auto; color: {INK}; }} table.numbers td:first-child {{ width: 110px; text-align: left; }}
table.numbers td:nth-child(2) {{ width: 190px; padding-right: 28px; }} table.numbers td:nth-child(3) {{ text-align:
left; color: {FAINT}; }} table.numbers th {{ text-align: left; padding-top: 16px; border-bottom: 1px solid {LINE}; }}
"""

_PAGE = """<!doctype html> <html lang="en"> <head> <meta charset="utf-8"> <meta name="viewport"
content="width=device-width, initial-scale=1"> <title>Probe · Skyphos</title> <style>{style}</style> </head> <body>
<h1>What the <b>network</b> can do</h1> <dl>{facts}</dl> <h2>Throughput against message size</h2> <p class="lead">Half a
round trip of messages through Skyphos's own frames. Smaller messages than the marked size waste more than half of the
network (Kylix, Fig. 2).</p> {curve} <h2>Pairs of ranks</h2> {places} {maps} <h2>Many to one</h2> <p class="lead">Bytes
a second that reach one rank when several send to it at once.</p> {incast} <h2>Numbers</h2> {numbers} </body> </html>
"""
