"""Choice of a new group's profile and topology, and adaptation of a profile to another group than the measured one.

The first of these counts: the argument of :func:`skyphos.init`; ``SKYPHOS_PROFILE`` (a path, or ``none``); the user's
own file (:func:`default_path`), if it was measured on exactly these hosts. Racks come from the argument, from
``SKYPHOS_TOPOLOGY``, or from that profile if it was measured on these hosts. Only rank 0 reads files and sends the
numbers to the others, so files that differ, or exist on one machine only, cannot make ranks choose differently.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from .. import _skyphos as native
from ..errors import BadInput, SkyphosError, text_of
from ..inputs import variables
from .planner import Profile, read_profile, read_text

# Readers of files are imported when there is a file: most programs have none.
if TYPE_CHECKING:
    from .profile_file import Measured
    from .topology import Topology

__all__ = [
    "Fitted", "ProfileSource", "TopologySource",
    "begin_replicated", "begin_with", "default_path", "fit", "host_and_address", "host_words", "read",
]  # fmt: skip

#: Profile arguments of :func:`skyphos.init`.
ProfileSource: TypeAlias = "Profile | Measured | str | os.PathLike[str]"
TopologySource: TypeAlias = "Topology | str | os.PathLike[str] | re.Pattern[str]"

# Prefix of SKYPHOS_TOPOLOGY if it is a pattern for hosts' names.
_BY_NAMES = "names:"


def default_path() -> str:
    """Path of the user's profile: ``$XDG_CONFIG_HOME/skyphos/profile.json``, by default in ``~/.config``."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(folder, "skyphos", "profile.json")


def host_and_address(place: str) -> tuple[str, str]:
    """Name and address of a rank's host, from the transport's text; for ranks of this process, this host and ``""``.

    Examples
    --------
    >>> from skyphos.planning.profile_choice import host_and_address
    >>> host_and_address("n7 (10.0.0.7:41000)")
    ('n7', '10.0.0.7')
    """
    name, bracket, address = place.partition(" (")
    return (name, address.rpartition(":")[0]) if bracket else (os.uname().nodename, "")


@dataclass(frozen=True)
class Fitted:
    """A profile for a group, and the differences between that group and the measured one."""

    profile: Profile
    differences: tuple[str, ...]


@dataclass(frozen=True)
class _Begin:
    """What rank 0 chose for the whole group: the profile, whether ``auto`` learns from calls, and the topology."""

    profile: Profile | None = None
    adapt: bool = True
    topology: Topology | None = None


def begin_with(
    comm: native.Comm, profile: ProfileSource | None, adapt: bool | None, topology: TopologySource | None
) -> native.Comm:
    """Send rank 0's profile and topology, if any, and whether ``auto`` learns from calls, to all ranks of a new group.

    Collective. Returns the group to use, which is another one if there is a topology.

    Raises
    ------
    BadInput
        On all ranks, if rank 0's arguments or the files of SKYPHOS_PROFILE and SKYPHOS_TOPOLOGY are invalid, or
        SKYPHOS_ADAPT is not a boolean.
    """
    begin = _Begin()
    numbers: tuple[list[int], list[int]] | None = None
    if comm.rank == 0:
        try:
            begin = _find(comm, profile, adapt, topology)
            numbers = None if begin.topology is None else begin.topology.numbers()
        except SkyphosError as error:
            raise comm.fail_call(text_of(error)) from None
        except Exception as error:  # a warning that is an error here, or any error of a file system
            comm.fail_call(f"rank 0 cannot take its profile or topology: {text_of(error)}")
            raise
    return native.begin_with(comm, begin.profile, begin.adapt, numbers)


def begin_replicated(
    connected: native.Connected,
    replication: tuple[int, bool],
    profile: ProfileSource | None,
    topology: TopologySource | None,
) -> native.Comm:
    """Make the group of replicated ranks, which start with process 0's profile and topology. Collective.

    Raises
    ------
    BadInput
        As in :func:`begin_with`; also if replicas of a rank share a host.
    """
    begin, error = _Begin(), None
    if connected.rank == 0:
        try:
            begin = _find(connected, profile, False, topology)
        except Exception as caught:  # any error must reach all ranks
            known = isinstance(caught, SkyphosError)
            message = text_of(caught)
            error = message if known else f"rank 0 cannot take its profile or topology: {message}"
    numbers = None if begin.topology is None else begin.topology.numbers()
    return connected.replicated(*replication, begin.profile, numbers, error)


