"""PageRank on R-MAT (scale 20, edge factor 16, float64) with 2 local processes on 2 cores, against SciPy.

Bars: an iteration takes at most 0.70 of SciPy's single-thread product of the whole graph, its collective at most
0.13; `configure` at most 3 times `np.sort` of the two hashed index arrays. SciPy's CSR kernel does the local
product on both sides.
"""

from __future__ import annotations

import os
import time
from statistics import median

import numpy as np
import scipy.sparse

import skyphos as sky
from common import check, report, spawn
from skyphos.graph import adjacency_matrix, pagerank, partition, rmat

SCALE = int(os.environ.get("BENCH_SCALE", "20"))
RANKS, EDGE_FACTOR, ROUNDS = 2, 16, 25


def whole_graph() -> scipy.sparse.csr_array:
    """The column-normalised adjacency matrix, duplicates merged."""
    edges = rmat(SCALE, EDGE_FACTOR, seed=1)
    n = 1 << SCALE
    ones = np.ones(len(edges.source))
    A = scipy.sparse.coo_array((ones, (edges.target, edges.source)), shape=(n, n)).tocsr()
    A.data[:] = 1.0
    degree = np.asarray(A.sum(axis=0)).ravel()
    A.data /= degree[A.indices]
    A.indices, A.indptr = A.indices.astype(np.int32), A.indptr.astype(np.int32)
    return A


def plain_pagerank(A: scipy.sparse.csr_array, iterations: int) -> np.ndarray:
    """The same iteration in SciPy, over the vertices that have an edge."""
    used = np.zeros(A.shape[0], bool)
    used[A.indices] = True
    used[np.flatnonzero(np.diff(A.indptr))] = True
    dangling = used.copy()
    dangling[A.indices] = False
    count = used.sum()
    x = np.where(used, 1.0 / count, 0.0)
    for _ in range(iterations):
        x = np.where(used, 0.85 * (A @ x + x[dangling].sum() / count) + 0.15 / count, 0.0)
    return x


def main() -> None:
    with sky.init() as comm:
        edges = partition(comm, rmat(SCALE, EDGE_FACTOR, seed=1, part=comm.rank, parts=comm.size))
        matrix = adjacency_matrix(comm, edges)
        whole = whole_graph() if comm.rank == 0 else None
        if whole is not None:
            x = np.full(whole.shape[0], 1.0 / whole.shape[0])

        product_s, iteration_s, collective_s, configure_s, sort_s, plan_s = [], [], [], [], [], []
        hashed = [
            np.random.default_rng(7).permutation(ids.astype(np.int64))
            for ids in (np.unique(edges.target), matrix.index)
        ]
        for round_ in range(ROUNDS):
            comm.barrier()
            if whole is not None:
                start = time.perf_counter()
                whole @ x
                product_s.append(time.perf_counter() - start)
            # Six iterations at a time, with seven products and collectives; the first pays for cold caches in both.
            comm.barrier()
            result = pagerank(comm, matrix, tol=0.0, max_iterations=6)
            spent = result.seconds
            iteration_s.append(spent.iterations / 7)
            collective_s.append((spent.wait + spent.transfer + spent.merge) / 7)
            plan_s.append((spent.transfer + spent.merge) / 7)
            if round_ < 10:
                contribute, want = np.unique(edges.target), matrix.index
                comm.barrier()
                if comm.rank == 0:
                    start = time.perf_counter()
                    for array in hashed:
                        np.sort(array)
                    sort_s.append(time.perf_counter() - start)
                comm.barrier()
                start = time.perf_counter()
                comm.configure(contribute, want, n=matrix.shape[0], missing="identity")
                configure_s.append(time.perf_counter() - start)

        if whole is not None:
            expected = plain_pagerank(whole, 6)
            check("pagerank", result.ranks, expected[result.vertices], 1e-12)
            title = f"PageRank, R-MAT scale {SCALE}, {len(edges.source):,} edges on rank 0, 2 processes"
            low = min(ROUNDS, len(product_s))
            report(
                f"iteration; {title}",
                {"SciPy, whole product": product_s, "iteration": iteration_s},
                median(a / b for a, b in zip(iteration_s[:low], product_s, strict=True)),
                0.70,
            )
            report(
                f"collective of an iteration; {title}",
                {"collective": collective_s, "transfer and merge in it": plan_s},
                median(a / b for a, b in zip(collective_s, product_s, strict=True)),
                0.13,
            )
            report(
                f"configure; {len(hashed[0]):,} and {len(hashed[1]):,} indices; {title}",
                {"np.sort of the hashed indices": sort_s, "configure": configure_s},
                median(a / b for a, b in zip(configure_s, sort_s, strict=True)),
                3.0,
            )
        comm.barrier()


if __name__ == "__main__":
    spawn(__file__, RANKS, main)
