"""A sparse allreduce on Ray actors.

    pip install 'skyphos[ray]'
    python examples/engines/ray_allreduce.py

Each actor has gradients for some rows of a large table; all get the sum.
"""

import numpy as np
import ray

import skyphos as sky

ROWS = 1_000_000


def gradient(rank: int) -> sky.SparseVector:
    rows = np.unique(np.random.default_rng(rank).zipf(1.5, 10_000) % ROWS)
    return sky.SparseVector(rows, np.full(len(rows), rank + 1.0), n=ROWS)


def train(comm: sky.Comm, scale: float) -> tuple[int, float]:
    total = comm.allreduce(gradient(comm.rank))
    return len(total.indices), scale * float(total.values.sum())


ray.init(num_cpus=2, include_dashboard=False)  # or address="auto": the running cluster
results = sky.ray.run(train, 0.5, num_workers=2)

expected = 0.5 * sum(gradient(rank).to_dense() for rank in range(2)).sum()
assert results[0] == results[1] and np.isclose(results[0][1], expected)
print(f"{results[0][0]} rows of {ROWS} have a gradient; half of its sum is {expected:g}, as computed here")
ray.shutdown()
