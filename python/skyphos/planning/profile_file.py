"""Profile file, written by ``skyphos probe``: a profile for the planner, and the measurements to which it was fitted.

The format is JSON. ``{"skyphos_profile": 1, "profile": {…}}`` is what :meth:`skyphos.planning.Profile.load` needs; the
rest are place and time of the measurement, and values for the page. Units are bytes, seconds, and bytes a second; pairs
that were not measured are ``null``.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, fields
from itertools import pairwise

from .hosts import Host, read_hosts, read_racks
from .json_reader import JsonReader
from .loggp import LogGP
from .planner import FORMAT, Profile, read_profile, read_text
from .topology import Matrix, Topology

__all__ = ["Host", "Measured", "Point"]


@dataclass(frozen=True)
class Point:
    """Messages of one size: the one-way time of a pair while other ranks wait (``seconds`` is the median, ``low_s`` and
    ``high_s`` are quartiles), and ``together_s`` while all ranks send in pairs at once."""

    size: int
    seconds: float
    low_s: float
    high_s: float
    together_s: float


@dataclass(frozen=True, eq=False)
class Measured:
    """Result of :func:`skyphos.probe.probe`.

    Attributes
    ----------
    profile : Profile
        Parameters for the planner.
    hosts : list of Host
        Machines, in the order of their first ranks.
    ranks : int
    transport : str
    measured : str
        Time of the measurement, as ISO 8601.
    seconds : float
        Duration of the measurement.
    topology : Topology
    loggp : LogGP
        Parameters of one pair, on two hosts if there are several.
    curve : list of Point
        Times by size, ascending.
    half_rate_bytes : float
        Smallest size that reaches half of the best rate (*Kylix*: the minimum efficient packet): the median over
        rounds.
    half_rate_low_bytes, half_rate_high_bytes : float
        The smallest and the largest value of a round. They differ if ranks of a host poll for messages in some rounds
        and sleep in others, or if the machine does other work.
    shared_memory : bool
        Whether ranks of a host exchange messages through shared memory.
    incast : list of (int, float)
        Number of ranks that send to one rank at once, and their total rate in bytes a second.
    machine : dict
        See :func:`skyphos.probe.measure_machine`.
    """

    profile: Profile
    hosts: list[Host]
    ranks: int
    transport: str
    measured: str
    seconds: float
    topology: Topology
    loggp: LogGP
    curve: list[Point]
    half_rate_bytes: float
    half_rate_low_bytes: float
    half_rate_high_bytes: float
    shared_memory: bool
    incast: list[tuple[int, float]]
    machine: dict[str, float]

    def to_json(self) -> str:
        """The text of the file."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        known |= {
            "profile": asdict(self.profile),
            "hosts": [asdict(host) for host in self.hosts],
            "topology": {
                "racks": self.topology.racks,
                "latency_s": _rows(self.topology.latency_s),
                "rate": _rows(self.topology.rate),
            },
            "loggp": asdict(self.loggp),
            "curve": [asdict(point) for point in self.curve],
            "incast": [{"senders": senders, "rate": rate} for senders, rate in self.incast],
        }
        return json.dumps({"skyphos_profile": FORMAT} | known, indent=1, allow_nan=False) + "\n"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Measured:
        """Read a file that ``skyphos probe`` wrote.

        Raises
        ------
        BadInput
            If the file cannot be read, is damaged, or has only a profile; the text has the position.
        """
        name = os.fspath(path)
        return cls.from_text(read_text(name), name)

    @classmethod
    def from_text(cls, text: str, name: str) -> Measured:
        """Read the text of such a file; ``name`` is its name in errors."""
        profile, found = read_profile(text, name)
        at = JsonReader(found, name)
        ranks = at.whole("ranks")
        hosts = read_hosts(at, ranks)
        topology, loggp, machine = at.part("topology"), at.part("loggp"), at.part("machine")
        rack_list = read_racks(topology, len(hosts))
        curve = [
            Point(p.whole("size"), *(p.number(k) for k in ("seconds", "low_s", "high_s", "together_s")))
            for p in at.parts("curve")
        ]
        if not curve or any(a.size >= b.size for a, b in pairwise(curve)):
            at.fail("curve", "must be a list of points of ascending size")
        return cls(
            profile=profile,
            hosts=hosts,
            ranks=ranks,
            transport=at.text("transport"),
            measured=at.text("measured"),
            seconds=at.number("seconds"),
            topology=Topology(
                [list(host.ranks) for host in hosts],
                rack_list,
                topology.matrix("latency_s", ranks),
                topology.matrix("rate", ranks),
            ),
            loggp=LogGP(**{field.name: loggp.number(field.name) for field in fields(LogGP)}),
            curve=curve,
            half_rate_bytes=at.number("half_rate_bytes"),
            # Files of earlier versions lack half_rate_low_bytes, half_rate_high_bytes and shared_memory.
            half_rate_low_bytes=at.number(
                "half_rate_low_bytes" if "half_rate_low_bytes" in found else "half_rate_bytes"
            ),
            half_rate_high_bytes=at.number(
                "half_rate_high_bytes" if "half_rate_high_bytes" in found else "half_rate_bytes"
            ),
            shared_memory=at.truth("shared_memory") if "shared_memory" in found else False,
            incast=[(step.whole("senders"), step.number("rate")) for step in at.parts("incast")],
            machine={key: machine.number(key) for key in machine.names()},
        )


def _rows(matrix: Matrix) -> list[list[float | None]]:
    return [[float(x) if math.isfinite(x) else None for x in row] for row in matrix]
