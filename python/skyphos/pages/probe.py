"""The page of ``skyphos probe``: throughput by message size, every pair of ranks, incast, and all numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from ..planning.profile_file import Measured
from ..probe.summary import exchange_time, half_rate, host_names, transport
from ..text.quantities import fine_seconds, human_bytes
from .chart import Chart, scale
from .template import fill

__all__ = ["render"]

Matrix = npt.NDArray[np.float64]

#: Up to this many ranks a map has numbers in its cells, and up to this many ranks each has a row.
_WITH_NUMBERS, _MAX_ROWS = 8, 64

#: Most hosts of a rack that are listed.
_MAX_HOSTS = 32


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
        ("half of the best rate at messages of", half_rate(found)),
        ("all ranks at once", f"{exchange_time(profile)}; {human_bytes(profile.rate)}/s"),
        ("measured", f"{found.measured[:16].replace('T', ' ')} UTC"),
    ]
    return fill(
        "probe.html",
        facts=facts,
        curve=_curve(found),
        racks=_racks(found),
        maps=_maps(found),
        incast=_incast(found),
        incast_share=f"{profile.incast:.1%}",
        numbers=_numbers(found),
    )


def _racks(found: Measured) -> list[tuple[list[tuple[str, str]], int]]:
    """For each rack: hosts with their ranks, and the number of hosts that are not listed."""
    names = host_names(found)
    return [
        ([(names[host], _ranges(found.hosts[host].ranks)) for host in rack[:_MAX_HOSTS]], len(rack[_MAX_HOSTS:]))
        for rack in found.topology.racks
    ]


def _ranges(ranks: Sequence[int]) -> str:
    """Ranks as text, with consecutive ones joined to ranges.

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


def _curve(found: Measured) -> Markup:
    """Effective throughput by message size, as in *Kylix*, Fig. 2."""
    curve = found.curve
    rates = [(p.size, p.size / p.seconds) for p in curve]
    together_rates = [(p.size, p.size / p.together_s) for p in curve if p.together_s > 0]
    fast = [(p.size, p.size / max(p.low_s, 1e-12)) for p in curve]
    slow = [(p.size, p.size / max(p.high_s, 1e-12)) for p in curve]
    all_rates = [rate for _, rate in [*rates, *together_rates, *fast, *slow]]
    low, high = 10 ** math.floor(math.log10(min(all_rates))), 10 ** math.ceil(math.log10(max(all_rates)))
    left, top, right, bottom = 86.0, 14.0, 880.0, 372.0
    x = scale(curve[0].size, max(curve[-1].size, curve[0].size * 2), left, right, log=True)
    y = scale(low, high, bottom, top, log=True)

    def points(values: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(x(size), y(rate)) for size, rate in values]

    chart = Chart("Throughput against message size")
    decade = float(low)
    while decade <= high * 1.001:
        chart.line((left, y(decade)), (right, y(decade)), "line")
        chart.text(76, y(decade) + 5, _rate(decade), "end", "note")
        decade *= 10
    size = 1
    while size <= curve[-1].size:
        chart.line((x(size), bottom), (x(size), bottom + 5), "faint")
        chart.text(x(size), 394, _size(size), "middle", "note")
        size *= 4
    chart.area([*points(fast), *reversed(points(slow))], "pale")
    chart.path(points(together_rates), "faint", "5 4")
    chart.path(points(rates), "clay")
    for point in points(rates):
        chart.dot(point, "clay")
    best, half = min(max(rate for _, rate in rates), 1 / found.loggp.G_s), found.half_rate_bytes
    at = x(half), y(best / 2)
    chart.line(at, (at[0], bottom), dashes="2 3")
    chart.line((left, at[1]), at, dashes="2 3")
    chart.dot(at, "outline ink", 5)
    chart.text(at[0] - 9, at[1] - 10, f"half of {_rate(best)} at {human_bytes(half)}", "end")
    chart.text(right, 414, "bytes of one message", "end", "note")
    return chart.svg(420)


@dataclass(frozen=True)
class _Rows:
    """Ranks in the order of the map's rows, and how many ranks each host and each rack has."""

    order: list[int]
    hosts: list[int]
    racks: list[int]


