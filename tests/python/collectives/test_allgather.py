"""Allgather by each schedule, and its explanation."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

import skyphos as sky
from collectives_support import vector
from conftest import on_all
from skyphos.collectives.allgather import Schedule

SCHEDULES = get_args(Schedule)


@pytest.mark.parametrize("algorithm", SCHEDULES)
def test_allgather(algorithm: Any) -> None:
    def body(comm: sky.Comm) -> tuple[list[sky.SparseVector], np.ndarray]:
        x = vector(comm.rank)
        return comm.allgather(x, algorithm=algorithm), comm.allgather(
            x.to_dense().reshape(10, 100), algorithm=algorithm
        )

    for vectors, arrays in on_all(5, body):
        assert arrays.shape == (5, 10, 100)
        for rank, theirs in enumerate(vectors):
            np.testing.assert_array_equal(theirs.to_dense(), vector(rank).to_dense())
            np.testing.assert_array_equal(arrays[rank].ravel(), vector(rank).to_dense())


def test_explanations_of_allgather() -> None:
    def body(comm: sky.Comm) -> list[sky.Explanation]:
        x, array = vector(comm.rank), vector(comm.rank).to_dense()
        found = [comm.allgather(x, explain=True)[1] for _ in range(3)]
        return [*found, comm.allgather(array, explain=True)[1], comm.allgather(x, algorithm="ring", explain=True)[1]]

    all_found = on_all(4, body)
    for found in all_found:
        assert [how.algorithm for how in found] == [how.algorithm for how in all_found[0]]
        assert all(how.algorithm in SCHEDULES for how in found)
        assert found[-1].algorithm == "ring" and 'asked for "ring"' in str(found[-1])
        assert all(how.sent_bytes > 0 for how in found)
        assert found[0].result_entries == sum(vector(rank).nnz for rank in range(4))
