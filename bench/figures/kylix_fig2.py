"""*Kylix*, Fig. 2: rate against packet size, and the minimum efficient packet.

Two ranks exchange messages of s bytes; each sends its next message when it has the other's. This is a dense allreduce
around a ring of two (`comm.allreduce(algorithm="dense_ring")`): two rounds, with half of the array in each. The rate is
s over the time of a round, including the call and the additions. Kylix's *minimum efficient packet* is taken as the
size at which half of the full rate is reached.

The link's bucket is 2 KB here, a little more than an Ethernet frame, not the lab's 128 KB: after a pause as many bytes
pass at once as the bucket holds, which hides the link's time for smaller messages. (At 1 Gbit/s 2 KB is too small: the
kernel's timers reach only half of the rate with it.) The paper (section II): on Amazon EC2 (64 nodes, 10 Gbit/s) about
5 MB are efficient, and 0.4 MB reach about 30 % of that rate; its forerunner *Sparse Allreduce* says 2 to 4 MB.
"""

from __future__ import annotations

import math
from typing import Any

from lab.cluster import unavailable
from lab.contenders import PACKET_BYTES
from lab.contenders.packets import messages
from lab.link import FRAMING, rate_bits
from lab.run import run
from lab.scenario import Scenario

from .style import COLOURS, MARKERS, THEIRS, Log, as_point, new, plain_numbers, quartiles, size_name

TITLE = "Kylix Fig. 2: rate against packet size"
NEEDS_ROOT = True
RATE = "250mbit"
BURST = "2k"
LARGEST_SHAPED = 4 << 20
PAPER_BYTES, PAPER_SHARE = (0.4e6, 5e6), (0.3, 1.0)


def efficient(sizes: list[int], rates: list[float]) -> float:
    """The size that reaches half of the best rate, interpolated in log-log between two sizes."""
    half = max(rates) / 2
    for (size, rate), (larger, faster) in zip(
        zip(sizes, rates, strict=True), zip(sizes[1:], rates[1:], strict=True), strict=False
    ):
        if rate < half <= faster:
            part = math.log(half / rate) / math.log(faster / rate)
            return float(size * (larger / size) ** part)
    return float(sizes[0])


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Times of each size over each link and over loopback."""
    turns, placements = (3, 1) if quick else (11, 3)
    links = [("loopback", "none")] if quick and unavailable() else [("loopback", "none"), ("namespaces", RATE)]
    found = []
    for network, rate in links:
        name = network if rate == "none" else rate
        sizes = [size for size in PACKET_BYTES if network == "loopback" or size <= LARGEST_SHAPED]
        sizes = sizes[:4] if quick else sizes
        log(f"{name}: {len(sizes)} sizes of {size_name(sizes[0])} to {size_name(sizes[-1])}")
        result = run(
            Scenario(
                name="kylix_fig2",
                title=TITLE,
                hosts=2,
                n=2,
                data={"kind": "uniform", "nnz": 1},
                contenders={f"packet_{size}": {} for size in sizes},
                network=network,
                rate=rate,
                burst=BURST,
                iterations=turns,
                placements=placements,
            ),
            lambda _said: None,
        )
        if result.failed:
            raise RuntimeError(str(result.failed))
        points = []
        for size in sizes:
            times = [time / messages(size, 2) for some in result.times[f"packet_{size}"] for time in some]
            points.append(as_point(quartiles(times), size=size))
        rates = [point["size"] / point["median"] for point in points]
        link = None if rate == "none" else rate_bits(rate) / 8 / FRAMING
        found.append(
            {
                "network": name,
                "points": points,
                "full_bytes_per_s": max(rates),
                "link_bytes_per_s": link,
                "efficient_bytes": efficient(sizes, rates),
            }
        )
        log(f"{name}: {max(rates) / 1e6:,.1f} MB/s, half of it at {size_name(found[-1]['efficient_bytes'])}")
    paper = [{"size": size, "share": share} for size, share in zip(PAPER_BYTES, PAPER_SHARE, strict=True)]
    return {"burst": BURST, "networks": found, "paper": paper}


def draw(entry: dict[str, Any]) -> Any:
    """Shares of the full rate, with the sizes that reach half of it."""
    figure, (axes,) = new(width=8)
    axes.axhline(50, color="#777777", linewidth=1, linestyle=":")
    for number, found in enumerate(entry["networks"]):
        full, points = found["full_bytes_per_s"], found["points"]
        x = [point["size"] for point in points]
        y = [100 * point["size"] / point["median"] / full for point in points]
        low = [100 * point["size"] / point["high"] / full for point in points]
        high = [100 * point["size"] / point["low"] / full for point in points]
        name = found["network"].replace("mbit", " Mbit/s").replace("gbit", " Gbit/s")
        label = f"{name}: {full / 1e6:,.0f} MB/s, half at {size_name(found['efficient_bytes'])}"
        axes.plot(x, y, color=COLOURS[2 * number], marker=MARKERS[number], label=label, zorder=3)
        axes.fill_between(x, low, high, color=COLOURS[2 * number], alpha=0.18, linewidth=0)
        axes.plot(found["efficient_bytes"], 50, "|", color=COLOURS[2 * number], markersize=16, markeredgewidth=2)
    paper = entry["paper"]
    axes.plot(
        [point["size"] for point in paper],
        [100 * point["share"] for point in paper],
        color=THEIRS,
        linestyle="--",
        marker="*",
        markersize=11,
        label="Kylix, EC2, 10 Gbit/s (two points in its text)",
        zorder=3,
    )
    sizes = [point["size"] for point in entry["networks"][0]["points"]]
    axes.set_xscale("log", base=2)
    plain_numbers(axes.xaxis, sizes, [size_name(size) for size in sizes])
    axes.set_ylim(0, max(112.0, axes.get_ylim()[1]))
    axes.set_xlabel("bytes of one message (logarithmic)")
    axes.set_ylabel("rate, % of the best; quartiles shaded")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8.5, frameon=False)
    figure.suptitle(TITLE, fontsize=12, fontweight="bold")
    return figure
