"""Topology: the hosts of a group and their racks, from a file, from hosts' names or from measured times.

Ranks that name the same machine share a host. Racks are found by agglomerative clustering (average linkage, cut at the
largest gap): the nearest hosts are joined first, until the next distance is much larger than the one before. Distance
is latency; if all latencies are equal it is the inverse of the rate, because a link that racks share may have a low
rate without a higher latency.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from ..errors import BadInput
from .hosts import read_hosts, read_racks
from .json_reader import JsonReader
from .planner import read_profile, read_text

__all__ = ["Topology", "cluster", "groups", "racks", "scattered"]

Matrix = npt.NDArray[np.float64]

#: Least ratio of the distance of hosts in other racks to that of hosts in the same rack. Latencies of one network vary
#: by less between measurements.
GAP = 1.6


@dataclass(frozen=True, eq=False)
class Topology:
    """Hosts and racks of the ranks of a group, and measured times between them.

    A butterfly arranges its layers by the topology: first the ranks of a host exchange messages, then the hosts of a
    rack. If the degrees of the first layers multiply to the ranks of a host, each host sends a reduced entry over the
    network once.

    Attributes
    ----------
    hosts : list of list of int
        Ranks of each host.
    racks : list of list of int
        Hosts of each rack, as positions in ``hosts``.
    latency_s, rate : array of shape (P, P), or (0, 0) without measurements
        Seconds until a small message arrives, and bytes a second of a stream, for each pair; NaN if not measured.

    Examples
    --------
    >>> import skyphos as sky
    >>> sky.Topology.of(["n1", "n2", "n1", "n2"], racks=["left", "right", "left", "right"])
    Topology(4 ranks on 2 hosts in 2 racks)
    """

    hosts: list[list[int]]
    racks: list[list[int]]
    latency_s: Matrix = field(default_factory=lambda: np.empty((0, 0)))
    rate: Matrix = field(default_factory=lambda: np.empty((0, 0)))

    @classmethod
    def of(cls, hosts: Sequence[object], racks: Sequence[object] | None = None) -> Topology:
        """Make a topology from the names of each rank's host and rack; without racks all hosts are in one.

        Raises
        ------
        BadInput
            If the numbers of racks and hosts differ, or a host is in two racks.
        """
        names = [str(host) for host in hosts]
        if not names:
            raise BadInput("a topology has at least one rank")
        if racks is None:
            racks = [""] * len(names)
        if len(racks) != len(names):
            raise BadInput(f"{len(names)} hosts and {len(racks)} racks: pass one host and one rack for each rank")
        found = groups(names)
        for ranks in found:
            different = {str(racks[rank]) for rank in ranks}
            if len(different) > 1:
                raise BadInput(f"host {names[ranks[0]]} is in more than one rack: {', '.join(sorted(different))}")
        return cls(found, groups([str(racks[ranks[0]]) for ranks in found]))

    @classmethod
    def at(cls, hosts: Sequence[tuple[str, str]], racks: Sequence[object]) -> Topology:
        """Like :meth:`of`, with name and address of each rank's host: two hosts may have the same name.

        Examples
        --------
        >>> import skyphos as sky
        >>> sky.Topology.at([("n1", "10.0.0.1"), ("n1", "10.0.0.2")], ["left", "left"])
        Topology(2 ranks on 2 hosts in 1 rack)
        """
        return cls.of([f"{host} {address}" for host, address in hosts], racks)

    @classmethod
    def load(cls, path: str | os.PathLike[str], hosts: Sequence[tuple[str, str]]) -> Topology:
        """Read the racks of a group's hosts from a file.

        Parameters
        ----------
        path : path
            Lines of a host's name or address and its rack's name, with comments after ``#``; or a file of
            ``skyphos probe``.
        hosts : sequence of (str, str)
            Name and address of each rank's host.

        Raises
        ------
        BadInput
            If the file cannot be read or parsed, or a host has no rack or two racks.
        """
        name = os.fspath(path)
        text = read_text(name)
        probed = text.lstrip().startswith("{")
        rack_of = _probed_racks(text, name) if probed else _racks_in(text, name)
        racks: list[str] = []
        for rank, (host, address) in enumerate(hosts):
            # In a probe's file names take precedence: an address may belong to another host now.
            keys = [host] if probed and host in rack_of else [host, address]
            racks_found = {rack_of[key]: None for key in keys if key in rack_of}
            if not racks_found:
                raise BadInput(f"{name}: rank {rank} runs on {host} ({address}), which is not in the file")
            if len(racks_found) > 1:
                raise BadInput(
                    f"{name}: rank {rank} runs on {host} ({address}), which is in rack "
                    f"{' and in rack '.join(racks_found)}: by its name in one, by its address in the other"
                )
            racks.extend(racks_found)
        return cls.at(hosts, racks)

    @classmethod
    def by_names(cls, pattern: str | re.Pattern[str], hosts: Sequence[tuple[str, str]]) -> Topology:
        """Find racks in hosts' names (*Twister*, section 4.5).

        Parameters
        ----------
        pattern : str or re.Pattern
            Searched in each name. The text of its groups names the rack; without groups, the whole match.
        hosts : sequence of (str, str)
            Name and address of each rank's host.

        Raises
        ------
        BadInput
            If the pattern is not a regular expression, or does not match a name.

        Examples
        --------
        >>> import skyphos as sky
        >>> hosts = [(f"r{rack}n{node}", "") for rack in (1, 2) for node in range(3)]
        >>> sky.Topology.by_names("r([0-9]+)n", hosts)
        Topology(6 ranks on 6 hosts in 2 racks)
        """
        try:
            known = re.compile(pattern)
        except re.error as error:
            raise BadInput(
                f"{pattern!r}, which should find racks in hosts' names, is not a regular expression: {error}"
            ) from None
        racks = []
        for rank, (host, address) in enumerate(hosts):
            found = known.search(host)
            if found is None:
                raise BadInput(
                    f"{known.pattern!r}, which should find racks in hosts' names, does not match that of rank {rank}'s "
                    f"host, {host} ({address})"
                )
            racks.append(found.groups("") if known.groups else found[0])
        return cls.at(hosts, racks)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(len(ranks) for ranks in self.hosts)

    def numbers(self) -> tuple[list[int], list[int]]:
        """The number of each rank's host, and of its rack.

        Raises
        ------
        BadInput
            If a rank or host is missing or repeated.

        Examples
        --------
        >>> from skyphos.planning import Topology
        >>> Topology([[0, 2], [1]], [[0], [1]]).numbers()
        ([0, 1, 0], [0, 1, 0])
        """
        if sorted(chain(*self.hosts)) != list(range(self.size)):
            raise BadInput(f"hosts must have each of the ranks 0 to {self.size - 1} once, not {self.hosts}")
        if sorted(chain(*self.racks)) != list(range(len(self.hosts))):
            raise BadInput(f"racks must have each of the hosts 0 to {len(self.hosts) - 1} once, not {self.racks}")
        host_of = {rank: host for host, ranks in enumerate(self.hosts) for rank in ranks}
        rack_of = {host: rack for rack, hosts in enumerate(self.racks) for host in hosts}
        ordered = [host_of[rank] for rank in range(self.size)]
        return ordered, [rack_of[host] for host in ordered]

    def __repr__(self) -> str:
        def count(items: Sequence[object], what: str) -> str:
            return f"{len(items)} {what}{'s' * (len(items) != 1)}"

        ranks = count(range(self.size), "rank")
        return f"Topology({ranks} on {count(self.hosts, 'host')} in {count(self.racks, 'rack')})"


def _probed_racks(text: str, name: str) -> dict[str, str]:
    """The rack of each host's name and address, from the file of a probe."""
    at = JsonReader(read_profile(text, name)[1], name)
    known = read_hosts(at, at.whole("ranks"))
    return {
        key: str(number)
        for number, rack in enumerate(read_racks(at.part("topology"), len(known)))
        for host in rack
        for key in (known[host].name, known[host].address)
    }


