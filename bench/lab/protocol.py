"""Classes of messages between the conductor and the ranks; all other messages are plain values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .contenders import Place


@dataclass(frozen=True)
class Job:
    """The data with which a rank starts."""

    place: Place
    folder: Path
    rate_bits: float | None


@dataclass(frozen=True)
class Failure:
    """An answer that reports an error."""

    text: str
