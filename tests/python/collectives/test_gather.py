"""Gather of sparse vectors."""

from __future__ import annotations

import numpy as np

from collectives_support import vector
from conftest import on_all


def test_gather() -> None:
    gathered = on_all(3, lambda comm: comm.gather(vector(comm.rank), root=2))
    assert gathered[:2] == [None, None]
    for rank, theirs in enumerate(gathered[2]):
        np.testing.assert_array_equal(theirs.to_dense(), vector(rank).to_dense())
