"""The report of a job: times of all ranks gathered on rank 0, and the page written there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import BadInput
from ..files.whole_file import replacing
from ..pages.mapreduce import JobReport, render
from ..text.plain_text import encoded
from .collect import to_root
from .timing import MOVING, STAGES, Iteration

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["gather", "write"]

_COUNTS = ("tasks", "taken", "copied", "keys", "sent_bytes", "read_bytes", "remote_bytes")
_KINDS = (*STAGES, MOVING)

#: Offset between the keys of two ranks' rows.
_KEYS_PER_RANK = 1 << 32


def gather(comm: Comm, iterations: Sequence[Iteration]) -> JobReport | None:
    """Gather the times of all ranks on rank 0; None on the others. Collective."""
    # Iterations by position, since each run of a job numbers them from 1.
    rows = np.array(
        [
            (comm.rank, position, _KINDS.index(stage), *when)
            for position, iteration in enumerate(iterations, 1)
            for stage, *when in iteration.spans
        ],
        np.float64,
    ).reshape(-1, 5)
    _, all_rows = to_root(comm, comm.rank * _KEYS_PER_RANK + np.arange(len(rows)), rows)
    counts = np.array([sum(getattr(iteration, name) for iteration in iterations) for name in _COUNTS], np.int64)
    all_counts = comm.allgather(counts).tolist()
    if comm.rank != 0:
        return None
    spans: list[list[tuple[int, str, float, float]]] = [[] for _ in range(comm.size)]
    for rank, position, kind, start, end in all_rows.tolist():
        spans[int(rank)].append((int(position), _KINDS[int(kind)], start, end))
    return JobReport(spans, [dict(zip(_COUNTS, numbers, strict=True)) for numbers in all_counts])


def write(path: str, report: JobReport | None) -> None:
    """Write the page.

    Raises
    ------
    BadInput
        If it cannot be written.
    """
    assert report is not None
    try:
        with replacing(path) as file:
            file.write(encoded(render(report)))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from None