def _adapts_by_default() -> bool:
    """True if rank 0's environment lets ``auto`` learn from calls."""
    return variables.flag("SKYPHOS_ADAPT") is not False


def _find(
    comm: native.Comm | native.Connected,
    profile: ProfileSource | None,
    adapt: bool | None,
    topology: TopologySource | None,
) -> _Begin:
    """Rank 0's choice for this group."""
    rank_hosts = [host_and_address(comm.address(rank)) for rank in range(comm.size)]
    found, measured = _find_profile(rank_hosts, profile)
    if not isinstance(adapt, bool | None):
        raise BadInput(f"adapt must be True, False or None, not {adapt!r}")
    return _Begin(
        found, _adapts_by_default() if adapt is None else adapt, _find_topology(rank_hosts, topology, measured)
    )


def _find_profile(
    rank_hosts: Sequence[tuple[str, str]], requested: ProfileSource | None
) -> tuple[Profile | None, Measured | None]:
    """The profile, and its measurements, if any."""
    if requested is None:
        named = variables.text("SKYPHOS_PROFILE") or ""
        if named.lower() == "none":
            return None, None
        if not named:
            return _users_own(rank_hosts)
        requested = named
    found = read(requested)
    if isinstance(found, Profile):
        return found, None
    from ..launch.local import cores

    fitted = fit(found, rank_hosts, cores())
    if fitted.differences:
        what = f"the profile {os.fspath(requested)}" if isinstance(requested, str | os.PathLike) else "the profile"
        _warn(
            f"{what} was measured on another group: {'; '.join(fitted.differences)}. Its numbers are adapted; "
            "`skyphos probe` measures this group."
        )
    return fitted.profile, found


def _find_topology(
    rank_hosts: Sequence[tuple[str, str]], requested: TopologySource | None, measured: Measured | None
) -> Topology | None:
    """The topology that was named or measured; None: only hosts are distinguished, not racks."""
    from .topology import Topology

    if requested is None:
        named = variables.text("SKYPHOS_TOPOLOGY") or ""
        if named.lower() == "none":
            return None
        requested = named or None
    if requested is None:
        same_hosts = measured is not None and {host.name for host in measured.hosts} == {name for name, _ in rank_hosts}
        if measured is None or not same_hosts or len(measured.topology.racks) == 1:
            return None
        rack_of = {measured.hosts[host].name: k for k, rack in enumerate(measured.topology.racks) for host in rack}
        return Topology.at(rank_hosts, [rack_of[name] for name, _ in rank_hosts])
    pattern = _pattern_in(requested)
    if pattern is not None:
        return Topology.by_names(pattern, rank_hosts)
    if isinstance(requested, str | os.PathLike):
        return Topology.load(requested, rank_hosts)
    if not isinstance(requested, Topology):
        raise BadInput(f"topology must be a path, a pattern or a skyphos.Topology, not {type(requested).__name__}")
    if requested.size != len(rank_hosts):
        raise BadInput(f"the topology has {requested.size} ranks, but this group has {len(rank_hosts)}")
    return requested


def _pattern_in(requested: TopologySource) -> str | re.Pattern[str] | None:
    """The pattern that extracts racks from hosts' names, if there is one."""
    if isinstance(requested, str) and requested.startswith(_BY_NAMES):
        return requested.removeprefix(_BY_NAMES)
    return requested if isinstance(requested, re.Pattern) else None


def _users_own(rank_hosts: Sequence[tuple[str, str]]) -> tuple[Profile | None, Measured | None]:
    """The user's own file, if it was measured on these hosts. Its errors are warnings only."""
    path = default_path()
    if not os.path.exists(path):
        return None, None
    from ..launch.local import cores
    from .profile_file import Measured

    try:
        found = Measured.load(path)
        if {host.name for host in found.hosts} != {name for name, _ in rank_hosts}:
            return None, None
        return fit(found, rank_hosts, cores()).profile, found
    except Exception as error:  # a file may cause any error
        named = str(error) if isinstance(error, BadInput) else f"{path}: {type(error).__name__}: {error}"
    _warn(f"not used: {named}")
    return None, None


