"""SparseVector: conversions from and to other forms, and refused arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow
import pytest
import scipy.sparse

import skyphos as sky


def test_conversions_of_vectors() -> None:
    dense = np.array([0.0, 2.0, 0.0, 3.0])
    x = sky.SparseVector.from_dense(dense)
    assert (x.nnz, x.n, x.width, x.is_dense, x.nbytes) == (2, 4, 1, False, 32)
    np.testing.assert_array_equal(sky.SparseVector.from_scipy(x.to_scipy()).to_dense(), dense)
    np.testing.assert_array_equal(sky.SparseVector.from_scipy(scipy.sparse.coo_array(dense)).to_dense(), dense)
    kept = sky.SparseVector.from_dense(dense, keep_zeros=True)
    assert kept.is_dense
    assert np.shares_memory(kept.values, dense)
    rows = sky.SparseVector([2, 0], np.array([[1.0, 2.0], [3.0, 4.0]]), 3)
    np.testing.assert_array_equal(rows.to_dense(), [[3, 4], [0, 0], [1, 2]])
    np.testing.assert_array_equal(rows.to_scipy().toarray(), rows.to_dense())
    indices, values = np.array([1, 5]), np.array([1.0, 2.0])
    assert np.shares_memory(sky.SparseVector(indices, values, 9).indices, indices)
    low = sky.SparseVector([3, 1, 3], np.array([5, 2, 4]), 9, op="min")
    assert (low.indices.tolist(), low.values.tolist()) == ([1, 3], [2, 4])
    assert sky.SparseVector([], np.empty(0), 5).to_dense().tolist() == [0.0] * 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([1, 10], [1.0, 2.0], 10), r"indices\[1\] = 10 is outside"),
        (([-1, 1], [1.0, 2.0], 10), r"indices\[0\] = -1 is outside"),
        (([3, 1, 12], [1.0, 2.0, 3.0], 10), r"indices\[2\] = 12 is outside"),
        (([1], [1.0, 2.0], 10), "shape"),
        (([1.5], [1.0], 10), "integers"),
        (([1], [1j], 10), "float32"),
        (([1], [1.0], -1), "n must be"),
        (([[1]], [1.0], 10), "1-D"),
    ],
)
def test_vectors_that_make_no_sense(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(sky.BadInput, match=said):
        sky.SparseVector(*arguments)


def test_arrow_tables() -> None:
    for x in (
        sky.SparseVector([9, 2, 5], np.array([[1, 2], [3, 4], [5, 6]]), 12),
        sky.SparseVector([9, 2], np.array([1.5, 2.5], np.float32), 12),
    ):
        table = x.to_arrow()
        back = sky.SparseVector.from_arrow(table, 12)
        assert (back.indices == x.indices).all() and (back.values == x.values).all() and back.dtype == x.dtype
        assert (sky.SparseVector.from_arrow(pyarrow.concat_tables([table, table]), 12).values == 2 * x.values).all()
        assert (sky.SparseVector.from_arrow(table.to_batches()[0], 12).values == x.values).all()
    columns = {"at": [1, 2], "gone": [1.0, None], "text": ["a", "b"]}
    for index, values, text in [("no", "at", "no column 'no'"), ("at", "gone", "1 nulls"), ("at", "text", "string")]:
        with pytest.raises(sky.BadInput, match=text):
            sky.SparseVector.from_arrow(pyarrow.table(columns), 3, index=index, values=values)
