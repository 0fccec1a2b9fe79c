"""Sums of outer products by every algorithm against NumPy and SciPy, low-rank results, and what is refused."""

from __future__ import annotations

from typing import Any, get_args

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import skyphos as sky
from conftest import on_all
from skyphos.collectives.outer_product import Algorithm, Exchange, Owners

ALGORITHMS = get_args(Algorithm)
TYPES = [np.dtype(np.float32), np.dtype(np.float64), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)]
OPTIONS: list[dict[str, Any]] = [
    *({"algorithm": algorithm} for algorithm in ALGORITHMS),
    *({"algorithm": "allgather", "exchange": exchange} for exchange in get_args(Exchange)),
    *({"algorithm": "rabenseifner", "owners": owners} for owners in get_args(Owners)),
    *({"algorithm": algorithm, "scatter": True} for algorithm in ("auto", "allgather", "rabenseifner", "ring")),
]


def factors(rank: int, shape: tuple[int, int], pairs: int, dtype: Any = np.float64) -> tuple[Any, Any]:
    """Small whole numbers: every order of additions gives the same bits."""
    random = np.random.default_rng([rank, *shape, pairs])
    return tuple(random.integers(-3, 4, (pairs, width)).astype(dtype) for width in shape)


def oracle(shape: tuple[int, int], all_pairs: list[int], dtype: Any) -> Any:
    total = np.zeros(shape)
    for rank, pairs in enumerate(all_pairs):
        a, b = factors(rank, shape, pairs)
        total += a.T @ b
    return total.astype(dtype)


@pytest.mark.parametrize("ranks", range(1, 14))
def test_every_algorithm_on_this_many_ranks(ranks: int) -> None:
    shape, all_pairs = (19, 31), [(rank * 5 + 1) % 4 for rank in range(ranks)]

    def body(comm: sky.Comm) -> list[Any]:
        done = []
        for dtype in TYPES:
            a, b = factors(comm.rank, shape, all_pairs[comm.rank], dtype)
            done += [comm.outer_product_sum(a, b, **options) for options in OPTIONS]
        return done

    for rank, done in enumerate(on_all(ranks, body)):
        rows = slice(19 * rank // ranks, 19 * (rank + 1) // ranks)
        for k, got in enumerate(done):
            dtype, options = TYPES[k // len(OPTIONS)], OPTIONS[k % len(OPTIONS)]
            want = oracle(shape, all_pairs, dtype)
            want = want[rows] if options.get("scatter") else want
            assert got.dtype == dtype and got.shape == want.shape, options
            np.testing.assert_array_equal(got, want, err_msg=f"{options} {dtype}")


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 5),
    st.tuples(st.integers(0, 70), st.integers(0, 70)),
    st.lists(st.integers(0, 6), min_size=5, max_size=5),
    st.sampled_from(TYPES),
)
def test_any_shape(ranks: int, shape: tuple[int, int], pairs: list[int], dtype: Any) -> None:
    def body(comm: sky.Comm) -> list[Any]:
        a, b = factors(comm.rank, shape, pairs[comm.rank], dtype)
        return [comm.outer_product_sum(a, b, algorithm=algorithm) for algorithm in ALGORITHMS]

    want = oracle(shape, pairs[:ranks], dtype)
    for done in on_all(ranks, body):
        for got in done:
            np.testing.assert_array_equal(got, want)


