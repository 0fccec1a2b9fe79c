"""Bytes of a nested configuration, compared with a butterfly whose results return by other ranks.

Such a variant must carry the in-indices through a second set of layers, along with their values (*Sparse
Allreduce*, section IV-A: about 50 % more). Both are counted with the same index sets in the same coding: the
variant sends the bytes of the nested configuration, and the in-parts a second time.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

import skyphos as sky
from common import zipf_distinct

RANKS, N, COUNT, DEGREES = 8, 1 << 22, 200_000, [4, 2]


def config_bytes(comm: sky.Comm, contribute: np.ndarray, want: np.ndarray) -> int:
    """Bytes that this rank sends in `configure`."""
    plan = comm.configure(contribute, want, n=N, degrees=DEGREES, missing="identity")
    return sum(layer.config_bytes for layer in plan.volume)


def main() -> None:
    draws = [zipf_distinct(np.random.default_rng(seed), N, COUNT, 1.1) for seed in range(2 * RANKS)]
    none = np.empty(0, np.int64)

    def body(comm: sky.Comm) -> tuple[int, int]:
        out_set, in_set = draws[comm.rank], draws[RANKS + comm.rank]
        return config_bytes(comm, out_set, in_set), config_bytes(comm, out_set, none)

    with ThreadPoolExecutor(RANKS) as pool:
        totals = np.array(list(pool.map(body, sky.local(RANKS)))).sum(axis=0)
    nested, out_only = map(int, totals)
    variant = nested + (nested - out_only)
    print(f"configure, {RANKS} ranks, 4x2, {COUNT:,} Zipf(1.1) indices of 2^22 contributed, as many others wanted")
    print(f"  nested                       {nested:12,} bytes")
    print(f"  in-indices sent twice        {variant:12,} bytes")
    print(f"  the variant sends {variant / nested - 1:.0%} more (the paper: about 50 %)")


if __name__ == "__main__":
    main()