def _racks_in(text: str, name: str) -> dict[str, str]:
    """The rack of each host, from lines of a host and its rack."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise BadInput(f"{name}:{number}: a line must be a host and its rack, not {line.strip()!r}")
        host, rack = words
        if found.setdefault(host, rack) != rack:
            raise BadInput(f"{name}:{number}: {host} is in rack {found[host]} already")
    return found


def groups(names: Sequence[str]) -> list[list[int]]:
    """Positions of equal names, in the order in which the names first appear.

    Examples
    --------
    >>> from skyphos.planning.topology import groups
    >>> groups(["a", "b", "a"])
    [[0, 2], [1]]
    """
    found: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        found.setdefault(name, []).append(place)
    return list(found.values())


def cluster(distance: Matrix, gap: float = GAP) -> list[list[int]]:
    """Clusters of points that are separated by a gap in their distances; one cluster if there is no gap.

    Parameters
    ----------
    distance : array of shape (m, m)
        Symmetric; NaN for unknown distances. The diagonal is ignored.
    gap : float
        Clustering ends before a merge whose distance is at least this many times that of the previous merge.

    Returns
    -------
    list of list of int
        Points of each cluster, ascending, by their first point.

    Notes
    -----
    Average linkage (UPGMA): the distance of two clusters is the mean over their known pairs. O(m³).

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos.planning.topology import cluster
    >>> place = np.array([0.0, 1.0, 10.0, 11.5])
    >>> cluster(abs(place[:, None] - place))
    [[0, 1], [2, 3]]
    """
    clusters = [[point] for point in range(len(distance))]
    history = [clusters]
    heights: list[float] = []
    while len(clusters) > 1:
        best, height = (0, 1), np.inf
        for i in range(len(clusters)):
            for j in range(i + 1, len(clusters)):
                pairs = distance[np.ix_(clusters[i], clusters[j])]
                known = pairs[np.isfinite(pairs)]
                if known.size and known.mean() < height:
                    best, height = (i, j), float(known.mean())
        if not np.isfinite(height):  # no known distances remain
            break
        joined = sorted(clusters[best[0]] + clusters[best[1]])
        clusters = sorted([joined, *(c for k, c in enumerate(clusters) if k not in best)])
        history.append(clusters)
        heights.append(max(height, heights[-1] if heights else 0.0))
    jumps = [after / max(before, 1e-12) for before, after in pairwise(heights)]
    if not jumps or max(jumps) < gap:
        return history[-1]
    # The clusters before the merge with the largest jump.
    return history[int(np.argmax(jumps)) + 1]


def _are_apart(distance: Matrix, found: list[list[int]]) -> bool:
    """True if all points of each cluster are nearer to each other than to any other point."""
    cluster_of = np.empty(len(distance), int)
    for number, members in enumerate(found):
        cluster_of[members] = number
    same = cluster_of[:, None] == cluster_of
    off_diagonal = ~np.eye(len(cluster_of), dtype=bool)
    with np.errstate(invalid="ignore"):
        return bool(np.nanmax(distance[same & off_diagonal]) < np.nanmin(distance[~same]))


def racks(hosts: Sequence[Sequence[int]], latency_s: Matrix, rate: Matrix, gap: float = GAP) -> list[list[int]]:
    """Group hosts into racks.

    Parameters
    ----------
    hosts : sequence of sequence of int
        Ranks of each host.
    latency_s, rate : arrays of shape (P, P)
        Seconds and bytes a second of each pair of ranks; NaN if not measured.

    Returns
    -------
    list of list of int
        Racks of positions in ``hosts``; a single rack if there is no gap.

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos.planning.topology import racks
    >>> near = np.array([[0, 10, 50, 52], [10, 0, 55, 50], [50, 55, 0, 11], [52, 50, 11, 0]]) * 1e-6
    >>> racks([[0], [1], [2], [3]], near, np.ones((4, 4)))
    [[0, 1], [2, 3]]
    """
    for distance in (latency_s, 1.0 / np.maximum(rate, 1e-9)):
        between = np.full((len(hosts), len(hosts)), np.nan)
        for i, mine in enumerate(hosts):
            for j, theirs in enumerate(hosts):
                pairs = distance[np.ix_(mine, theirs)]
                known = pairs[np.isfinite(pairs)]
                if i != j and known.size:
                    between[i, j] = np.median(known)
        found = cluster(between, gap)
        # Two hosts may be near by chance. Accept racks only if most hosts share one with another host, and the hosts of
        # a rack are nearer to each other than to other hosts.
        hosts_that_share = sum(len(rack) for rack in found if len(rack) > 1)
        if len(found) > 1 and hosts_that_share >= 0.75 * len(hosts) and _are_apart(between, found):
            return found
    return [list(range(len(hosts)))]


def scattered(hosts: Sequence[Sequence[int]], latency_s: Matrix) -> list[int]:
    """Hosts whose ranks are farther from each other than from ranks of other hosts, so perhaps several machines.

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos.planning.topology import scattered
    >>> far = np.array([[0, 9, 5], [9, 0, 5], [5, 5, 0]]) * 1e-5
    >>> scattered([[0, 1], [2]], far)
    [0]
    """
    found = []
    for place, host in enumerate(hosts):
        others = [rank for other in hosts if other is not host for rank in other]
        inside = latency_s[np.ix_(host, host)][~np.eye(len(host), dtype=bool)]
        inside, outside = inside[np.isfinite(inside)], latency_s[np.ix_(host, others)]
        outside = outside[np.isfinite(outside)]
        if inside.size and outside.size and np.median(inside) > GAP * np.median(outside):
            found.append(place)
    return found