def test_one_pair_and_out_and_strides_and_async() -> None:
    def body(comm: sky.Comm) -> None:
        a, b = np.arange(6.0)[::2] + comm.rank, np.arange(8.0).reshape(2, 4).T[:, 0] + 1
        want = sum(np.outer(np.arange(6.0)[::2] + rank, b) for rank in range(comm.size))
        np.testing.assert_array_equal(comm.outer_product_sum(a, b), want)
        out = np.full((3, 4), np.nan)
        assert comm.outer_product_sum(a, b, out=out) is out
        np.testing.assert_array_equal(out, want)
        works = [comm.outer_product_sum(a, b, algorithm=name, async_op=True) for name in ALGORITHMS]
        for work in reversed(works):
            np.testing.assert_array_equal(work.wait(), want)
        # Fortran order, two pairs.
        left = np.asfortranarray(np.arange(6.0).reshape(2, 3))
        got = comm.outer_product_sum(left, np.ones((2, 4), np.float64))
        np.testing.assert_array_equal(got, comm.size * left.T @ np.ones((2, 4)))

    on_all(3, body)


def test_explanation() -> None:
    def body(comm: sky.Comm) -> Any:
        a, b = factors(comm.rank, (300, 200), 2)
        _, auto = comm.outer_product_sum(a, b, explain=True)
        _, named = comm.outer_product_sum(a, b, algorithm="rabenseifner", grid=(1, 4), explain=True)
        return auto, named

    for auto, named in on_all(4, body):
        assert auto.pairs == 8 and auto.predicted_seconds > 0 and len(auto.others) >= 5
        assert all(seconds >= auto.predicted_seconds for _, seconds in auto.others)
        assert str(auto).count("\n") == 3 and "ms" in str(auto)
        assert (named.algorithm, named.grid, named.owners) == ("rabenseifner", (1, 4), "all")
        # From each of three ranks: two rows of 300 and two of 50 numbers, then a block of 300 by 50.
        least = 8 * (3 * 2 * 350 + 3 * 300 * 50)
        assert least <= named.received_bytes <= least + 2000


