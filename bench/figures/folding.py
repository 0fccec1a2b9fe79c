"""Rate at which one core of this machine adds rows by key, as local reduction and reduce tasks do."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

import skyphos as sky
from skyphos.shuffle import Shuffle

#: A batch has 50,000 rows of 512 int32 like *Twister*'s centroids: 102 MB, more than any cache.
ROWS, WIDTH, BATCHES, TURNS = 50_000, 512, 8, 3


@dataclass(frozen=True)
class Folding:
    """Median seconds a byte for rows with new keys, and for rows that are added to existing ones."""

    new_byte_s: float
    more_byte_s: float

    def seconds(self, batch_bytes: float, batches: int) -> float:
        """Seconds for several batches that all have the same keys."""
        return batch_bytes * (self.new_byte_s + (batches - 1) * self.more_byte_s)


def folding(rows: int = ROWS) -> Folding:
    """Add batches of one map task in a shuffle's store, and check their sums."""
    keys, batch = np.arange(rows), np.ones((rows, WIDTH), np.int32)
    new, more = [], []
    with sky.local(1)[0] as comm:
        for turn in range(TURNS + 1):
            store, seconds = Shuffle(comm, "sum"), []
            for _ in range(BATCHES):
                begin = time.perf_counter()
                store.add(keys, batch)
                seconds.append(time.perf_counter() - begin)
            if not (store.result()[1] == BATCHES).all():
                raise RuntimeError("a sum is wrong")
            if turn:  # the first turn warms up
                new.append(seconds[0] / batch.nbytes)
                more += [each / batch.nbytes for each in seconds[1:]]
    return Folding(float(np.median(new)), float(np.median(more)))
