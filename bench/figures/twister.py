"""The cluster of *Twister* (section 6.1), for the simulator, and the paper's measurements.

PolarGrid: hosts with links of 1 Gbit/s, in racks joined by 10 Gbit/s. A broadcast goes from a driver to n nodes: n + 1
ranks here, one a host, spread over the racks evenly. Table 8 has 0.5 GB to one node in 4.04 s, 123.8 MB/s: as much as
1 Gbit/s carries in packets of 9,000 bytes (in packets of 1,500 bytes 117.7), so packets of 9,000 bytes are assumed. The
paper does not give the other settings; ours are 50 µs for a small message, and the processor times of one core.
"""

from __future__ import annotations

import math
from typing import Any

from skyphos.simulate import Network, Phase, simulate

RATE, UPLINK = 1e9 / 8, 10e9 / 8
LATENCY_S = 50e-6
MTU = 9000
GB = 1e9
#: Nodes, and in how many racks they were (section 6.2).
RACKS = {1: 1, 25: 1, 50: 2, 75: 3, 100: 4, 125: 5, 150: 5}
NODES = tuple(RACKS)
SIZES = (0.5, 1.0, 2.0)

#: Seconds by nodes: Table 8 for each size, and Table 5 (1 GB).
CHAIN_S = {
    0.5: (4.04, 4.13, 4.15, 4.16, 4.18, 4.20, 4.23),
    1.0: (8.09, 8.22, 8.24, 8.28, 8.28, 8.29, 8.30),
    2.0: (16.17, 16.40, 16.42, 16.43, 16.44, 16.46, 16.48),
}
SIMPLE_S = {
    0.5: (4.04, 101.0, 202.01, 303.04, 404.08, 505.14, 606.14),
    1.0: (8.08, 202.0, 404.04, 606.09, 808.21, 1010.71, 1212.21),
    2.0: (16.16, 441.64, 882.63, 1325.63, 1765.46, 2021.3, 2648.6),
}
SCATTER_ALLGATHER_S = (11.4, 20.57, 20.62, 20.68, 20.79, 21.2)


def cluster(ranks: int, racks: int, **other: Any) -> Network:
    """``ranks`` hosts of one rank, spread over racks as evenly as possible."""
    hosts = math.ceil(ranks / racks)
    settings: dict[str, Any] = {
        "rate_out": RATE,
        "rate_in": RATE,
        "latency_s": LATENCY_S,
        "mtu": MTU,
        "hosts_per_rack": hosts,
        "uplink_rate": UPLINK / hosts,
    }
    return Network(ranks, **settings | other)


def link_s(size: float) -> float:
    """Seconds for which bytes occupy a link."""
    return size / (RATE * (MTU - 52) / (MTU + 38))


def broadcast(size: float, nodes: int, algorithm: str, *, seed: int = 1, **other: Any) -> Phase:
    """Broadcast ``size`` bytes from the driver to the nodes, simulated by their length."""
    on = cluster(nodes + 1, RACKS[nodes], **other)
    return simulate(
        on, "broadcast", n=round(size), row_bytes=1, algorithm=algorithm, sized=True, seed=seed, watch=[]
    ).phases[-1]


def shuffle_s(node_bytes: float, nodes: int) -> float:
    """Seconds of a shuffle of evenly distributed bytes."""
    on = cluster(nodes, RACKS[nodes])
    return simulate(on, "shuffle", entries=node_bytes, row_bytes=1, sized=True, watch=[]).last_s


def shuffle_bound_s(node_bytes: float, nodes: int) -> tuple[float, float]:
    """The least seconds for which a shuffle occupies a host's link, and a rack's uplink."""
    racks = RACKS[nodes]
    from_rack = nodes / racks * node_bytes * (1 - 1 / racks)
    return link_s(node_bytes * (1 - 1 / nodes)), link_s(from_rack) * RATE / UPLINK