def test_bytes_of_each_algorithm() -> None:
    """The bytes in the table of `outer_product/mod.rs` (skyphos-core), and up to 2000 more for agreement."""
    n, m, ranks = 512, 384, 4

    def body(comm: sky.Comm) -> dict[str, int]:
        a, b = factors(comm.rank, (n, m), 1)
        names = ("allgather", "rabenseifner", "ring", "butterfly")
        return {x: comm.outer_product_sum(a, b, algorithm=x, explain=True)[1].received_bytes for x in names}

    whole = n * m * 8
    want = {
        "allgather": 3 * (n + m) * 8,
        "rabenseifner": 3 * (n // 2 + m // 2) * 8 + whole * 3 // 4,
        "ring": 2 * whole * 3 // 4,
        "butterfly": 2 * whole * 3 // 4,
    }
    for got in on_all(ranks, body):
        for name, least in want.items():
            assert least <= got[name] <= least + 2000, name


def test_auto_sends_factors_of_few_rows_and_the_matrix_of_many() -> None:
    """With many rows the factors are far larger than the matrix."""
    n, m, many = 400, 300, 2000

    def body(comm: sky.Comm) -> list[Any]:
        explanations = []
        for pairs in (1, many):
            got, how = comm.outer_product_sum(*factors(comm.rank, (n, m), pairs), explain=True)
            np.testing.assert_array_equal(got, oracle((n, m), [pairs] * comm.size, np.float64))
            explanations.append(how)
        return explanations

    for few_rows, many_rows in on_all(4, body):
        assert few_rows.algorithm == "allgather" and few_rows.received_bytes < 3 * (n + m) * 8 + 2000
        assert many_rows.algorithm in ("ring", "allreduce", "butterfly"), many_rows
        assert many_rows.received_bytes < 2 * n * m * 8 < many * (n + m) * 8
        assert any(name.startswith("allgather") for name, _ in many_rows.others)


def sparse_factors(rank: int, shape: tuple[int, int], pairs: int, dtype: Any, density: float) -> tuple[Any, Any]:
    random = np.random.default_rng([rank, *shape, pairs])
    made = []
    for width in shape:
        array = random.integers(1, 4, (pairs, width)) * (random.random((pairs, width)) < density)
        made.append(sp.csr_array(array.astype(dtype)))
    return tuple(made)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 6),
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.integers(0, 4),
    st.sampled_from([0.02, 0.3, 1.0]),
    st.sampled_from([np.float32, np.float64]),
)
def test_sparse_factors_against_scipy(
    ranks: int, shape: tuple[int, int], pairs: int, density: float, dtype: Any
) -> None:
    def body(comm: sky.Comm) -> list[Any]:
        a, b = sparse_factors(comm.rank, shape, pairs, dtype, density)
        done = [comm.outer_product_sum(a, b, algorithm=algorithm) for algorithm in ALGORITHMS]
        done += [comm.outer_product_sum(a, b, algorithm=name, scatter=True) for name in ("auto", "rabenseifner")]
        return [*done, comm.outer_product_sum(a, b, factors=True)]

    all_factors = [sparse_factors(rank, shape, pairs, dtype, density) for rank in range(ranks)]
    want = sum((a.T @ b).toarray() for a, b in all_factors)
    for rank, (*whole, first, second, low) in enumerate(on_all(ranks, body)):
        for got in whole:
            assert got.format == "csr" and got.dtype == dtype
            np.testing.assert_array_equal(got.toarray(), want)
        rows = slice(shape[0] * rank // ranks, shape[0] * (rank + 1) // ranks)
        np.testing.assert_array_equal(first.toarray(), want[rows])
        np.testing.assert_array_equal(second.toarray(), want[rows])
        assert low.is_sparse and low.pairs == pairs * ranks
        np.testing.assert_array_equal(low.to_dense(), want)


def test_kinds_of_sparse_factors() -> None:
    def body(comm: sky.Comm) -> None:
        x = sky.SparseVector([1, 4], np.array([2.0, 3.0]), n=6)
        y = sky.SparseVector([0, 2], np.array([1.0, 5.0]), n=3)
        want = comm.size * np.outer(x.to_dense(), y.to_dense())
        both = comm.outer_product_sum(x, y)
        assert isinstance(both, sky.SparseVector) and both.n == 18 and both.nnz == 4
        np.testing.assert_array_equal(both.to_dense(), want.reshape(-1))
        mixed = comm.outer_product_sum(sp.coo_array(x.to_dense()[None]), y.to_dense()[None])
        assert mixed.format == "coo" and mixed.nnz == 6  # a dense factor has all entries
        np.testing.assert_array_equal(mixed.toarray(), want)
        vector = sp.coo_array((np.array([2.0, 3.0]), (np.array([1, 4]),)), shape=(6,))
        np.testing.assert_array_equal(comm.outer_product_sum(vector, y.to_dense()).toarray(), want)

    on_all(3, body)


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")

    def body(comm: sky.Comm) -> None:
        a, b = torch.arange(4.0).reshape(2, 2), torch.ones(2, 3)
        want = comm.size * a.T @ b
        got = comm.outer_product_sum(a, b)
        assert isinstance(got, torch.Tensor) and torch.equal(got, want)
        out = torch.empty(2, 3)
        comm.outer_product_sum(a, b, out=out)
        assert torch.equal(out, want)
        sparse = comm.outer_product_sum(a.to_sparse(), b.to_sparse())
        assert sparse.is_sparse and torch.equal(sparse.to_dense(), want)

    on_all(2, body)


def test_low_rank_is_added_to_weights_in_place() -> None:
    def body(comm: sky.Comm) -> None:
        for dtype in (np.float32, np.float64, ml_dtypes.bfloat16):
            shape, pairs = (37, 23), 2
            a, b = factors(comm.rank, shape, pairs, dtype)
            low, how = comm.outer_product_sum(a, b, factors=True, explain=True)
            want = oracle(shape, [pairs] * comm.size, np.float64)
            assert low.shape == shape and low.pairs == pairs * comm.size == how.pairs and low.dtype == dtype
            np.testing.assert_array_equal(low.to_dense().astype(np.float64), want)
            start = np.arange(37 * 23, dtype=np.float64).reshape(shape) % 7
            orders = [start.astype(dtype), np.asfortranarray(start.astype(dtype)), start.astype(dtype)[::-1][::-1]]
            for given_weights in (*orders, np.repeat(start, 2, axis=1)[:, ::2].astype(np.float64)):
                weights = place = given_weights
                before = weights.astype(np.float64)
                weights -= 0.5 * low
                assert weights is place
                np.testing.assert_array_equal(weights.astype(np.float64), before - 0.5 * want)
                weights += low
                np.testing.assert_array_equal(weights.astype(np.float64), before + 0.5 * want)

    on_all(3, body)


def test_low_rank_algebra() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-3, 4, (5, 8)).astype(float), rng.integers(-3, 4, (5, 6)).astype(float)
    low, dense = sky.LowRank(a, b, 2.0), 2 * a.T @ b
    x, y = np.arange(6.0), np.arange(16.0).reshape(2, 8)
    for got, want in [
        (low @ x, dense @ x),
        (y @ low, y @ dense),
        (y[0] @ low, y[0] @ dense),
        (low.T.to_dense(), dense.T),
        ((-low / 2).to_dense(), -dense / 2),
        ((np.float64(3) * low).to_dense(), 3 * dense),
        ((low + low.T.T * 0.5).to_dense(), 1.5 * dense),
        ((low - low).to_dense(), 0 * dense),
        (np.ones((8, 6)) + low, 1 + dense),
        (np.ones((8, 6)) - low, 1 - dense),
        (low + np.ones((8, 6)), dense + 1),
        (np.asarray(low), dense),
        (np.asarray(low, np.float32), dense.astype(np.float32)),
        (low.to_dense(out=np.full((8, 6), np.nan)), dense),
    ]:
        np.testing.assert_array_equal(got, want)
    assert repr(low) == "LowRank(8 by 6, 5 pairs, float64)" and low.nbytes == 8 * 70
    sparse = sp.csr_array(a), sp.csr_array(b)
    np.testing.assert_array_equal(np.zeros((8, 6)) + sky.LowRank(*sparse, 2.0), dense)
    with pytest.raises(sky.BadInput, match=r"\(8, 6\)"):
        low.add_to(np.zeros((6, 8)))
    with pytest.raises(sky.BadInput, match="K rows"):
        sky.LowRank(a, b[:3])
    with pytest.raises(sky.BadInput, match="one type"):
        sky.LowRank(a, b.astype(np.float32))


