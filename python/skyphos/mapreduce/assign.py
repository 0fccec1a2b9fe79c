"""Assignment of partitions to workers: equal shares, mostly where the data are (*Twister*, section 3)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

__all__ = ["assign"]


def assign(parts: Sequence[Collection[str]], workers: Sequence[str]) -> list[int]:
    """Assign a worker to each partition.

    The numbers of partitions of two workers differ by at most one. Subject to that, as many partitions as possible go
    to a worker whose host has them: a maximum flow from partitions to such workers.

    Parameters
    ----------
    parts : sequence of collection of str
        The hosts that have each partition; empty: all have it.
    workers : sequence of str
        The host of each worker.

    Returns
    -------
    list of int
        The worker of each partition.

    Examples
    --------
    >>> from skyphos.mapreduce.assign import assign
    >>> assign([["a"], ["a"], ["b", "a"], ["b"]], ["a", "b"])
    [0, 0, 1, 1]
    """
    count, share, extra = len(parts), len(parts) // len(workers), len(parts) % len(workers)
    chosen = np.full(count, -1)
    local = [(part, worker) for part, hosts in enumerate(parts) for worker, host in enumerate(workers) if host in hosts]
    if local:
        for part, worker in _flow(local, count, len(workers), share, extra):
            chosen[part] = worker
    loads = np.bincount(chosen[chosen >= 0], minlength=len(workers))
    for part in np.flatnonzero(chosen < 0).tolist():
        worker = int(np.argmin(loads))
        if loads[worker] >= share:  # all have their equal share, so some get one more
            worker = int(np.flatnonzero(loads == share)[0])
        chosen[part] = worker
        loads[worker] += 1
    return chosen.tolist()


def _flow(local: list[tuple[int, int]], parts: int, workers: int, share: int, extra: int) -> list[tuple[int, int]]:
    """Partitions that a maximum flow assigns to workers which have their data; ``extra`` workers get one more."""
    from scipy.sparse import csr_array  # here, since it takes long to import
    from scipy.sparse.csgraph import maximum_flow

    # Nodes: partitions, workers, source, the excess over equal shares, sink.
    source, beyond, sink = parts + workers, parts + workers + 1, parts + workers + 2
    edges = [(source, part, 1) for part in range(parts)]
    edges += [(part, parts + worker, 1) for part, worker in local]
    edges += [(parts + worker, sink, share) for worker in range(workers)]
    edges += [(parts + worker, beyond, 1) for worker in range(workers)] + [(beyond, sink, extra)]
    tails, heads, capacity = np.array([edge for edge in edges if edge[2]], np.int32).T
    graph = csr_array((capacity, (tails, heads)), shape=(sink + 1, sink + 1))
    flow = maximum_flow(graph, source, sink).flow.tocoo()
    taken = (flow.data > 0) & (flow.row < parts) & (flow.col >= parts) & (flow.col < parts + workers)
    return list(zip(flow.row[taken].tolist(), (flow.col[taken] - parts).tolist(), strict=True))