def _maps(found: Measured) -> list[tuple[str, Markup, str]]:
    """Latency and rate of every pair, ranks grouped by rack and host: heading, chart and range of values."""
    topology = found.topology
    groups = [list(found.hosts[host].ranks) for rack in topology.racks for host in rack]
    latency, rate = topology.latency_s, topology.rate
    if found.ranks > _MAX_ROWS and len(groups) > 1:
        latency, rate = _by_group(latency, groups), _by_group(rate, groups)
        groups = [[k] for k in range(len(groups))]
    ends = np.cumsum([0] + [len(rack) for rack in topology.racks])
    sizes = [len(group) for group in groups]
    racks = [sum(sizes[a:b]) for a, b in pairwise(ends)]
    rows = _Rows([rank for group in groups for rank in group], sizes, racks)
    return [
        _heat_map("latency: dark is far", latency, rows, fine_seconds, dark_is_high=True),
        _heat_map("rate of a stream: dark is slow", rate, rows, lambda v: f"{human_bytes(v)}/s", dark_is_high=False),
    ]


def _by_group(matrix: Matrix, groups: Sequence[Sequence[int]]) -> Matrix:
    """The matrix of medians between groups."""
    joined = np.full((len(groups), len(groups)), np.nan)
    for i, rows in enumerate(groups):
        for j, columns in enumerate(groups):
            pairs = matrix[np.ix_(rows, columns)]
            known = pairs[np.isfinite(pairs)]
            joined[i, j] = np.median(known) if known.size else np.nan
    return joined


def _heat_map(
    heading: str, matrix: Matrix, rows: _Rows, as_text: Callable[[float], str], *, dark_is_high: bool
) -> tuple[str, Markup, str]:
    """A matrix of pairs, with thin frames around each host's ranks and thick ones around each rack's."""
    order = rows.order
    side, x0, y0 = 400.0 / len(order), 28.0, 24.0
    known = matrix[np.isfinite(matrix)]
    low, high = (float(known.min()), float(known.max())) if known.size else (1.0, 1.0)
    # At least a factor of two from light to dark, so that noise does not look like a difference.
    span = max(math.log(high / low), math.log(2.0))
    chart = Chart(heading.partition(":")[0] + " of every pair", 430)
    chart.bar(x0, y0, 400, 400, "cup")
    for i, a in enumerate(order):
        for j, b in enumerate(order):
            value = matrix[a, b]
            x, y = x0 + j * side, y0 + i * side
            if not np.isfinite(value):
                chart.bar(x, y, side, side, "paper" if a == b else "line")
                continue
            depth = math.log(value / low) / span if dark_is_high else math.log(high / value) / span
            tip, strength = f"{a} and {b}: {as_text(value)}", min(max(depth, 0.0), 1.0)
            chart.bar(x, y, side - 0.5, side - 0.5, "dark", tip, strength=strength)
            if len(order) <= _WITH_NUMBERS:
                number, _, unit = as_text(value).partition(" ")
                kind = "lit" if depth > 0.45 else "dim"
                chart.text(x + side / 2, y + side / 2 - 1, number, "middle", kind)
                chart.text(x + side / 2, y + side / 2 + 14, unit, "middle", kind)
    if len(order) <= 32:
        for i, a in enumerate(order):
            chart.text(x0 - 6, y0 + (i + 0.5) * side + 4, str(a), "end", "note")
            chart.text(x0 + (i + 0.5) * side, y0 - 6, str(a), "middle", "note")
    for sizes, stroke in ((rows.hosts, 1.0), (rows.racks, 2.5)):
        start = 0
        for count in sizes:
            if len(sizes) > 1 and count > 1:
                chart.frame(x0 + start * side, y0 + start * side, count * side, count * side, stroke)
            start += count
    return heading, chart.svg(y0 + 404), f"{as_text(low)} to {as_text(high)}" if known.size else ""