BAD: list[tuple[Any, dict[str, Any], str]] = [
    (lambda: (np.ones((2, 3)), np.ones((1, 4))), {}, "a has 2 rows and b 1"),
    (lambda: (np.ones((2, 3)), np.ones((2, 4), np.float32)), {}, "make them one type"),
    (lambda: (np.ones(3, int), np.ones(4, int)), {}, "factors must have type .*not int64"),
    (lambda: (np.ones((1, 2, 3)), np.ones(4)), {}, r"a must be of shape \(r, n\)"),
    (lambda: ("text", np.ones(4)), {}, "str"),
    (lambda: (np.ones(3), np.ones(4)), {"out": np.ones((4, 3))}, r"of shape \(3, 4\), not float64 of shape \(4, 3\)"),
    (lambda: (np.ones(3), np.ones(4)), {"out": np.ones((3, 4), np.float32)}, "out must be a float64 array"),
    (lambda: (np.ones(3), np.ones(4)), {"out": np.ones((4, 3)).T}, "C-contiguous"),
    (lambda: (np.ones(3), np.ones(4)), {"out": [1]}, "out must be an array, not list"),
    (lambda: (np.ones(3), np.ones(4)), {"algorithm": "best"}, "algorithm='best': one of auto"),
    (lambda: (np.ones(3), np.ones(4)), {"exchange": "ring"}, 'exchange= needs algorithm="allgather"'),
    (lambda: (np.ones(3), np.ones(4)), {"algorithm": "ring", "owners": "host"}, "owners= and grid= need algorithm="),
    (lambda: (np.ones(3), np.ones(4)), {"algorithm": "butterfly", "scatter": True}, "scatter=True needs auto"),
    (lambda: (np.ones(3), np.ones(4)), {"factors": True, "out": np.ones((3, 4))}, "out= is for"),
    (lambda: (np.ones(3), np.ones(4)), {"factors": True, "scatter": True}, "no scatter=True"),
    (lambda: (sp.csr_array(np.eye(3)), np.eye(3)), {"out": np.ones((3, 3))}, "out= is for"),
    (lambda: (sp.csr_array(np.eye(3)), np.eye(4)), {}, "a has 3 rows and b 4"),
]


