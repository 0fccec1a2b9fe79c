"""Statistics of the times: percentiles over placements with bootstrap intervals, limits, ratios and the headline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import bootstrap

from .contenders import make
from .contenders.plain_tcp import SENT_BYTES
from .link import dense_bytes, seconds
from .run import Result
from .scenario import Scenario

CONFIDENCE = 0.95
# Largest time of Gloo's dense allreduce of 64 MB, relative to the link bound, on a machine without other load.
FAIR = 1.15
_FAIR_BYTES = 64 << 20


@dataclass(frozen=True)
class Estimate:
    """A percentile of the observations, and its interval; no interval from a single observation."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Line:
    """The figures of one contender, in seconds."""

    name: str
    kind: str
    median: Estimate
    p10: Estimate
    p90: Estimate
    placements: int
    iterations: int


@dataclass(frozen=True)
class Limits:
    """Limits of the links; None if links have no rate. ``floor_by`` is the schedule with the least bytes."""

    dense_s: float | None
    floor_s: float | None
    floor_by: str
    schedules_s: dict[str, float]
    plain_tcp_s: float | None


def estimate(observations: list[float], percentile: float) -> Estimate:
    """A percentile, with its interval by the percentile bootstrap (Efron; *DSOP*, section 6.1)."""
    value = float(np.percentile(observations, percentile))
    if len(observations) < 2 or len(set(observations)) == 1:
        return Estimate(value, None, None)
    interval = bootstrap(
        (np.asarray(observations),),
        lambda sample, axis: np.percentile(sample, percentile, axis=axis),
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(value, float(interval.low), float(interval.high))


def lines(result: Result) -> list[Line]:
    """All contenders that took part, the fastest first."""
    found = []
    for name, placements in result.times.items():
        observations = [float(np.median(times)) for times in placements]
        median, p10, p90 = (estimate(observations, percentile) for percentile in (50, 10, 90))
        found.append(Line(name, make(name).kind, median, p10, p90, len(placements), len(placements[0])))
    return sorted(found, key=lambda line: line.median.value)


def limits(scenario: Scenario, least_bytes: dict[str, float]) -> Limits:
    """Least times of this scenario on its links. ``least_bytes``: by schedule, the least bytes that a rank receives."""
    best = min(least_bytes, key=lambda name: least_bytes[name])
    rate = scenario.rate_bits
    if rate is None:
        return Limits(None, None, best, {}, None)
    vector = scenario.n * np.dtype(scenario.dtype).itemsize
    schedules = {name: seconds(count, rate) for name, count in least_bytes.items()}
    dense = seconds(dense_bytes(scenario.hosts, vector), rate)
    return Limits(dense, schedules[best], best, schedules, seconds(SENT_BYTES, rate))


def headline(found: list[Line], bound: Limits) -> list[str]:
    """Compare the best contender of Skyphos with the best dense one, the best sparse one of others, and the floor."""
    best: dict[str, Line] = {}
    for line in found:
        best.setdefault(line.kind, line)
    lines = []
    if "ours" in best:
        ours = best["ours"]
        parts = []
        for kind in ("dense", "sparse"):
            if kind in best:
                ratio = ours.median.value / best[kind].median.value
                parts.append(f"{ratio:.3g} times the time of the best {kind} contender ({best[kind].name})")
        if bound.floor_s:
            parts.append(f"{ours.median.value / bound.floor_s:.3g} times the floor")
        lines.append(f"best of ours: {ours.name}, {1e3 * ours.median.value:.4g} ms: " + ", ".join(parts))
    elif found:
        others = [line for line in found if line.kind in ("dense", "sparse")]
        if others and bound.floor_s:
            ratio = others[0].median.value / bound.floor_s
            lines.append(f"none of ours took part; best of others: {others[0].name}, {ratio:.3g} times the floor")
    return lines


def overlap_lines(found: list[Line]) -> list[str]:
    """Time of an allreduce that overlaps a computation, relative to the longer of the two alone."""
    times = {line.name: line.median.value for line in found}
    if not {"overlapped", "computing", "auto"} <= times.keys():
        return []
    longer = max(times["computing"], times["auto"])
    return [
        f"an allreduce beside as much computing: {times['overlapped'] / longer:.3f} times the longer of the two alone "
        f"(one after the other: {(times['computing'] + times['auto']) / longer:.3f})"
    ]


def fairness(scenario: Scenario, found: list[Line], bound: Limits) -> str | None:
    """Whether the machine had too much other load; None if the scenario does not show it."""
    by_name = {line.name: line for line in found}
    vector = scenario.n * np.dtype(scenario.dtype).itemsize
    if "gloo" not in by_name or bound.dense_s is None or vector < _FAIR_BYTES:
        return None
    ratio = by_name["gloo"].median.value / bound.dense_s
    if ratio <= FAIR:
        return f"fair: Gloo's dense allreduce took {ratio:.3f} times the link bound (at most {FAIR})"
    return f"THE MACHINE WAS TOO BUSY: Gloo's dense allreduce took {ratio:.3f} times the link bound, more than {FAIR}"
