"""Runs the cases of a group: contenders in turn, those that are hopeless left out after their first call."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import data
from lab.cluster import Cluster, Loopback
from lab.conductor import Group, drain_seconds
from lab.contenders import DENSE, LAYERS, Place
from lab.link import rate_bits
from lab.oracle import solve
from lab.run import ports
from lab.words import Job

from .cases import Case, cases, inputs

AS_DENSE = tuple(f"as_{name}" for name in DENSE)
SPARSE = ("recursive_doubling", "split_allgather", "split_allgather_dense", "butterfly", "ring", "allgather")

# Those that take as long whatever the density, or nearly.
_ARRAYS = (*DENSE, *AS_DENSE, "gloo", "split_allgather_dense")

_BURST = "128k"
_LIMIT_S = 300.0
# A contender that takes so much longer than the best in its second call is out.
_HOPELESS, _HOPELESS_S = 3.0, 2e-3
# Iterations of a case, the first two of each contender aside, as the time allows.
_FEWEST, _MOST = 4, 24

Tell = Callable[[str], None]


@dataclass
class Measured:
    """Times of a case's contenders in seconds, one an iteration, and what ``auto`` did."""

    case: Case
    place: str
    times: dict[str, list[float]]
    chosen: str
    predicted_s: float | None = None
    hopeless: dict[str, float] = field(default_factory=dict)


def contenders(ranks: int, gloo: bool) -> list[str]:
    """Those that compete in a group of so many ranks."""
    layers = ["butterfly_" + "x".join(map(str, d)) for d in LAYERS if _product(d) == ranks]
    return ["auto", *SPARSE, *layers, *AS_DENSE, *DENSE, *(["gloo"] if gloo else [])]


def sweep(place: str, ranks: int, chosen: Sequence[Case] | None, gloo: bool, budget_s: float, tell: Tell) -> list[Measured]:
    """Measure the cases of a group of ``ranks``; ``place`` is "host", or the rate of the lab's links."""
    hosts: Cluster | Loopback = Loopback(ranks) if place == "host" else Cluster(ranks, place, _BURST)
    bits = None if place == "host" else rate_bits(place)
    names, found = contenders(ranks, gloo), []
    arrays: dict[tuple[str, int], float] = {}
    todo = list(cases(ranks)) if chosen is None else [case for case in chosen if case.ranks == ranks]
    with tempfile.TemporaryDirectory(prefix="skylab-") as temporary, hosts:
        folder = Path(temporary)
        _store(todo[0], folder)
        addresses, numbers = tuple(hosts.address(host) for host in range(ranks)), ports(ranks)
        jobs = [
            Job(Place(rank, ranks, addresses, numbers, todo[0].n, "float32", "sum"), folder, bits)
            for rank in range(ranks)
        ]
        drain_s = drain_seconds(_BURST, bits)
        with Group(hosts, list(range(ranks)), jobs, False, folder / "log") as group:
            for name in names:
                group.tell("setup", name, limit_s=_LIMIT_S)
            for number, case in enumerate(todo):
                start_s = time.monotonic()
                _store(case, folder)
                group.tell("load", folder, case.n, limit_s=_LIMIT_S)
                found.append(_measure(group, case, place, names, drain_s, budget_s, arrays))
                took_s = time.monotonic() - start_s
                tell(f"{place} {number + 1}/{len(todo)} {case.name()}: {found[-1].chosen}, {took_s:.1f} s")
    return found


def _measure(
    group: Group,
    case: Case,
    place: str,
    names: list[str],
    drain_s: float,
    budget_s: float,
    arrays: dict[tuple[str, int], float],
) -> Measured:
    def once(name: str, check: bool = False) -> float:
        return group.iterate(name, _LIMIT_S, drain_s, check).longest_s

    # The first call makes buffers, and its answer is checked.
    start_s = time.monotonic()
    # How long an array takes does not depend on what is in it: those that another case showed to be hopeless are out.
    first: dict[str, float] = {}
    for name in names:
        known_s = arrays.get((name, case.n))
        if known_s is None or known_s <= _HOPELESS * first["auto"] + _HOPELESS_S:
            first[name] = once(name, check=True)
        else:
            first[name] = known_s
    arrays |= {(name, case.n): first[name] for name in names if name in _ARRAYS}
    least = min(first.values())
    hopeful = [name for name in names if name == "auto" or first[name] <= 2 * _HOPELESS * least + _HOPELESS_S]
    second = {name: once(name) for name in hopeful}
    least = min(second.values())
    best_dense = min((name for name in DENSE if name in second), key=second.__getitem__, default=None)
    kept = [name for name in hopeful if second[name] <= _HOPELESS * least + _HOPELESS_S or name in ("auto", best_dense)]
    hopeless = {name: second.get(name, first[name]) for name in names if name not in kept}
    turn_s, times = 0.0, {name: [] for name in kept}
    for turn in range(_MOST):
        if turn >= _FEWEST and turn % 2 == 0 and time.monotonic() - start_s + 2 * turn_s > budget_s:
            break
        turn_start_s = time.monotonic()
        # Each is the first once: who comes after whom matters to caches.
        for k in range(len(kept)):
            name = kept[(turn + k) % len(kept)]
            times[name].append(once(name))
        turn_s = time.monotonic() - turn_start_s
    how: Any = group.tell("explain", "auto", limit_s=_LIMIT_S)[0]
    return Measured(case, place, times, how.algorithm, how.predicted and how.predicted.seconds, hopeless)


def _store(case: Case, folder: Path) -> None:
    """Leave a case's inputs and answer where the ranks find them."""
    held = inputs(case)
    for rank, one in enumerate(held):
        data.save(one, folder, rank)
    solve(held, "sum", "float32").save(folder)


def _product(degrees: Sequence[int]) -> int:
    total = 1
    for degree in degrees:
        total *= degree
    return total
