"""Multidimensional scaling over several processes: points in the plane, from their distances alone (SMACOF).

skyphos run -n 4 examples/mds.py                        # random distances
skyphos split distances.npy parts --partitions 32       # your own, of shape (points, 1 + points): each row begins with
skyphos run -n 4 examples/mds.py parts/partitions.json  # its point's number
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import skyphos as sky
from skyphos.mapreduce import MapReduce, Partitions, split


def transform(rows: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Guttman's transform of the rows' points, and under the key after the last point the rows' share of the stress."""
    points, numbers, wanted = state[:-1], rows[:, 0].astype(np.int64), rows[:, 1:]
    mine = points[numbers]
    distances = np.sqrt(np.maximum((mine**2).sum(1)[:, None] + (points**2).sum(1) - 2 * mine @ points.T, 0))
    distances[np.arange(len(mine)), numbers] = 0  # from a point to itself, without rounding errors
    ratio = np.divide(wanted, distances, out=np.zeros_like(distances), where=distances > 0)
    moved = (ratio.sum(1)[:, None] * mine - ratio @ points) / len(points)
    stress = ((distances - wanted) ** 2).sum() / 2
    return np.append(numbers, len(points)), np.vstack([moved, [stress, 0]])


def next_state(keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """All new points, and last the stress of the previous ones."""
    return rows[keys.argsort()]


def is_enough(before: np.ndarray, after: np.ndarray) -> bool:
    """True when the stress hardly decreases any more."""
    return bool(abs(before[-1, 0] - after[-1, 0]) <= 1e-5 * after[-1, 0] + 1e-12)


def random_data(folder: Path) -> Partitions:
    """Distances of 500 points in a square, each wrong by about a percent."""
    random = np.random.default_rng(0)
    points = random.uniform(size=(500, 2))
    distances = np.linalg.norm(points[:, None] - points, axis=2) * random.normal(1, 0.01, (500, 500))
    distances = (distances + distances.T) / 2
    np.save(folder / "distances.npy", np.column_stack([np.arange(500), distances]))
    return split(folder / "distances.npy", folder / "parts", 8)


with sky.init() as comm, tempfile.TemporaryDirectory() as folder:
    given = sys.argv[1] if len(sys.argv) > 1 else None
    parts = Partitions.load(given) if given else comm.broadcast(random_data(Path(folder)) if comm.rank == 0 else None)
    first = np.vstack([np.random.default_rng(1).uniform(size=(parts.rows, 2)), [[np.inf, 0]]])
    job = MapReduce(comm, map=transform, reduce="sum", combine=next_state, partitions=parts)
    state = job.iterate(first, iterations=300, until=is_enough)
    if comm.rank == 0:
        print(f"{parts.rows} points after {len(job.iterations)} iterations, stress {state[-1, 0]:.4g}; the first five:")
        print(np.array2string(state[:5], precision=3, suppress_small=True))
        print(job.iterations[-1])
    comm.barrier()  # no rank reads the distances any more: rank 0 removes its folder, which has them