@pytest.mark.parametrize(("made", "options", "says"), BAD)
def test_refusals_on_all_ranks(made: Any, options: dict[str, Any], says: str) -> None:
    def body(comm: sky.Comm) -> str:
        # Only rank 1 passes the invalid arguments.
        wrong = comm.rank == 1
        a, b = made() if wrong else (np.ones(3), np.ones(4))
        with pytest.raises(sky.BadInput, match=says) as caught:
            comm.outer_product_sum(a, b, **(options if wrong else {}))
        comm.barrier()
        np.testing.assert_array_equal(comm.outer_product_sum(np.ones(3), np.ones(4)), np.full((3, 4), 3.0))
        return str(caught.value)

    for rank, text in enumerate(on_all(3, body)):
        assert rank == 1 or "rank 1" in text, text


def test_a_grid_has_a_block_for_each_rank() -> None:
    def body(comm: sky.Comm) -> None:
        with pytest.raises(sky.BadInput, match="3 ranks"):
            comm.outer_product_sum(np.ones(3), np.ones(4), algorithm="rabenseifner", grid=(2, 2))

    on_all(3, body)


def test_ranks_that_differ_are_named() -> None:
    def body(comm: sky.Comm) -> None:
        odd = comm.rank == 2
        for mine, others in [
            ((np.ones(3), np.ones(5)), (np.ones(3), np.ones(4))),
            ((np.ones(4), np.ones(4)), (np.ones(3), np.ones(4))),
            ((np.ones(3, np.float32), np.ones(4, np.float32)), (np.ones(3), np.ones(4))),
            ((sp.csr_array(np.ones((1, 3))), np.ones(4)), (np.ones(3), np.ones(4))),
        ]:
            with pytest.raises(sky.Mismatch, match="outer_product_sum"):
                comm.outer_product_sum(*(mine if odd else others))
        with pytest.raises(sky.Mismatch):
            comm.outer_product_sum(np.ones(3), np.ones(4), algorithm="ring" if odd else "allgather")

    on_all(3, body)


def test_results_that_do_not_fit_the_memory_are_refused() -> None:
    """Whether the system refuses the memory or would run out of it, the error comes before factors are sent."""
    with open("/proc/meminfo") as file:
        total = 1024 * next(int(line.split()[1]) for line in file if line.startswith("MemTotal"))
    # The system allocates this much for each rank, because it supplies memory only when it is written to.
    side = int((0.7 * total / 4) ** 0.5)

    def body(comm: sky.Comm) -> None:
        with pytest.raises(sky.BadInput, match="does not fit the memory"):
            comm.outer_product_sum(np.zeros(1 << 24), np.zeros(1 << 24))
        x = np.ones(side, np.float32)
        for algorithm in ("auto", "allgather", "ring"):
            with pytest.raises(sky.BadInput, match=r"the 2 ranks of its host, which has .* GB free; scatter=True"):
                comm.outer_product_sum(x, x, algorithm=algorithm)
        low = comm.outer_product_sum(x, x, factors=True)
        assert (low @ x)[0] == 2 * side

    on_all(2, body)
