"""Alltoall of sparse vectors."""

from __future__ import annotations

import numpy as np

from collectives_support import vector
from conftest import on_all


def test_alltoall() -> None:
    all_received = on_all(3, lambda comm: comm.alltoall([vector(10 * comm.rank + to) for to in range(3)]))
    for rank, received in enumerate(all_received):
        for sender, theirs in enumerate(received):
            np.testing.assert_array_equal(theirs.to_dense(), vector(10 * sender + rank).to_dense())
