"""The cluster of *DSOP* (section 6.1), as the simulator gets it, and its algorithms by our names.

Euler III: hosts with links of 10 Gbit/s, 45 of them in a bay, bays joined by 4 links of 40 Gbit/s each; one process a
host.
What other jobs do on the links between bays, and where a job's hosts are, made its times vary: here each repetition has
its hosts scattered over bays, and a share of the uplinks that is drawn anew. The draw is ours; the paper says only that
node assignment and congestion were seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skyphos.simulate import Network, simulate

RATE = 10e9 / 8
HOSTS_OF_A_BAY = 45
UPLINK = 4 * 40e9 / 8 / HOSTS_OF_A_BAY
#: Of an uplink, what is left to a job: log-normal, a median of a half, at most all of it.
SHARE_MEDIAN, SHARE_SIGMA = 0.5, 0.8
LATENCY_S = 30e-6

SIZES = tuple(1000 * k for k in range(1, 9))
RANKS = (16, 32, 48)

#: The paper's names of what is simulated. Its ring, and Open MPI's segmented one, are the same algorithm.
PAPERS = {
    "allreduce": "allreduce",
    "allgather": "allgather",
    "ring": "allreduce-ring",
    "rabenseifner": "g-rabenseifner-dsop",
}
WAYS = (*PAPERS, "auto")


def cluster(ranks: int, seed: int) -> Network:
    """The hosts of a job, and what is left of the links between their bays."""
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


def seconds(ranks: int, shape: tuple[int, int], way: str, seed: int, pairs: int = 1) -> tuple[float, str]:
    """How long the slowest rank takes for a sum of float64, and what ran."""
    network, (n, m) = cluster(ranks, seed), shape
    done = simulate(
        network,
        "outer_product_sum",
        n=n,
        cols=m,
        entries=pairs,
        row_bytes=8,
        algorithm=way,
        sized=True,
        seed=seed,
        watch=[],
    ).phases[-1]
    return done.last_s, done.algorithm
