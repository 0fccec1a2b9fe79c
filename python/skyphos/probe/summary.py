"""Summary of a probe, as lines for a terminal."""

from __future__ import annotations

import numpy as np

from ..planning.planner import Profile
from ..planning.profile_file import Measured
from ..planning.topology import scattered
from ..text.quantities import fine_seconds, human_bytes

__all__ = ["exchange_time", "half_rate", "host_names", "summary", "transport"]

#: Results of rounds that differ by less than this factor are shown as one number.
_ONE_NUMBER = 1.2


def host_names(found: Measured) -> list[str]:
    """Names of the hosts; with their addresses where names repeat."""
    names = [host.name for host in found.hosts]
    return [f"{h.name} {h.address}" if names.count(h.name) > 1 else h.name for h in found.hosts]


def transport(found: Measured) -> str:
    """The transport within a host and between hosts."""
    if not found.shared_memory:
        return found.transport
    return "shared memory" if len(found.hosts) == 1 else f"{found.transport}, within a host shared memory"


def half_rate(found: Measured) -> str:
    """The half-rate size; a range if the rounds of the measurement differ by more than a fifth."""
    low, high = found.half_rate_low_bytes, found.half_rate_high_bytes
    if high <= _ONE_NUMBER * low:
        return human_bytes(found.half_rate_bytes)
    return f"{human_bytes(low)} to {human_bytes(high)}, as rounds differ"


def _around(profile: Profile) -> str:
    """The rate around a ring, if it differs."""
    return "" if profile.ring_gain == 1 else f" ({human_bytes(profile.rate * profile.ring_gain)}/s around a ring)"


def exchange_time(profile: Profile) -> str:
    """How long a message takes when all ranks exchange, as text."""
    if profile.call_s > 0:
        return f"{fine_seconds(profile.call_s)} more a call, until all ranks have had a turn"
    return f"{fine_seconds(profile.latency_s)} when all ranks exchange"


def _share(found: Measured) -> str:
    """The share of a core, with a note if other programs used the hosts."""
    possible = min(1.0, found.machine["cores"] / max(len(host.ranks) for host in found.hosts))
    busy = f"; a rank would have {possible:.2f} if no other program ran: probe again then"
    return f"{found.profile.cores:.2f}" + (busy if found.profile.cores < 0.75 * possible else "")


def summary(found: Measured) -> str:
    """The findings as lines of two columns.

    Notes
    -----
    Rates count payload bytes, in frames over the group's transport.
    """
    profile, loggp, topology = found.profile, found.loggp, found.topology
    with np.errstate(all="ignore"):
        least, most = np.nanmin(topology.latency_s), np.nanmax(topology.latency_s)
        slow, fast = np.nanmin(topology.rate), np.nanmax(topology.rate)
    hosts, racks = len(found.hosts), len(topology.racks)
    where = f"{hosts} host{'s' * (hosts > 1)}" + (f" in {racks} racks" if racks > 1 else "")
    lines = [
        ("ranks", f"{found.ranks} on {where}, over {transport(found)}"),
        ("latency of a pair", f"{fine_seconds(least)} to {fine_seconds(most)}; {exchange_time(profile)}"),
        ("rate of a pair", f"{human_bytes(slow)}/s to {human_bytes(fast)}/s, a stream one way"),
        (
            "rate of a rank",
            f"{human_bytes(profile.rate)}/s each way, all at once{_around(profile)}; a stream alone "
            f"{human_bytes(1 / loggp.G_s)}/s",
        ),
        ("half of the best rate", f"at messages of {half_rate(found)}"),
        (
            "LogGP",
            f"L {fine_seconds(loggp.L_s)}, o_s {fine_seconds(loggp.o_s_s)}, o_r {fine_seconds(loggp.o_r_s)}, "
            f"g {fine_seconds(loggp.g_s)}, G {fine_seconds(loggp.G_s)} a byte",
        ),
        ("many to one", f"{profile.incast:.1%} longer for each further sender"),
        ("share of a core", _share(found)),
        ("copying memory", f"{human_bytes(found.machine['copy_rate'])}/s"),
        (
            "matrix products",
            f"{found.machine['float32_gflops']:.1f} GFLOP/s a rank in float32, "
            f"{found.machine['float64_gflops']:.1f} in float64",
        ),
    ]
    names = host_names(found)
    lines += [
        ("look at", f"{names[host]}: its ranks are farther from each other than from those of other hosts")
        for host in scattered([host.ranks for host in found.hosts], topology.latency_s)
    ]
    return "\n".join(f"{name:<22} {words}" for name, words in lines)
