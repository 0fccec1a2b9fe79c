"""What the conductor and the ranks say to each other, beside plain values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .contenders import Place


@dataclass(frozen=True)
class Job:
    """What a rank must know to begin."""

    place: Place
    folder: Path
    rate_bits: float | None


@dataclass(frozen=True)
class Failure:
    """An error, as an answer."""

    text: str