def _incast(found: Measured) -> Markup:
    """Bytes a second of several senders to one rank together, compared with one sender."""
    largest = max(rate for _, rate in found.incast)
    chart, y = Chart("Bytes a second that reach one rank"), 6.0
    for senders, rate in found.incast:
        chart.text(0, y + 17, f"{senders} sender{'' if senders == 1 else 's'}")
        chart.bar(110, y, 560, 24, "cup")
        chart.bar(110, y, 560 * rate / largest, 24, "clay")
        chart.text(790, y + 17, f"{human_bytes(rate)}/s", "end")
        chart.text(900, y + 17, f"{human_bytes(rate / senders)}/s each", "end", "note")
        y += 34
    return chart.svg(y)


def _numbers(found: Measured) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Sections of the table: LogGP's parameters, the profile and the machine's rates, with explanations."""
    loggp, p, machine = found.loggp, found.profile, found.machine
    times = fine_seconds
    return [
        (
            "LogGP, one pair",
            [
                ("L", times(loggp.L_s), "time of a small message on the way"),
                ("o_s", times(loggp.o_s_s), "time of the sender's processor"),
                ("o_r", times(loggp.o_r_s), "time of the receiver's processor"),
                ("g", times(loggp.g_s), "gap between small messages of a stream"),
                ("G", times(loggp.G_s), f"per byte of a stream of large messages: {human_bytes(1 / loggp.G_s)}/s"),
            ],
        ),
        (
            "All ranks at once",
            [
                ("latency", times(p.latency_s), "until a small message arrives"),
                ("message", times(p.message_s), "for which each message occupies a link, whatever its length"),
                ("call", times(p.call_s), "more for each call if ranks share processors, until all have had a turn"),
                ("rate", f"{human_bytes(p.rate)}/s", "of a rank's link, each way"),
                ("ring", f"{p.ring_gain:.2f}", "times that rate, if each rank sends to the next by hosts and racks"),
                ("cores", f"{p.cores:.2f}", "share of a core that a rank has"),
            ],
        ),
        (
            "Processor time",
            [
                ("wake", times(p.wake_s), "to wake up for an awaited message"),
                ("frame", times(p.frame_s), "for a frame, at either end"),
                ("byte", times(p.byte_s), "for a byte in frames of up to 32 KB, at either end"),
                ("array byte", times(p.array_byte_s), "for a byte in frames of 128 KB, at either end"),
                ("encode", times(p.encode_s), "to encode an entry of a sparse vector"),
                ("place", times(p.place_s), "to write a received entry into the result"),
                (
                    "merge",
                    f"{times(p.merge_s)} + {times(p.merge_more_s)}",
                    "to merge an entry; more for each further source",
                ),
                (
                    "block",
                    f"{times(p.block_s)}; {times(p.position_s)}",
                    "to add an entry by blocks; to skip a position",
                ),
                ("dense byte", times(p.dense_byte_s), "to read, add or copy a byte of an array"),
                ("fresh byte", times(p.fresh_byte_s), "to allocate a byte of an array"),
                ("bitmap", times(p.bitmap_s), "more for an entry of an array with a bitmap"),
                ("gather", times(p.gather_s), "to copy a row of a plan into a message"),
                ("fold", times(p.fold_s), "to add a received row of a plan to a sum"),
                ("row byte", times(p.row_byte_s), "more for either, for each byte of the row"),
                ("set code", times(p.set_code_s), "to encode or decode an index of a configuration"),
                ("set join", times(p.set_join_s), "to merge an index with those of other ranks"),
            ],
        ),
        (
            "Machine, a rank while all compute",
            [
                ("copy", f"{human_bytes(machine['copy_rate'])}/s", "memory"),
                ("float32", f"{machine['float32_gflops']:.1f} GFLOP/s", "matrix product, 512 × 512"),
                ("float64", f"{machine['float64_gflops']:.1f} GFLOP/s", "matrix product, 512 × 512"),
            ],
        ),
    ]


def _rate(rate: float) -> str:
    """A rate without trailing zeros."""
    number, _, unit = human_bytes(rate).partition(" ")
    return f"{float(number):g} {unit}/s"


def _size(size: int) -> str:
    for unit, factor in (("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= factor:
            return f"{size // factor} {unit}"
    return f"{size} B"
