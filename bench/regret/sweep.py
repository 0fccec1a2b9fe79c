"""Runs the cases of a group: contenders in turn; slow ones are dropped after their first calls."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from lab import data
from lab.cluster import Cluster, Loopback
from lab.conductor import Group, drain_seconds
from lab.contenders import DENSE, LAYERS, Place
from lab.link import rate_bits
from lab.oracle import solve
from lab.protocol import Job
from lab.run import ports

from .cases import Case, inputs

AS_DENSE = tuple(f"as_{name}" for name in DENSE)
SPARSE = ("recursive_doubling", "split_allgather", "split_allgather_dense", "butterfly", "ring", "allgather")

# Contenders whose time hardly depends on the density.
_ARRAYS = (*DENSE, *AS_DENSE, "gloo", "split_allgather_dense")

_BURST = "128k"
_LIMIT_S = 300.0
# A contender is dropped if its second call takes longer than this many times the best one plus these seconds.
_HOPELESS, _HOPELESS_S = 2.0, 2e-3
# Least and largest number of turns of a case, as the time allows, after the first two calls of each contender. If one
# turn takes half of the time, _MIN_LONG_TURNS are enough: noise hardly affects calls that are so long.
_MIN_TURNS, _MIN_LONG_TURNS, _MAX_TURNS = 4, 2, 24
# In a turn of at least _LONG_TURN_S a short contender makes up to this many calls, within this share of the turn.
_MAX_CALLS, _CALLS_SHARE, _LONG_TURN_S = 4, 0.05, 0.5
# Seconds of an iteration without its call.
_BESIDE_S = 0.015
# A contender whose first call took this long needs no second warm-up call.
_WARM_S = 0.5

Log = Callable[[str], None]


@dataclass
class Measured:
    """Times of a case's contenders in seconds, one an iteration, and the choice of ``auto``."""

    case: Case
    place: str
    times: dict[str, list[float]]
    chosen: str
    predicted_s: float | None = None
    hopeless: dict[str, float] = field(default_factory=dict)


def contenders(ranks: int, gloo: bool) -> list[str]:
    """The contenders in a group of ``ranks`` ranks."""
    layers = ["butterfly_" + "x".join(map(str, d)) for d in LAYERS if prod(d) == ranks]
    return ["auto", *SPARSE, *layers, *AS_DENSE, *DENSE, *(["gloo"] if gloo else [])]


@dataclass(frozen=True)
class Settings:
    """Place and duration of a sweep. ``place`` is "host", or the rate of the lab's links."""

    place: str
    gloo: bool
    budget_s: float

    @property
    def drain_s(self) -> float:
        """Seconds for which links are kept busy before a call."""
        return drain_seconds(_BURST, self.rate_bits)

    @property
    def rate_bits(self) -> float | None:
        """Bits a second of the links; None on one host."""
        return None if self.place == "host" else rate_bits(self.place)

    def hosts(self, ranks: int) -> Cluster | Loopback:
        """A host for each rank, or this machine."""
        return Loopback(ranks) if self.place == "host" else Cluster(ranks, self.place, _BURST)


def sweep(settings: Settings, ranks: int, cases: Sequence[Case], log: Log) -> list[Measured]:
    """Measure cases of a group of ``ranks``."""
    found: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="skylab-") as temporary, settings.hosts(ranks) as hosts:
        folder = Path(temporary)
        _store(cases[0], folder)
        addresses, numbers = tuple(hosts.address(host) for host in range(ranks)), ports(ranks)
        jobs = [
            Job(Place(rank, ranks, addresses, numbers, cases[0].n, "float32", "sum"), folder, settings.rate_bits)
            for rank in range(ranks)
        ]
        with Group(hosts, list(range(ranks)), jobs, False, folder / "log") as group:
            run = _Run(group, settings, contenders(ranks, settings.gloo))
            for name in run.names:
                group.request("setup", name, limit_s=_LIMIT_S)
            for number, case in enumerate(cases):
                start_s = time.monotonic()
                _store(case, folder)
                group.request("load", folder, case.n, limit_s=_LIMIT_S)
                found.append(run.measure(case))
                took_s = time.monotonic() - start_s
                log(f"{settings.place} {number + 1}/{len(cases)} {case.name()}: {found[-1].chosen}, {took_s:.1f} s")
    return found


@dataclass
class _Run:
    group: Group
    settings: Settings
    names: list[str]
    # Seconds of dense contenders by size, which do not depend on the data.
    arrays: dict[tuple[str, int], float] = field(default_factory=dict)

    def once(self, name: str, check: bool = False) -> float:
        return self.group.iterate(name, _LIMIT_S, self.settings.drain_s, check).longest_s

    def measure(self, case: Case) -> Measured:
        kept, hopeless = self._hopeful(case)
        start_s = time.monotonic()
        times: dict[str, list[float]] = {name: [] for name in kept}
        order, turn_s = np.random.default_rng(case.seed), 0.0
        for turn in range(_MAX_TURNS):
            min_turns = _MIN_TURNS if turn_s < self.settings.budget_s / 2 else _MIN_LONG_TURNS
            if turn >= min_turns and turn % 2 == 0 and time.monotonic() - start_s + 2 * turn_s > self.settings.budget_s:
                break
            turn_start_s = time.monotonic()
            # The order is random, because it affects caches, and contenders whose threads continue for a while.
            for name in order.permutation(kept).tolist():
                for _ in range(_calls(times[name], turn_s)):
                    times[name].append(self.once(name))
            turn_s = time.monotonic() - turn_start_s
        how: Any = self.group.request("explain", "auto", limit_s=_LIMIT_S)[0]
        predicted_s = how.predicted and how.predicted.seconds
        return Measured(case, self.settings.place, times, how.algorithm, predicted_s, hopeless)

    def _hopeful(self, case: Case) -> tuple[list[str], dict[str, float]]:
        """Contenders that get more calls, and the times of the others. The first answers are checked."""
        first: dict[str, float] = {}
        for name in self.names:
            known_s = self.arrays.get((name, case.n))
            # The first call allocates buffers.
            if known_s is None or known_s <= 2 * _HOPELESS * first["auto"] + _HOPELESS_S:
                first[name] = self.once(name, check=True)
            else:
                first[name] = known_s
        self.arrays |= {(name, case.n): first[name] for name in self.names if name in _ARRAYS}
        least = min(first.values())
        hopeful = [name for name in self.names if name == "auto" or first[name] <= 2 * _HOPELESS * least + _HOPELESS_S]
        second = {name: self.once(name) if first[name] < _WARM_S else first[name] for name in hopeful}
        least = min(second.values())
        best_array = min((name for name in DENSE if name in second), key=second.__getitem__, default=None)
        always = ("auto", best_array)
        kept = [name for name in hopeful if name in always or second[name] <= _HOPELESS * least + _HOPELESS_S]
        return kept, {name: second.get(name, first[name]) for name in self.names if name not in kept}


def _calls(times: Sequence[float], turn_s: float) -> int:
    """Calls of one contender in the next turn; short calls are repeated."""
    if not times or turn_s < _LONG_TURN_S:
        return 1
    return min(_MAX_CALLS, max(1, int(_CALLS_SHARE * turn_s / (median(times) + _BESIDE_S))))


def _store(case: Case, folder: Path) -> None:
    """Write a case's inputs and answer to files for the ranks."""
    held = inputs(case)
    for rank, one in enumerate(held):
        data.save(one, folder, rank)
    solve(held, "sum", "float32").save(folder)
