"""The distributed matrix against a dense one: every pair of operations, every distribution of the entries."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import skyphos as sky
from graph_support import errors_on_ranks, on_ranks, whole
from skyphos.errors import BadInput
from skyphos.graph import DistMatrix
from skyphos.graph.semiring import ADD, MULTIPLY, CompactRows, count_sort

IDENTITY = {"plus": 0, "times": 1, "or": 0, "and": -1}


class Entries:
    """Random entries, dealt out at random; some at the same place, some ranks with none."""

    def __init__(self, seed: int, size: int, shape: tuple[int, int], dtype: Any = np.float64) -> None:
        random = np.random.default_rng(seed)
        count = int(random.integers(0, 60))
        bound = 2 if dtype is np.bool_ else 9
        self.shape, self.size = shape, size
        self.rows = random.integers(0, shape[0], count)
        self.columns = random.integers(0, shape[1], count)
        self.values = random.integers(0, bound, count).astype(dtype)
        self.owner = random.integers(0, max(1, size - 1), count)  # the last rank has none, if there are several
        self.x = random.integers(0, bound, shape[1]).astype(dtype)

    def on(self, comm: sky.Comm, **options: Any) -> DistMatrix:
        mine = self.owner == comm.rank
        parts = self.rows[mine], self.columns[mine], self.values[mine]
        return DistMatrix(comm, *parts, **({"shape": self.shape} | options))

    def product(self, add: str, multiply: str, x: np.ndarray) -> dict[int, Any]:
        """The expected product by row; rows without entries are left out."""
        combine = MULTIPLY[multiply]
        terms = self.values if multiply == "first" else x[self.columns]
        if combine is not None:
            terms = combine(self.values, x[self.columns])
        combined = {}
        for row in np.unique(self.rows):
            combined[int(row)] = ADD[add][0].reduce(terms[self.rows == row], dtype=terms.dtype)
        return combined


def check_product(entries: Entries, add: str, multiply: str) -> None:
    def work(comm: sky.Comm) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        matrix = entries.on(comm)
        return (
            matrix.row_index,
            matrix.matvec(entries.x[matrix.index], add=add, multiply=multiply),
            matrix.owned,
        )

    expected = entries.product(add, multiply, entries.x)
    results = on_ranks(entries.size, work)
    for index, y, _ in results:
        for row, value in zip(index.tolist(), y.tolist(), strict=True):
            if row in expected:
                assert value == expected[row], (row, add, multiply)
            elif add in IDENTITY and y.dtype.kind in "if":
                assert value == IDENTITY[add]
    owned = whole([(index[mine], y[mine]) for index, y, mine in results])
    assert set(expected) <= set(owned)


@pytest.mark.parametrize("add", ADD)
@pytest.mark.parametrize("multiply", MULTIPLY)
@pytest.mark.parametrize("size", [1, 3])
def test_every_pair_of_operations(add: str, multiply: str, size: int) -> None:
    for seed in range(4):
        check_product(Entries(seed, size, (12, 12), np.int64), add, multiply)


@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([1, 2, 3, 4, 7]),
    shape=st.tuples(st.integers(1, 20), st.integers(1, 20)) | st.integers(1, 20).map(lambda n: (n, n)),
    dtype=st.sampled_from(["f4", "f8", "i4", "i8", "u4", "u8", "u1", "i2"]),
    pair=st.sampled_from([("plus", "times"), ("min", "plus"), ("max", "times"), ("min", "second")]),
)
@settings(deadline=None, max_examples=80)
def test_products(*, seed: int, size: int, shape: tuple[int, int], dtype: str, pair: tuple[str, str]) -> None:
    entries = Entries(seed, size, shape, np.dtype(dtype))
    if dtype == "u1" and pair[0] == "plus":
        return  # would overflow
    check_product(entries, *pair)


@pytest.mark.parametrize("pair", [("or", "and"), ("and", "or"), ("plus", "times"), ("max", "second"), ("min", "first")])
def test_truth_values(pair: tuple[str, str]) -> None:
    for seed in range(10):
        check_product(Entries(seed, 3, (9, 9), np.bool_), *pair)


def test_bit_strings() -> None:
    entries = Entries(5, 3, (16, 16), np.uint64)
    entries.x = np.uint64(1) << np.arange(16, dtype=np.uint64) * np.uint64(4)
    check_product(entries, "or", "second")


@pytest.mark.parametrize("every_vertex", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_each_vertex_has_one_owner(size: int, every_vertex: bool) -> None:
    for seed in range(8):
        entries = Entries(seed, size, (40, 40))

        def work(comm: sky.Comm, entries: Entries = entries) -> tuple[np.ndarray, np.ndarray]:
            matrix = entries.on(comm, every_vertex=every_vertex)
            assert np.all(np.diff(matrix.index) > 0)
            mine = entries.owner == comm.rank
            assert np.isin(entries.columns[mine], matrix.index).all()
            return matrix.index[matrix.owned], matrix.index

        results = on_ranks(size, work)
        owners = [owned for owned, _ in results]
        touched = np.union1d(entries.rows, entries.columns)
        assert np.array_equal(np.sort(np.concatenate(owners)), np.arange(40) if every_vertex else touched)
        for rank, (owned, _) in enumerate(results):
            # The owner has the vertex as a column, if any rank has.
            for vertex in np.intersect1d(owned, entries.columns):
                assert rank in entries.owner[entries.columns == vertex]


def test_owners_are_even_on_a_graph_that_all_ranks_touch() -> None:
    def work(comm: sky.Comm) -> int:
        ids = np.arange(1000)
        return int(DistMatrix(comm, ids, ids).owned.sum())

    assert on_ranks(4, work) == [250] * 4


def test_iterated_product_is_the_matrix_power() -> None:
    entries = Entries(3, 4, (15, 15))
    dense = np.zeros((15, 15))
    np.add.at(dense, (entries.rows, entries.columns), entries.values)

    def work(comm: sky.Comm) -> tuple[np.ndarray, np.ndarray]:
        matrix = entries.on(comm)
        x = matrix.full(1.0)
        for _ in range(4):
            x = matrix.matvec(x)
        return matrix.index, x

    expected = np.linalg.matrix_power(dense, 4) @ np.ones(15)
    for index, x in on_ranks(4, work):
        assert np.allclose(x, expected[index], rtol=1e-12)


def test_products_with_extra_numbers_and_reused_buffers() -> None:
    entries = Entries(2, 3, (15, 15))

    def work(comm: sky.Comm) -> None:
        matrix = entries.on(comm, slots=2)
        x, out = matrix.full(1.0), matrix.empty()
        y, totals = matrix.matvec_with(x, (comm.rank, 0.5), out=out)
        assert totals == [3.0, 1.5]
        assert y.base is out.base  # received directly into out
        plain = np.empty(len(matrix.index))
        z, totals = matrix.matvec_with(x, (comm.rank, 7), add="max", multiply="second", out=plain)
        assert totals == [2.0, 7.0]
        assert z is plain
        assert np.array_equal(matrix.matvec(x), y)
        # A part of an array from empty() is not mistaken for the whole.
        shifted = np.empty(len(matrix.index) + 2)[1:-1]
        assert matrix.matvec(x, out=shifted) is shifted
        assert np.array_equal(shifted, y)

    on_ranks(3, work)


def test_column_sums_and_division() -> None:
    entries = Entries(7, 3, (15, 15))
    dense = np.zeros((15, 15))
    np.add.at(dense, (entries.rows, entries.columns), entries.values)

    def work(comm: sky.Comm) -> None:
        matrix = entries.on(comm)
        assert np.array_equal(matrix.column_sums(), dense.sum(axis=0)[matrix.index])
        divided = matrix.divide_columns(2.0 + matrix.index)
        expected = (dense / (2.0 + np.arange(15))) @ np.ones(15)
        assert np.allclose(divided.matvec(matrix.full(1.0)), expected[matrix.index])
        assert np.array_equal(matrix.column_sums(), dense.sum(axis=0)[matrix.index])
        assert matrix.total(matrix.full(1.0)) == len(np.union1d(entries.rows, entries.columns))

    on_ranks(3, work)


def test_shape_is_agreed_and_ids_may_have_wide_gaps() -> None:
    far = 2**62

    def work(comm: sky.Comm) -> None:
        rows, columns = ([far], [3]) if comm.rank == 0 else ([3], [far])
        matrix = DistMatrix(comm, rows, columns)
        assert matrix.shape == (far + 1, far + 1)
        x = matrix.matvec(matrix.full(1.0))
        assert set(matrix.index.tolist()) <= {3, far}
        assert np.all(x == 1.0)

    on_ranks(2, work)


def test_values_may_be_left_out() -> None:
    def work(comm: sky.Comm) -> None:
        matrix = DistMatrix(comm, [0, 0], [1, 2])
        assert matrix.matvec(np.array([1, 2, 3]), add="min", multiply="plus")[0] == 3
        assert matrix.matvec(np.array([1.0, 2.0, 3.0]))[0] == 5.0 * comm.size

    on_ranks(1, work)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda comm: DistMatrix(comm, [0, 1], [0]), "one length"),
        (lambda comm: DistMatrix(comm, [0], [0], [1.0, 2.0]), "one length"),
        (lambda comm: DistMatrix(comm, [0.5], [0]), "rows must be whole numbers"),
        (lambda comm: DistMatrix(comm, [0], [[0]]), "columns must be whole numbers"),
        (lambda comm: DistMatrix(comm, [-1], [0]), "rows must be from 0"),
        (lambda comm: DistMatrix(comm, [0], [5], shape=(5, 5)), "columns must be from 0 to 4"),
        (lambda comm: DistMatrix(comm, [0], [0], shape=(2**63, 2**63), slots=1), "too large"),
        (lambda comm: DistMatrix(comm, [0], [0], degrees=[3]), "degrees|multiply|product"),
    ],
)
def test_bad_entries_are_an_error_on_all_ranks(make: Any, why: str) -> None:
    for error in errors_on_ranks(2, make):
        assert isinstance(error, BadInput)
        assert re.search(why, str(error))


def test_one_bad_rank_is_an_error_on_all() -> None:
    def work(comm: sky.Comm) -> None:
        DistMatrix(comm, [-1 if comm.rank == 1 else 1], [0])

    errors = errors_on_ranks(3, work)
    assert {str(error) for error in errors} == {str(errors[0])}
    assert "rows must be from 0" in str(errors[0])


def test_bad_products() -> None:
    with sky.init() as comm:
        matrix = DistMatrix(comm, [0], [1], [1.0], slots=1)
        x = matrix.full(1.0)
        for call in (
            lambda: matrix.matvec(x, add="mean"),
            lambda: matrix.matvec(x, multiply="minus"),
            lambda: matrix.matvec(x[:-1]),
            lambda: matrix.matvec(x.astype(complex)),
            lambda: matrix.matvec(x, add="or", multiply="second"),
            lambda: matrix.matvec(x, out=np.empty(5)),
            lambda: matrix.matvec(x, out=np.empty(2, np.float32)),
            lambda: matrix.matvec_with(x, (1, 2)),
        ):
            with pytest.raises(BadInput):
                call()


@given(st.lists(st.integers(0, 9), max_size=50))
def test_count_sort_is_a_stable_sort(keys: list[int]) -> None:
    array = np.array(keys, np.int32)
    order, starts = count_sort(array, 10)
    assert np.array_equal(order, np.argsort(array, kind="stable"))
    assert np.array_equal(np.diff(starts), np.bincount(array, minlength=10))


def test_a_row_longer_than_a_block() -> None:
    random = np.random.default_rng(1)
    lengths = [3, 200_000, 1, 40_000, 2]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    columns = random.integers(0, 1000, starts[-1]).astype(np.int32)
    rows = CompactRows(starts, columns, random.random(starts[-1]), 1000)
    x, out = random.random(1000), np.empty(5)
    rows.product(x, "min", "plus", out)
    expected = [np.min(rows.values[a:b] + x[columns[a:b]]) for a, b in itertools.pairwise(starts)]
    assert out.tolist() == expected


def test_plus_times_without_scipys_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = CompactRows(np.array([0, 2, 3]), np.array([0, 1, 1]), np.array([1.0, 2.0, 3.0]), 2)
    out = np.empty(2)
    for kernel in (True, False):
        if not kernel:
            monkeypatch.setattr("skyphos.graph.semiring._csr_matvec", lambda: None)
        rows.product(np.array([1.0, 10.0]), "plus", "times", out)
        assert out.tolist() == [21.0, 30.0]
