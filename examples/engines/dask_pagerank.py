"""PageRank on Dask workers: each has a part of the edges.

pip install 'skyphos[dask]'
python examples/engines/dask_pagerank.py
"""

import numpy as np
from distributed import Client

import skyphos as sky

VERTICES, DAMPING = 1_000, 0.85


def edges(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """A ring, so that each vertex has a successor, and random edges."""
    rng, ring = np.random.default_rng(rank), np.arange(VERTICES)
    source, target = rng.integers(VERTICES, size=(2, 4_000))
    return np.concatenate([ring, source]), np.concatenate([(ring + 1) % VERTICES, target])


def pagerank(comm: sky.Comm, iterations: int) -> np.ndarray:
    source, target = edges(comm.rank)
    degree = comm.allreduce(np.bincount(source, minlength=VERTICES).astype(float))
    to, place = np.unique(target, return_inverse=True)
    # Configured once: the indices to which this rank adds, and those whose sums it needs. Later only values travel.
    plan = comm.configure(to, want=np.arange(VERTICES), n=VERTICES)
    x = np.full(VERTICES, 1 / VERTICES)
    for _ in range(iterations):
        x = (1 - DAMPING) / VERTICES + DAMPING * plan.reduce(np.bincount(place, (x / degree)[source]))
    return x


if __name__ == "__main__":  # Dask's workers import this file
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:  # or the scheduler's address
        ranks = sky.dask.run(client, pagerank, 30)

    source, target = (np.concatenate(both) for both in zip(edges(0), edges(1), strict=True))
    x = np.full(VERTICES, 1 / VERTICES)
    for _ in range(30):
        x = (1 - DAMPING) / VERTICES + DAMPING * np.bincount(target, (x / np.bincount(source))[source], VERTICES)
    assert all(np.allclose(one, x) for one in ranks)
    print(f"the best vertex is {x.argmax()} with {x.max():.6f}, as computed here")
