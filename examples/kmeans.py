"""k-means over several processes: points stay on their rank, and the clusters' means travel.

skyphos run -n 4 examples/kmeans.py               # random points
skyphos split points.npy parts --partitions 32    # your own, of shape (points, dimensions)
skyphos run -n 4 examples/kmeans.py parts/partitions.json 100
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import skyphos as sky
from skyphos.mapreduce import MapReduce, Partitions, split


def nearest(points: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys: each point's nearest centre. Values: each point with a 1 appended, whose sums are the clusters' sizes."""
    distances = (centres**2).sum(1) - 2 * points @ centres.T  # without the term that is the same for all centres
    return distances.argmin(1), np.column_stack([points, np.ones(len(points))])


def first_centres(points: np.ndarray, count: int) -> np.ndarray:
    """Points that are far apart, by k-means++ (Arthur and Vassilvitskii, 2007), each the best of a few draws."""
    random = np.random.default_rng(0)
    centres, squares = points[random.integers(len(points), size=1)], np.inf
    while len(centres) < count:
        squares = np.minimum(squares, ((points - centres[-1]) ** 2).sum(1))  # of distances to the nearest centre so far
        drawn = points[random.choice(len(points), 2 + int(np.log(count)), p=squares / squares.sum())]
        sums_with = [np.minimum(squares, ((points - one) ** 2).sum(1)).sum() for one in drawn]
        centres = np.vstack([centres, drawn[np.argmin(sums_with)]])
    return centres


def means(keys: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """The next centres. Clusters without points are dropped."""
    order = keys.argsort()
    return sums[order, :-1] / sums[order, -1:]


def random_points(folder: Path) -> Partitions:
    """Random points around nine centres."""
    random = np.random.default_rng(0)
    points = random.normal(size=(90_000, 2)) + 8 * np.stack(np.divmod(np.arange(90_000) % 9, 3), 1)
    np.save(folder / "points.npy", points[random.permutation(len(points))])
    return split(folder / "points.npy", folder / "parts", 12)


with sky.init() as comm, tempfile.TemporaryDirectory() as folder:
    given = sys.argv[1] if len(sys.argv) > 1 else None
    parts = Partitions.load(given) if given else comm.broadcast(random_points(Path(folder)) if comm.rank == 0 else None)
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 9
    job = MapReduce(comm, map=nearest, reduce="sum", combine=means, partitions=parts)
    first = first_centres(np.load(parts.parts[0].path)[:10_000], count) if comm.rank == 0 else None
    centres = job.iterate(first, iterations=100, until=lambda a, b: a.shape == b.shape and bool(np.allclose(a, b)))
    if comm.rank == 0:
        print(np.array2string(centres[:10], precision=2, suppress_small=True))
        print(job.iterations[-1])
    comm.barrier()  # no rank reads the random points any more: rank 0 removes its folder, which has them
