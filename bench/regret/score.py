"""Scores: the best fixed choice is determined on odd iterations, and all contenders are compared on even ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import geometric_mean, median

from lab.contenders import DENSE

from .sweep import Measured

#: Seconds by which a dense contender may be faster, in addition to 5 percent.
DENSE_SLACK_S = 100e-6


@dataclass(frozen=True)
class Score:
    """Result of ``auto`` in a case. Seconds are medians of even iterations."""

    measured: Measured
    auto_s: float
    best: str
    best_s: float
    dense: str
    dense_s: float

    @property
    def regret(self) -> float:
        """Time of ``auto``, relative to that of the best fixed choice."""
        return self.auto_s / self.best_s

    @property
    def beaten_by_dense(self) -> bool:
        """Whether the best dense contender is faster by more than the allowed margin."""
        return self.auto_s > 1.05 * self.dense_s + DENSE_SLACK_S


def score(measured: Measured) -> Score:
    """The score of a case."""
    times = measured.times
    odd = {name: median(values[1::2]) for name, values in times.items()}
    even = {name: median(values[::2]) for name, values in times.items()}
    fixed = [name for name in times if name not in ("auto", "gloo", *DENSE)]
    best = min(fixed, key=odd.__getitem__)
    rivals = [name for name in times if name in (*DENSE, "gloo")]
    dense = min(rivals, key=odd.__getitem__, default="")
    # The time of a dense contender that was dropped is that of its first calls.
    left_out = [measured.hopeless[name] for name in (*DENSE, "gloo") if name in measured.hopeless]
    dense_s = even[dense] if dense else min(left_out)
    return Score(measured, even["auto"], best, even[best], dense, dense_s)


@dataclass(frozen=True)
class Summary:
    """Summary of all cases of a place."""

    cases: int
    mean: float
    worst: Score
    over_30_percent: int
    beaten_by_dense: int


def summary(scores: Iterable[Score]) -> Summary:
    """The summary of the table."""
    all_scores = list(scores)
    return Summary(
        len(all_scores),
        geometric_mean(one.regret for one in all_scores),
        max(all_scores, key=lambda one: one.regret),
        sum(one.regret > 1.3 for one in all_scores),
        sum(one.beaten_by_dense for one in all_scores),
    )
