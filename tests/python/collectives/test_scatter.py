"""Scatter of sparse vectors."""

from __future__ import annotations

import numpy as np

import skyphos as sky
from collectives_support import vector
from conftest import on_all


def test_scatter() -> None:
    def body(comm: sky.Comm) -> sky.SparseVector:
        shares = [vector(10 + to) for to in range(3)] if comm.rank == 1 else None
        return comm.scatter(shares, like=vector(0), root=1)

    for rank, share in enumerate(on_all(3, body)):
        np.testing.assert_array_equal(share.to_dense(), vector(10 + rank).to_dense())
