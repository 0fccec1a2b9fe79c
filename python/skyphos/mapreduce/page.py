"""A job's iterations as one HTML page that needs nothing but itself: stages, and a timeline of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from ..errors import BadInput
from ..files.whole_file import replacing
from ..pages.page import FAINT, LINE, STYLE, bar, human_bytes, human_seconds, stroke, svg, text
from ..plain_text import encoded
from .collect import to_root
from .timing import MOVING, STAGES, Iteration

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["Gathered", "gathered", "render", "write"]

_COLOURS = {
    "broadcast": "#6b7f8c",
    "map": "#b4532a",
    "shuffle": "#d9a441",
    "reduce": "#5b3a2e",
    "allreduce": "#c28f3b",
    "combine": "#8a9a5b",
    "checkpoint": "#a3698f",
    MOVING: "#e3b495",
}

# Iterations and ranks that the page shows at most: the first and the last ones.
_MOST = 64


@dataclass(frozen=True)
class Gathered:
    """Iterations of all ranks.

    Attributes
    ----------
    spans : list of list of (int, str, float, float)
        By rank: iteration, stage, and seconds since the iteration began.
    counts : list of dict of str to int
        By rank: sums over the iterations of what :class:`Iteration` counts.
    """

    spans: list[list[tuple[int, str, float, float]]]
    counts: list[dict[str, int]]


_COUNTS = ("tasks", "taken", "copied", "keys", "sent_bytes", "read_bytes", "remote_bytes")
_KINDS = (*STAGES, MOVING)

# Keys of a rank's rows are this far from those of the next one's.
_FAR = 1 << 32


def gathered(comm: Comm, iterations: Sequence[Iteration]) -> Gathered | None:
    """What all ranks did, on rank 0; None on the others. Collective."""
    # By their places, since each run of a job counts from 1.
    rows = np.array(
        [
            (comm.rank, place, _KINDS.index(stage), *when)
            for place, told in enumerate(iterations, 1)
            for stage, *when in told.spans
        ],
        np.float64,
    ).reshape(-1, 5)
    _, all_rows = to_root(comm, comm.rank * _FAR + np.arange(len(rows)), rows)
    counts = np.array([sum(getattr(told, name) for told in iterations) for name in _COUNTS], np.int64)
    of_all = comm.allgather(counts).tolist()
    if comm.rank != 0:
        return None
    spans: list[list[tuple[int, str, float, float]]] = [[] for _ in range(comm.size)]
    for rank, place, kind, start, end in all_rows.tolist():
        spans[int(rank)].append((int(place), _KINDS[int(kind)], start, end))
    return Gathered(spans, [dict(zip(_COUNTS, numbers, strict=True)) for numbers in of_all])


def write(path: str, found: Gathered | None) -> None:
    """Write the page.

    Raises
    ------
    BadInput
        It cannot be written.
    """
    assert found is not None
    try:
        with replacing(path) as file:
            file.write(encoded(render(found)))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from None


def render(found: Gathered) -> str:
    """The page.

    Examples
    --------
    >>> from skyphos.mapreduce.page import Gathered, render
    >>> spans = [[(1, "map", 0.0, 0.5), (1, "shuffle", 0.5, 0.7)]]
    >>> page = render(Gathered(spans, [{"tasks": 3, "keys": 7, "sent_bytes": 0}]))
    >>> page.startswith("<!doctype html>") and "http://" not in page
    True
    """
    numbers = sorted({number for spans in found.spans for number, *_ in spans})
    total = {name: sum(counts.get(name, 0) for counts in found.counts) for name in _COUNTS}
    lengths = {number: max(_end(spans, number) for spans in found.spans) for number in numbers}
    facts = [
        ("ranks", f"{len(found.spans):,}"),
        ("iterations", f"{len(numbers):,}"),
        ("in all", human_seconds(sum(lengths.values()))),
        ("map tasks", f"{total['tasks']:,}"),
        ("keys reduced", f"{total['keys']:,}"),
        ("sent between ranks", human_bytes(total["sent_bytes"])),
        ("read", f"{human_bytes(total['read_bytes'])}, {human_bytes(total['remote_bytes'])} of it from other hosts"),
    ]
    if total["taken"] or total["copied"]:
        facts.append(("taken over; second copies", f"{total['taken']:,}; {total['copied']:,}"))
    shown = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts)
    parts = [_key(found)]
    if numbers:
        slowest = max(numbers, key=lambda number: lengths[number])
        parts += ["<h2>Iterations: seconds of a rank, on average</h2>", _iterations(found, _some(numbers))]
        parts += [_timeline(found, number, lengths[number]) for number in dict.fromkeys((slowest, numbers[-1]))]
    return _PAGE.format(style=STYLE, facts=shown, body="".join(parts))


def _end(spans: Sequence[tuple[int, str, float, float]], number: int) -> float:
    return max((end for which, _, _, end in spans if which == number), default=0.0)


def _some(all_of_them: Sequence[int]) -> list[int]:
    """No more than fit a page."""
    half = _MOST // 2
    return [*all_of_them] if len(all_of_them) <= _MOST else [*all_of_them[:half], *all_of_them[-half:]]


def _key(found: Gathered) -> str:
    there = {stage for spans in found.spans for _, stage, *_ in spans}
    words = {MOVING: "keys on their way, meanwhile"}
    marks = "".join(f'<i style="background:{_COLOURS[k]}"></i>{words.get(k, k)}' for k in _KINDS if k in there)
    return f'<p class="key">{marks}</p>'


def _iterations(found: Gathered, numbers: Sequence[int]) -> str:
    """A bar for each: its stages one after the other."""
    means = []
    for number in numbers:
        seconds = dict.fromkeys(STAGES, 0.0)
        for spans in found.spans:
            for which, stage, start, end in spans:
                if which == number and stage != MOVING:
                    seconds[stage] += (end - start) / len(found.spans)
        means.append(seconds)
    longest = max(1e-12, *(sum(seconds.values()) for seconds in means))
    left, wide, height = 60.0, 740.0, 18.0
    parts, y = [], 4.0
    for number, seconds in zip(numbers, means, strict=True):
        parts.append(text(left - 8, y + height - 5, f"{number}", "end", "note"))
        x = left
        for stage in STAGES:
            width = wide * seconds[stage] / longest
            if width > 0:
                tip = f"{stage} {human_seconds(seconds[stage])}"
                parts.append(bar(x, y, (width, height - 3), _COLOURS[stage], tip))
            x += width
        parts.append(text(x + 6, y + height - 5, human_seconds(sum(seconds.values())), "start", "note"))
        y += height
    return svg(892, y + 4, parts, "seconds of each stage by iteration")


def _timeline(found: Gathered, number: int, length: float) -> str:
    """A row for each rank: what it did, and below what was on its way."""
    left, wide, height = 60.0, 760.0, 24.0
    ranks = _some(range(len(found.spans)))
    bottom = 24 + height * len(ranks)
    parts = []
    for k in range(5):
        x = left + wide * k / 4
        parts.append(stroke((x, 18), (x, bottom), LINE, "2 3" if k else ""))
        parts.append(text(x, 12, human_seconds(length * k / 4), "middle" if k else "start", "note"))
    y = 22.0
    for rank in ranks:
        parts.append(text(left - 8, y + 14, f"rank {rank}", "end", "note"))
        for which, stage, start, end in found.spans[rank]:
            if which != number:
                continue
            place, tall = (y + 14, 5.0) if stage == MOVING else (y, 13.0)
            size = (max(wide * (end - start) / max(length, 1e-12), 0.6), tall)
            tip = f"{stage}: {human_seconds(end - start)}, from {human_seconds(start)}"
            parts.append(bar(left + wide * start / max(length, 1e-12), place, size, _COLOURS[stage], tip))
        y += height
    parts.append(stroke((left, bottom), (left + wide, bottom), FAINT))
    heading = f"<h2>Iteration {number}: {human_seconds(length)}</h2>"
    return heading + svg(892, bottom + 6, parts, f"what ranks did when in iteration {number}")


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>skyphos map-reduce</title><style>{style}</style></head><body>
<h1>Map-reduce, <b>skyphos</b></h1><dl>{facts}</dl>
{body}
</body></html>
"""
