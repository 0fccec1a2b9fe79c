"""The page of a map-reduce job: time of each stage by iteration, and timelines of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ..text.quantities import human_bytes, human_seconds
from .chart import Chart
from .template import fill

__all__ = ["JobReport", "render"]

#: Stages of an iteration in their order, and the transfer of keys (``moving``), which overlaps with them.
_COLOURS = {
    "broadcast": "slate",
    "map": "clay",
    "shuffle": "gold",
    "reduce": "umber",
    "allreduce": "ochre",
    "combine": "olive",
    "checkpoint": "plum",
    "moving": "pale",
}

#: The page shows at most this many iterations and ranks: the first and the last ones.
_MAX_ROWS = 64

#: Iteration, stage, and seconds since the iteration began: start and end.
Span = tuple[int, str, float, float]


@dataclass(frozen=True)
class JobReport:
    """Content of the page.

    Attributes
    ----------
    spans : list of list of (int, str, float, float)
        By rank: iteration, stage, and start and end in seconds since the iteration began.
    counts : list of dict of str to int
        By rank: sums over the iterations of what :class:`skyphos.mapreduce.Iteration` counts.
    """

    spans: list[list[Span]]
    counts: list[dict[str, int]]


def render(report: JobReport) -> str:
    """Return the page.

    Examples
    --------
    >>> from skyphos.pages.mapreduce import JobReport, render
    >>> spans = [[(1, "map", 0.0, 0.5), (1, "shuffle", 0.5, 0.7)]]
    >>> page = render(JobReport(spans, [{"tasks": 3, "keys": 7, "sent_bytes": 0}]))
    >>> page.startswith("<!doctype html>") and "http://" not in page
    True
    """
    numbers = sorted({number for spans in report.spans for number, *_ in spans})
    lengths = {number: max(_end(spans, number) for spans in report.spans) for number in numbers}
    # The slowest iteration, and the last one.
    drawn = dict.fromkeys((max(numbers, key=lengths.__getitem__), numbers[-1])) if numbers else {}
    stages = {stage for spans in report.spans for _, stage, *_ in spans}
    names = {"moving": "transfer of the next keys while earlier ones are reduced"}
    return fill(
        "mapreduce.html",
        facts=_facts(report, lengths),
        key=[(colour, names.get(stage, stage)) for stage, colour in _COLOURS.items() if stage in stages],
        iterations=_iterations(report, _first_and_last(numbers)) if numbers else None,
        timelines=[(number, lengths[number], _timeline(report, number, lengths[number])) for number in drawn],
    )


def _facts(report: JobReport, lengths: dict[int, float]) -> list[tuple[str, str]]:
    totals = {name: sum(counts.get(name, 0) for counts in report.counts) for name in report.counts[0]}

    def total(name: str) -> int:
        return totals.get(name, 0)

    facts = [
        ("ranks", f"{len(report.spans):,}"),
        ("iterations", f"{len(lengths):,}"),
        ("time of all iterations", human_seconds(sum(lengths.values()))),
        ("map tasks", f"{total('tasks'):,}"),
        ("keys reduced", f"{total('keys'):,}"),
        ("sent between ranks", human_bytes(total("sent_bytes"))),
        ("read", f"{human_bytes(total('read_bytes'))}, {human_bytes(total('remote_bytes'))} of it from other hosts"),
    ]
    if total("taken") or total("copied"):
        facts.append(("tasks taken over; second copies", f"{total('taken'):,}; {total('copied'):,}"))
    return facts


def _end(spans: Sequence[Span], number: int) -> float:
    return max((end for which, _, _, end in spans if which == number), default=0.0)


def _first_and_last(numbers: Sequence[int]) -> list[int]:
    """All numbers, or the first and the last ones if there are too many for a page."""
    half = _MAX_ROWS // 2
    return [*numbers] if len(numbers) <= _MAX_ROWS else [*numbers[:half], *numbers[-half:]]


def _iterations(report: JobReport, numbers: Sequence[int]) -> Markup:
    """A bar for each iteration: the mean time of its stages, one after the other."""
    means = []
    for number in numbers:
        seconds = {stage: 0.0 for stage in _COLOURS if stage != "moving"}
        for spans in report.spans:
            for which, stage, start, end in spans:
                if which == number and stage != "moving":
                    seconds[stage] += (end - start) / len(report.spans)
        means.append(seconds)
    longest = max(1e-12, *(sum(seconds.values()) for seconds in means))
    left, wide, height = 60.0, 740.0, 18.0
    chart, y = Chart("seconds of each stage by iteration", 892), 4.0
    for number, seconds in zip(numbers, means, strict=True):
        chart.text(left - 8, y + height - 5, f"{number}", "end", "note")
        x = left
        for stage, mean in seconds.items():
            width = wide * mean / longest
            if width > 0:
                chart.bar(x, y, width, height - 3, _COLOURS[stage], f"{stage} {human_seconds(mean)}")
            x += width
        chart.text(x + 6, y + height - 5, human_seconds(sum(seconds.values())), kind="note")
        y += height
    return chart.svg(y + 4)


def _timeline(report: JobReport, number: int, length: float) -> Markup:
    """A row for each rank: its stages, and below them the transfers of keys."""
    left, wide, height = 60.0, 760.0, 24.0
    ranks = _first_and_last(range(len(report.spans)))
    bottom = 24 + height * len(ranks)
    chart, y = Chart(f"what ranks did when in iteration {number}", 892), 22.0
    for k in range(5):
        x = left + wide * k / 4
        chart.line((x, 18), (x, bottom), "line", "2 3" if k else "")
        chart.text(x, 12, human_seconds(length * k / 4), "middle" if k else "start", "note")
    for rank in ranks:
        chart.text(left - 8, y + 14, f"rank {rank}", "end", "note")
        for which, stage, start, end in report.spans[rank]:
            if which == number:
                top, tall = (y + 14, 5.0) if stage == "moving" else (y, 13.0)
                x, width = (wide * seconds / max(length, 1e-12) for seconds in (start, end - start))
                tip = f"{stage}: {human_seconds(end - start)}, from {human_seconds(start)}"
                chart.bar(left + x, top, max(width, 0.6), tall, _COLOURS[stage], tip)
        y += height
    chart.line((left, bottom), (left + wide, bottom), "faint")
    return chart.svg(bottom + 6)
