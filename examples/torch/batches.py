"""Assigns samples to steps and ranks; steps are the same for any number of ranks.

The order depends on seed and epoch alone. A rank takes every P-th sample of a global batch, so that dense and
compressed runs, on any number of ranks, see the same samples in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

__all__ = ["global_batches", "share"]

T = TypeVar("T")

#: Number of batches whose samples are sorted by length together: less padding, and another mixture each epoch.
POOL = 16


def global_batches(counts: Sequence[int], lengths: Sequence[int], batch: int, seed: int, epoch: int) -> list[list[int]]:
    """The samples of each step of an epoch.

    Parameters
    ----------
    counts : sequence of int
        Weight of each sample in a batch: the words of a sentence, or 1.
    lengths : sequence of int
        Samples of similar length are put into a batch.
    batch : int
        Largest total weight of a step; a sample with a larger weight is a batch of its own.
    seed, epoch : int

    Examples
    --------
    >>> global_batches([3, 1, 2, 2], [3, 1, 2, 2], batch=4, seed=1, epoch=0)
    [[0], [1, 2], [3]]
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(counts)).tolist()
    pool = max(1, POOL * batch * len(counts) // sum(counts))
    pools = (order[start : start + pool] for start in range(0, len(order), pool))
    order = [sample for pooled in pools for sample in sorted(pooled, key=lengths.__getitem__)]
    batches: list[list[int]] = []
    room = 0
    for sample in order:
        if not batches or counts[sample] > room:
            batches.append([])
            room = batch
        batches[-1].append(sample)
        room -= counts[sample]
    return [batches[step] for step in random.permutation(len(batches))]


def share(samples: Sequence[T], rank: int, size: int) -> Sequence[T]:
    """A rank's part. If samples are sorted by length, parts have about the same work."""
    return samples[rank::size]
