"""A scenario from inputs to figures: placements one after the other, contenders in turn within each.

The rules are those of *DSOP* (section 6.1): all ranks start together; the first iteration of a contender is
dropped; an iteration's time is the longest of any rank; the median of a placement's iterations is one observation;
random placements of ranks on hosts give the distribution.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from . import data
from .cluster import Cluster, Loopback
from .conductor import Group, GroupFailed, Timing, drain_seconds
from .contenders import CONTENDERS, Place, make
from .floor import received_bytes
from .oracle import solve
from .protocol import Job
from .scenario import BadScenario, Scenario

Log = Callable[[str], None]


@dataclass
class Result:
    """Results of a run. Times in seconds, one list per placement, without the first iteration.

    ``least_bytes``: for each known schedule, the least bytes that a rank receives in it (`floor`).
    """

    scenario: Scenario
    nnz: list[int]
    union: int
    least_bytes: dict[str, float]
    times: dict[str, list[list[float]]] = field(default_factory=dict)
    spans: dict[str, list[list[float]]] = field(default_factory=dict)
    skews: list[float] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _ContenderFailed(Exception):
    contender: str
    reason: str


def run(scenario: Scenario, log: Log) -> Result:
    """Measure a scenario; ``log`` receives lines of progress."""
    unknown = [name for name in scenario.contenders if name not in CONTENDERS]
    if unknown:
        raise BadScenario(f"no such contender: {', '.join(unknown)}; there are {', '.join(CONTENDERS)}")
    log(f"making the inputs of {scenario.hosts} ranks")
    with tempfile.TemporaryDirectory(prefix="skylab-") as temporary:
        folder = Path(temporary)
        result = _inputs(scenario, folder)
        names = _present(scenario, result)
        hosts: Cluster | Loopback = Loopback(scenario.hosts)
        if scenario.network == "namespaces":
            hosts = Cluster(scenario.hosts, scenario.rate, scenario.burst)
        with hosts:
            rng = np.random.default_rng(scenario.seed)
            for number in range(scenario.placements):
                placement = rng.permutation(scenario.hosts).tolist()
                while names:
                    log(f"placement {number + 1} of {scenario.placements}: rank r on host {placement}")
                    try:
                        _measure(result, hosts, placement, names, folder)
                        break
                    except _ContenderFailed as failure:
                        log(f"{failure.contender} is out: {failure.reason}")
                        result.failed[failure.contender] = failure.reason
                        names = [name for name in names if name != failure.contender]
                        result.times.pop(failure.contender, None)
                        result.spans.pop(failure.contender, None)
    return result


def _inputs(scenario: Scenario, folder: Path) -> Result:
    """Make inputs and answer, write them to files, and compute the least bytes that the links must carry."""
    inputs = data.make(scenario)
    for rank, held in enumerate(inputs):
        data.save(held, folder, rank)
    oracle = solve(inputs, scenario.op, scenario.dtype)
    oracle.save(folder)
    itemsize = np.dtype(scenario.dtype).itemsize
    sets = [held.indices for held in inputs if held.indices is not None]
    if len(sets) < len(inputs):
        least_bytes = {"dense": 2 * (scenario.hosts - 1) / scenario.hosts * scenario.n * itemsize}
    else:
        least_bytes = received_bytes(sets, scenario.n, itemsize)
    return Result(scenario, [len(held.values) for held in inputs], len(oracle.values), least_bytes)


def _present(scenario: Scenario, result: Result) -> list[str]:
    """The contenders that can take part."""
    names = []
    for name in scenario.contenders:
        contender = make(name)
        reason = contender.missing()
        if reason is None and scenario.op not in contender.ops:
            reason = f"it has no {scenario.op}"
        if reason is None:
            names.append(name)
        else:
            result.absent[name] = reason
    return names


def _measure(result: Result, hosts: Cluster | Loopback, placement: list[int], names: list[str], folder: Path) -> None:
    """One placement: all contenders' iterations, in turn."""
    scenario = result.scenario
    timings: dict[str, list[Timing]] = {name: [] for name in names}
    drain_s = drain_seconds(scenario.burst, scenario.rate_bits)
    jobs, mpi = _jobs(scenario, hosts, placement, folder), any(make(name).mpi for name in names)
    current = names[0]
    try:
        with Group(hosts, placement, jobs, mpi, folder / "log") as group:
            for current in names:
                group.request("setup", current, limit_s=scenario.limit_s)
            for turn in range(scenario.iterations):
                for current in names:
                    if _is_due(turn, scenario.iterations_of(current), scenario.iterations):
                        timings[current].append(group.iterate(current, scenario.limit_s, drain_s))
    except GroupFailed as error:
        raise _ContenderFailed(current, str(error)) from None
    for name in names:
        counted = timings[name][1:]
        result.times.setdefault(name, []).append([timing.longest_s for timing in counted])
        result.spans.setdefault(name, []).append([timing.span_s for timing in counted])
        result.skews += [timing.skew_s for timing in counted]


def _is_due(turn: int, wanted: int, turns: int) -> bool:
    """True if a contender with fewer iterations runs in this turn; its iterations are spread evenly."""
    return turn * wanted // turns != (turn - 1) * wanted // turns


def _jobs(scenario: Scenario, hosts: Cluster | Loopback, placement: list[int], folder: Path) -> list[Job]:
    addresses = tuple(hosts.address(host) for host in placement)
    numbers = ports(scenario.hosts)
    return [
        Job(
            Place(rank, scenario.hosts, addresses, numbers, scenario.n, scenario.dtype, scenario.op),
            folder,
            scenario.rate_bits,
        )
        for rank in range(scenario.hosts)
    ]


def ports(ranks: int) -> tuple[int, int, int]:
    """Free ports of this machine for the rendezvous of groups, and the first of consecutive ports for plain TCP."""
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        consecutive = 20_000 + int(np.random.default_rng().integers(10_000 - ranks))
        return first.getsockname()[1], second.getsockname()[1], consecutive
