"""Many senders at one port, measured in the lab. The simulation of *Kylix*'s Figure 6 needs it.

Two patterns of plain TCP flows (`lab.flows`) between 8 hosts:

*to one*: k hosts send one message of 0.8 MB each to one host at once; k = 1 to 7, then 7 hosts with 9 messages each.
The slowdown relative to k = 1, beyond that of the bytes, is the simulator's `incast`.

*all to all*: each host sends on as many flows, and receives on as many, as a rank has neighbours in a layer (1 to 63).
They carry equal parts of 50.4 MB, the values of a rank that has one of 64 parts of *Kylix*'s Twitter graph; the host
keeps one part. The result is the number of messages that wait for a time-out of TCP, and for how long.

The switch's port to a host buffers at most 1 MB, like real switches. Rates are below the paper's 10 Gbit/s (two cores
carry no more), but a port's drops depend on packets and buffers, and TCP's minimum time-out is 200 ms at any rate. So
a faster link shortens the transfer of the bytes, but not a time-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lab.cluster import Cluster
from lab.flows import Flows, Turn
from lab.link import rate_bits, seconds
from skyphos.planning.loggp import incast_share

from .graphs import TWITTER
from .style import COLOURS, MARKERS, Log, new, plain_numbers, size_name

TITLE = "Incast: many senders at one port"
NEEDS_ROOT = True
HOSTS, FLOWS = 8, 9
BURST = "2k"  # packets pass one by one
TO_ONE_RATE, ALL_RATE = "250mbit", "100mbit"
#: Bytes of a port's buffer, and TCP as of today or without the loss recovery added since 2012.
SETTINGS = ((1 << 20, "today"), (256 << 10, "today"), (128 << 10, "today"), (128 << 10, "plain"))
#: Neighbours of each host, flows to each of them, and repetitions: layers of degree 2, 4, 8, about 16 and 32, 64.
ALL_TO_ALL = ((1, 1, 1), (3, 1, 2), (7, 1, 4), (7, 2, 2), (7, 4, 2), (7, 9, 4))


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Both patterns for each buffer and each TCP."""
    held = round(TWITTER.entries(64)) * 4
    found = []
    for port_buffer, tcp in SETTINGS[2:3] if quick else SETTINGS:
        log(f"{setting_name(port_buffer, tcp)}: to one, then all to all")
        with Cluster(HOSTS, TO_ONE_RATE, BURST, port_buffer) as cluster, Flows(cluster, FLOWS, tcp) as flows:
            to_one = _to_one(flows, held // 64, quick)
        with Cluster(HOSTS, ALL_RATE, BURST, port_buffer) as cluster, Flows(cluster, FLOWS, tcp) as flows:
            all_to_all = (
                [_all_to_all(flows, held // 8, 7, 1, 1)]
                if quick
                else [_all_to_all(flows, held, *pattern) for pattern in ALL_TO_ALL]
            )
        share = incast_share([p["senders"] for p in to_one], [p["bytes_per_s"] for p in to_one])
        patterns = {"to_one": to_one, "all_to_all": all_to_all}
        found.append({"port_buffer": port_buffer, "tcp": tcp, "incast": share} | patterns)
        log(f"incast {share:.4f}; " + ", ".join(f"{p['flows']}: {100 * late_share(p):.1f} % late" for p in all_to_all))
    return {
        "hosts": HOSTS,
        "held_bytes": held,
        "message_bytes": held // 64,
        "rates": {"to_one": TO_ONE_RATE, "all_to_all": ALL_RATE},
        "settings": found,
    }


def _to_one(flows: Flows, size: int, quick: bool) -> list[dict[str, Any]]:
    points = []
    for hosts, messages, repetitions in [(k, 1, 10) for k in range(1, HOSTS)] + [(HOSTS - 1, FLOWS, 4)]:
        targets = [[0] if 1 <= host <= hosts else [] for host in range(HOSTS)]
        turns = [flows.turn(targets, messages, size) for _ in range(2 if quick else repetitions)]
        points.append(_point(turns, hosts * messages, size, TO_ONE_RATE) | {"senders": hosts * messages})
        if quick and hosts == 2:
            break
    return points


def _all_to_all(flows: Flows, held: int, neighbours: int, messages: int, repetitions: int) -> dict[str, Any]:
    targets = [[(host + step) % HOSTS for step in range(1, neighbours + 1)] for host in range(HOSTS)]
    size = held // (neighbours * messages + 1)
    turns = [flows.turn(targets, messages, size) for _ in range(repetitions)]
    return _point(turns, neighbours * messages, size, ALL_RATE)


def _point(turns: Sequence[Turn], flows: int, size: int, rate: str) -> dict[str, Any]:
    """A measured point of one port's flows; ``messages``: number of all, ``late_s``: delays of those that were late."""
    took = float(np.median([turn.seconds for turn in turns]))
    late = [[round(s, 4) for s in turn.late_s] for turn in turns]
    return {
        "flows": flows,
        "message_bytes": size,
        "seconds": took,
        "of_link": took / seconds(flows * size, rate_bits(rate)),
        "bytes_per_s": flows * size / took,
        "turns": len(turns),
        "turns_with_time_outs": sum(any(one) for one in late),
        "messages": sum(len(one) for one in late),
        "late_s": [s for one in late for s in one if s > 0],
        "retransmitted": sum(turn.retransmitted for turn in turns),
    }


def late_share(point: dict[str, Any]) -> float:
    """Share of messages that waited for a time-out."""
    return float(len(point["late_s"]) / point["messages"])


def setting_name(port_buffer: int, tcp: str) -> str:
    """A setting as text."""
    return f"ports of {size_name(port_buffer)}" + (", TCP as of 2012" if tcp == "plain" else "")


def draw(entry: dict[str, Any]) -> Any:
    """Times of many to one on the left, late messages of all to all on the right."""
    figure, axes = new(2, width=10.5, height=4.8)
    for number, found in enumerate(entry["settings"]):
        look = {"color": COLOURS[2 * number], "marker": MARKERS[number], "markersize": 7 - number, "zorder": 3}
        name = setting_name(found["port_buffer"], found["tcp"])
        points = found["to_one"]
        axes[0].plot([p["senders"] for p in points], [p["of_link"] for p in points], label=name, **look)
        points = found["all_to_all"]
        axes[1].plot([p["flows"] for p in points], [100 * late_share(p) for p in points], **look)
    axes[0].axhline(1, color="#777777", linestyle=":", linewidth=1)
    axes[0].set_ylim(0, 1.1 * max(p["of_link"] for found in entry["settings"] for p in found["to_one"]))
    axes[0].set_xlabel("messages to one host at once (logarithmic)")
    axes[0].set_ylabel("time, as a multiple of what the link needs for the bytes")
    axes[0].set_title("to one", fontsize=10)
    axes[1].set_xlabel("flows into and out of each host (logarithmic)")
    axes[1].set_ylabel("% of messages that waited for a time-out")
    axes[1].set_title("all to all", fontsize=10)
    for each, ticks in zip(axes, ([1, 2, 3, 4, 5, 7, 63], [1, 3, 7, 14, 28, 63]), strict=True):
        each.set_xscale("log", base=2)
        plain_numbers(each.xaxis, ticks)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8.5, frameon=False)
    figure.suptitle(TITLE, fontsize=12, fontweight="bold")
    return figure
