"""Common code of the figures: records, colours that can be told apart in grey, and writing of pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from lab.record import machine, write
from skyphos.files.whole_file import replacing

Log = Callable[[str], None]

# Dark to light, so that they can be told apart in grey, together with markers and dashes.
COLOURS = ("#1b2a49", "#8c2d19", "#1f6f8b", "#c8622d", "#5b9a68", "#e0a030", "#7fb8d8", "#c9a0c0")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
THEIRS = "#555555"


@dataclass(frozen=True)
class Quartiles:
    """Quartiles of times, in seconds."""

    low: float
    median: float
    high: float
    count: int


def quartiles(times: Sequence[float]) -> Quartiles:
    """The 25th, 50th and 75th percentile."""
    low, median, high = np.percentile(times, (25, 50, 75)).tolist()
    return Quartiles(low, median, high, len(times))


def as_point(found: Quartiles, **where: Any) -> dict[str, Any]:
    """A measured point for a record."""
    return where | asdict(found)


def save_record(path: Path, name: str, quick: bool, points: dict[str, Any]) -> dict[str, Any]:
    """Write the measured points, with machine and date."""
    entry = {
        "figure": name,
        "command": f"bench/figures {name}" + (" --quick" if quick else ""),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        **points,
    }
    write(path, entry)
    return entry


def new(columns: int = 1, *, rows: int = 1, width: float = 7.5, height: float = 4.6) -> tuple[Any, list[Any]]:
    """A figure with axes beside each other, row by row."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(rows, columns, figsize=(width, height), layout="constrained", squeeze=False)
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(color="#e4e4e4", linewidth=0.7, zorder=0)
        each.set_axisbelow(True)
    return figure, list(axes.flat)


def plain_numbers(axis: Any, ticks: Sequence[float], names: Sequence[str] | None = None) -> None:
    """Label ticks with plain numbers, not powers of ten, without minor ticks."""
    axis.set_ticks(ticks, [f"{tick:,.10g}" for tick in ticks] if names is None else names)
    axis.set_ticks([], minor=True)


def size_name(size: float) -> str:
    """Bytes as text: 64 KB is 65,536."""
    for unit, scale in (("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.3g} B"


def save_picture(figure: Any, path: Path) -> None:
    """Write a PNG that appears whole or not at all."""
    from matplotlib import pyplot

    with replacing(str(path)) as file:
        figure.savefig(file, format="png", dpi=120)
    pyplot.close(figure)
