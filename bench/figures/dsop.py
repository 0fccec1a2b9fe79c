"""The cluster of *DSOP* (section 6.1) for the simulator, and the paper's names of our algorithms.

Euler III has hosts with links of 10 Gbit/s, 45 of them in a bay; 4 links of 40 Gbit/s join a bay to the others. The
paper ran one process a host.
The paper's times varied with the traffic of other jobs between bays, and with the placement of a job's hosts. So each
repetition here places its hosts at random over bays, and draws a share of the uplinks. The distributions are ours: the
paper only mentions node assignment and congestion.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skyphos.simulate import Network, simulate

RATE = 10e9 / 8
HOSTS_OF_A_BAY = 45
#: A host's part of its bay's links to the others.
UPLINK = 4 * 40e9 / 8 / HOSTS_OF_A_BAY
#: The share of an uplink that a job gets: log-normal, with a median of a half and at most 1.
SHARE_MEDIAN, SHARE_SIGMA = 0.5, 0.8
LATENCY_S = 30e-6

SIZES = tuple(1000 * k for k in range(1, 9))
RANKS = (16, 32, 48)

#: The paper's names of the simulated algorithms. Its ring and Open MPI's segmented ring are the same.
PAPERS = {
    "allreduce": "allreduce",
    "allgather": "allgather",
    "ring": "allreduce-ring",
    "rabenseifner": "g-rabenseifner-dsop",
}
VARIANTS = (*PAPERS, "auto")


def cluster(ranks: int, seed: int) -> Network:
    """The hosts of a job, and its share of the links between their bays."""
    share = min(1.0, float(np.random.default_rng(seed).lognormal(np.log(SHARE_MEDIAN), SHARE_SIGMA)))
    settings: dict[str, Any] = {
        "rate_out": RATE,
        "rate_in": RATE,
        "latency_s": LATENCY_S,
        "hosts_per_rack": max(1, ranks // 4),
        "uplink_rate": UPLINK * share,
        "scattered": True,
        "jitter": "exponential(20e-6)",
    }
    return Network(ranks, **settings)


def seconds(ranks: int, shape: tuple[int, int], variant: str, seed: int, pairs: int = 1) -> tuple[float, str]:
    """Seconds of the slowest rank for a sum of float64, and the algorithm that ran."""
    network, (n, m) = cluster(ranks, seed), shape
    done = simulate(
        network,
        "outer_product_sum",
        n=n,
        cols=m,
        entries=pairs,
        row_bytes=8,
        algorithm=variant,
        sized=True,
        seed=seed,
        watch=[],
    ).phases[-1]
    return done.last_s, done.algorithm
