"""Reduce-scatter and reduce against NumPy, and refused degrees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import skyphos as sky
from collectives_support import vector
from conftest import on_all


@pytest.mark.parametrize("size", [1, 2, 5])
def test_reduce_scatter_and_reduce(size: int) -> None:
    def body(comm: sky.Comm) -> tuple[Any, ...]:
        x = vector(comm.rank)
        return comm.reduce_scatter(x), comm.reduce_scatter(x.to_dense()), comm.reduce(x, root=size - 1)

    total = sum(vector(rank).to_dense() for rank in range(size))
    got = on_all(size, body)
    for rank, (part, array, _) in enumerate(got):
        assert part.owned == range(1000 * rank // size, 1000 * (rank + 1) // size)
        np.testing.assert_array_equal(part.to_dense()[part.owned], total[part.owned])
        np.testing.assert_array_equal(array, total[part.owned])
        assert set(part.indices) <= set(part.owned)
    assert [reduced is None for *_, reduced in got] == [True] * (size - 1) + [False]
    np.testing.assert_array_equal(got[-1][2].to_dense(), total)


@pytest.mark.parametrize("degrees", [None, [4], [2, 2]])
def test_layers_of_a_reduce_scatter(degrees: list[int] | None) -> None:
    def body(comm: sky.Comm) -> tuple[Any, ...]:
        return comm.reduce_scatter(vector(comm.rank), degrees=degrees, expected_nnz=400, explain=True)

    total = sum(vector(rank).to_dense() for rank in range(4))
    for rank, (part, how) in enumerate(on_all(4, body)):
        assert part.owned == range(250 * rank, 250 * (rank + 1))
        np.testing.assert_array_equal(part.to_dense()[part.owned], total[part.owned])
        assert int(np.prod(how.degrees)) == 4 and (degrees is None or list(how.degrees) == degrees)
        assert (how.predicted is None) == (degrees is not None)
        assert "dense above" not in str(how) and f"{part.nnz} in the result" in str(how)


def test_invalid_layers() -> None:
    def body(comm: sky.Comm) -> None:
        x = vector(comm.rank)
        with pytest.raises(sky.BadInput, match="size 4"):
            comm.reduce_scatter(x, degrees=[3, 2])
        with pytest.raises(sky.BadInput, match="positive"):
            comm.reduce_scatter(x, degrees=[-2, -2])
        with pytest.raises(sky.BadInput, match="mean_present"):
            comm.reduce_scatter(x, degrees=[2, 2], op="mean_present")
        with pytest.raises(sky.BadInput, match="sparse vectors"):
            comm.reduce_scatter(x.to_dense(), explain=True)
        with pytest.raises(sky.BadInput, match="expected_nnz"):
            comm.reduce_scatter(x, expected_nnz=1001)

    on_all(4, body)
