"""The page of ``skyphos simulate``: time and volume of each phase by layer, a timeline, and when ranks were done."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from ..simulate.network import Network
from ..simulate.run import Phase, Round, Simulation
from ..simulate.summary import data_summary, phase_summary
from ..text.quantities import human_bytes, human_seconds
from .chart import Chart, scale
from .template import fill

__all__ = ["render"]

#: Colours of rounds in the timeline, one after the other.
_ROUNDS = ("clay", "apricot", "olive", "teal", "violet", "plum", "ochre", "grey")

#: Least distance between the centre of the median's label and the ends of the chart, which have labels too.
_LABEL_WIDTH = 160.0

#: Most intervals of work in a row of the timeline; adjacent ones are joined.
_MAX_STRETCHES = 400


def render(network: Network, n: int | None, entries: float | None, found: Simulation, *, row_bytes: int = 4) -> str:
    """Return the page. ``n``, ``entries``: None if the collective has no such data; ``row_bytes``: bytes of a row.

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
        ("data", ", ".join(data_summary(found.phases[-1].name, n, entries, row_bytes)) or "none"),
        ("placement", _placement(network)),
        ("links", f"{human_bytes(network.rate_out)}/s out, {human_bytes(network.rate_in)}/s in"),
        ("latency", human_seconds(network.latency_s)),
        ("link time of each message", human_seconds(network.message_s)),
        ("jitter", str(network.jitter) if network.jitter != "0" else "none"),
        ("stragglers", _stragglers(network)),
        *((p.name, human_seconds(p.last_s)) for p in found.phases),
    ]
    return fill("simulate.html", facts=facts, phases=[_phase(p) for p in found.phases])


def _placement(network: Network) -> str:
    """The placement of ranks on hosts, and whether ranks know it."""
    words = "at random" if network.scattered else "dealt out in turn" if network.dealt else "host by host"
    return words if network.topology_known else f"{words}, unknown to the ranks"


def _stragglers(network: Network) -> str:
    if network.straggler_share == 0:
        return "none"
    return f"{network.straggler_share:.0%} of ranks, {network.straggler_slowness} times as slow"


def _phase(phase: Phase) -> dict[str, object]:
    """Variables of the template for one phase."""
    colours = {r.name: _ROUNDS[k % len(_ROUNDS)] for k, r in enumerate(phase.rounds)}
    first, last = human_seconds(min(phase.seconds)), human_seconds(phase.last_s)
    together = first == last
    return {
        "heading": f"{phase_summary(phase)}: {last}",
        "layers": _layers(phase.rounds, len(phase.seconds)) if phase.rounds else None,
        "timeline": _timeline(phase, colours) if phase.rounds else None,
        "key": [*((colour, name) for name, colour in colours.items()), ("ink", "computing")],
        "together": last if together and len(phase.seconds) > 1 else None,
        "ends": None if together else _ends(phase.seconds),
    }


def _layers(rounds: Sequence[Round], ranks: int) -> Markup:
    """Time and volume of each layer; volume mirrored about an axis, as in *Kylix*."""
    largest = max(1, *(r.sent_bytes for r in rounds))
    longest = max(1e-12, *(r.last_s - r.first_s for r in rounds))
    axis, half, height = 330.0, 170.0, 30.0
    left, right = 545.0, 690.0
    chart, y = Chart("Bytes and time of each layer"), 22.0
    chart.text(axis, 14, "bytes sent", "middle", "note")
    chart.text(left, 14, "time", kind="note")
    for r in rounds:
        width = half * r.sent_bytes / largest
        spent = (right - left) * (r.last_s - r.first_s) / longest
        each = r.sent_bytes / max(1, r.messages)
        chart.bar(axis - half, y, 2 * half, height, "cup")
        chart.bar(axis - width, y, 2 * width, height, "clay", f"{r.sent_bytes:,} bytes in {r.messages:,} messages")
        chart.bar(left, y + 6, spent, height - 12, "pale")
        chart.text(0, y + 20, r.name)
        chart.text(left + spent + 6, y + 20, human_seconds(r.last_s - r.first_s))
        chart.text(900, y + 13, f"{human_bytes(r.sent_bytes / ranks)} a rank", "end", "note")
        chart.text(900, y + 27, f"messages of {human_bytes(each)}", "end", "note")
        y += height + 8
    return chart.svg(y)


def _timeline(phase: Phase, colours: dict[str, str]) -> Markup:
    """A row for each watched rank: its rounds, and below them its times of work."""
    end = max(1e-12, phase.last_s)
    left, right = 70.0, 860.0  # leaves space for half of the last tick's label
    row = max(9.0, min(26.0, 620.0 / max(1, len(phase.timeline))))
    unclamped = scale(0, end, left, right)

    def x(seconds: float) -> float:
        return min(right, unclamped(seconds))

    chart, y = Chart("When each rank was in which layer"), 6.0
    for rank, rounds in phase.timeline.items():
        chart.text(left - 8, y + row * 0.72, str(rank), "end", "note")
        for name, first, last in sorted(rounds, key=lambda r: r[1]):
            if name in colours:
                tip = f"rank {rank}, {name}: {human_seconds(first)} to {human_seconds(last)}"
                chart.bar(x(first), y, max(0.6, x(last) - x(first)), row * 0.62, colours[name], tip)
        for first, last in _joined(phase.busy.get(rank, []), end):
            chart.bar(x(first), y + row * 0.64, max(0.3, x(last) - x(first)), row * 0.18, "ink")
        y += row
    y += 6
    chart.line((left, y), (right, y), "line")
    for at in (end * k / 5 for k in range(6)):
        chart.line((x(at), y), (x(at), y + 5), "faint")
        chart.text(x(at), y + 20, human_seconds(at), "middle", "note")
    return chart.svg(y + 26)


def _joined(busy: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    """Intervals of work; those too close to each other to be seen apart are joined."""
    gap = end / _MAX_STRETCHES
    joined: list[tuple[float, float]] = []
    for first, last in busy:
        if joined and first - joined[-1][1] < gap:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def _ends(seconds: Sequence[float]) -> Markup:
    """Number of ranks that had their result, over time."""
    ordered = sorted(seconds)
    low, high = ordered[0], ordered[-1]
    left, right, top, bottom = 70.0, 880.0, 10.0, 120.0
    x = scale(low, high, left, right)
    step = (bottom - top) / len(ordered)
    median = ordered[(len(ordered) - 1) // 2]
    chart = Chart("Ranks that are done, by time")
    chart.line((left, bottom), (right, bottom), "line")
    chart.path([(left, bottom), *((x(value), bottom - step * k) for k, value in enumerate(ordered, 1))], "clay")
    chart.text(left - 8, top + 8, "all", "end", "note")
    chart.text(left - 8, bottom, "none", "end", "note")
    chart.line((x(median), bottom), (x(median), bottom + 5), "faint")
    chart.text(left, bottom + 18, f"first {human_seconds(low)}", "start", "note")
    # The median's label must not overlap the others, wherever its tick is.
    middle = min(max(x(median), left + _LABEL_WIDTH), right - _LABEL_WIDTH)
    chart.text(middle, bottom + 18, f"median {human_seconds(median)}", "middle", "note")
    chart.text(right, bottom + 18, f"last {human_seconds(high)}", "end", "note")
    return chart.svg(bottom + 26)
