"""Profile file, written by ``skyphos probe``: a profile for the planner, and the measurements that it was fitted to.

The format is JSON. ``{"skyphos_profile": 1, "profile": {…}}`` is what :meth:`skyphos.planning.Profile.load` needs; the
rest says where and when it was measured, and is drawn on the page. Units are bytes, seconds, and bytes a second; pairs
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
    """Messages of one size: ``seconds`` one way of a pair while the others wait (median; ``low_s`` and ``high_s`` are
    quartiles), and ``together_s`` while all ranks are in pairs at once."""

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
        What the planner goes by.
    hosts : list of Host
        Machines, by their first rank.
    ranks : int
    transport : str
    measured : str
        When, as ISO 8601.
    seconds : float
        How long it took.
    topology : Topology
    loggp : LogGP
        Of one pair, of two hosts if there are two.
    curve : list of Point
        Time against size, ascending.
    half_rate_bytes : float
        Least size that is moved at half of the best rate (*Kylix*: the minimum efficient packet): the median of rounds
        of measuring it.
    half_rate_low_bytes, half_rate_high_bytes : float
        The least and the largest that a round came to. They differ where ranks of a host now poll for a message and now
        sleep until it comes, which takes a tenth of the time, or where the machine does other work.
    shared_memory : bool
        Whether ranks of a host exchange through memory that they share, whatever is between hosts.
    incast : list of (int, float)
        How many send to one rank at once, and the bytes a second that they reach together.
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
            It cannot be read, is damaged, or is a bare profile; says what is wrong where.
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
            # Files of earlier versions have neither these nor the next.
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