def _warn(words: str) -> None:
    """Warn, at the line outside this package from which it was called."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "skyphos":
        frame, level = frame.f_back, level + 1
    warnings.warn(words, stacklevel=level)


def read(source: ProfileSource) -> Profile | Measured:
    """A profile from a path or object: with its measurements, or the bare numbers.

    Raises
    ------
    BadInput
        If the path has no profile, or ``source`` is neither a path nor a profile.
    """
    from .profile_file import Measured

    if isinstance(source, Profile | Measured):
        return source
    if not isinstance(source, str | os.PathLike):
        raise BadInput(f"profile must be a path or a skyphos.planning.Profile, not {type(source).__name__}")
    path = os.fspath(source)
    text = read_text(path)
    profile, found = read_profile(text, path)
    # A file may have the numbers only, without measurements.
    return Measured.from_text(text, path) if set(found) > {"skyphos_profile", "profile"} else profile


def fit(found: Measured, rank_hosts: Sequence[tuple[str, str]], usable_cores: int) -> Fitted:
    """Adapt a profile to the ranks of another group.

    Times of kernels, frames and bytes stay as measured. A rank's share of a core and of its host's link follows from
    the present number of ranks per host. So does the latency on one host, where ranks that share a core run in turn. If
    one group is on one host and the other on several, defaults replace the numbers of the network.

    Parameters
    ----------
    found : Measured
    rank_hosts : sequence of (str, str)
        Name and address of each rank's host.
    usable_cores : int
        Usable cores of a host.

    Examples
    --------
    >>> from skyphos.planning.profile_choice import fit
    >>> fit.__name__
    'fit'
    """
    counts = Counter(rank_hosts)
    before, now = Counter(host.name for host in found.hosts), Counter(name for name, _ in counts)
    ranks_before, ranks_now = max(len(host.ranks) for host in found.hosts), max(counts.values())
    differences = []
    if before != now:
        differences.append(f"it is of {host_words(before)}, and this group runs on {host_words(now)}")
    if ranks_before != ranks_now:
        differences.append(f"it had up to {ranks_before} ranks a host, and this group has up to {ranks_now}")
    profile = found.profile
    if ranks_before == ranks_now and len(counts) == len(found.hosts) and not differences:
        return Fitted(profile, ())
    share = min(1.0, usable_cores / ranks_now)
    one_before, one_now = len(found.hosts) == 1, len(counts) == 1
    if one_before != one_now:
        default = Profile.one_host(ranks_now, usable_cores) if one_now else Profile.network(DEFAULT_RATE)
        network = {"latency_s": default.latency_s, "rate": default.rate, "incast": default.incast, "ring_gain": 1.0}
    elif one_now:
        network = {"latency_s": profile.latency_s * max(1.0, profile.cores / share)}
    else:
        link_rate = max(profile.rate, 1.0 / max(found.loggp.G_s, 1e-15))
        rate = min(link_rate, profile.rate * ranks_before / ranks_now)
        # Around a ring only one rank of a host sends to another host, whatever the number of ranks.
        network = {"rate": rate, "ring_gain": profile.ring_gain * profile.rate / rate}
    return Fitted(replace(profile, cores=share, **network), tuple(differences))


#: Default rate between hosts in bytes a second, without a measurement: 1 Gbit/s.
DEFAULT_RATE = 118e6


def host_words(names: Counter[str]) -> str:
    """Names of the first few hosts, with the number of ranks on each.

    Examples
    --------
    >>> from collections import Counter
    >>> from skyphos.planning.profile_choice import host_words
    >>> host_words(Counter(["n2", "n1", "n2"]))
    'n1, n2 (2 of them)'
    """
    listed = [name if count == 1 else f"{name} ({count} of them)" for name, count in sorted(names.items())]
    return ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")
