"""Reductions by a plan against NumPy, and what a plan reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import skyphos as sky
from conftest import on_all

DTYPES = ["float32", "float64", "int32", "int64", "uint8", "uint32", "uint64"]
UFUNCS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


@st.composite
def groups(draw: st.DrawFn) -> dict[str, Any]:
    size, n = draw(st.integers(1, 5)), draw(st.sampled_from([1, 70, 5000, 10**12]))
    lists = st.lists(st.integers(0, n - 1), max_size=30)
    contribute = [draw(lists) for _ in range(size)]
    contributed = sorted(set().union(*contribute))
    wanted = st.lists(st.sampled_from(contributed), max_size=30) if contributed else st.just([])
    return {
        "size": size,
        "n": n,
        "contribute": contribute,
        "want": [draw(wanted) for _ in range(size)],
        "width": draw(st.sampled_from([1, 3])),
        "dtype": draw(st.sampled_from(DTYPES)),
        "op": draw(st.sampled_from(list(UFUNCS))),
        "index_type": draw(st.sampled_from([np.int64, np.uint64])),
    }


def oracle(case: dict[str, Any], values: list[np.ndarray]) -> list[np.ndarray]:
    """The reduction in plain NumPy, row by row."""
    rows: dict[int, np.ndarray] = {}
    for indices, block in zip(case["contribute"], values, strict=True):
        for index, row in zip(indices, block, strict=True):
            rows[index] = UFUNCS[case["op"]](rows[index], row) if index in rows else row
    shape = () if case["width"] == 1 else (case["width"],)
    return [np.array([rows[i] for i in want], case["dtype"]).reshape(len(want), *shape) for want in case["want"]]


@given(groups())
@settings(max_examples=60, deadline=None)
def test_as_numpy(case: dict[str, Any]) -> None:
    shape = () if case["width"] == 1 else (case["width"],)
    values = [
        np.random.default_rng(rank).integers(1, 4, (len(indices), *shape)).astype(case["dtype"])
        for rank, indices in enumerate(case["contribute"])
    ]

    def body(comm: sky.Comm) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        contribute = np.array(case["contribute"][comm.rank], case["index_type"])
        want = np.array(case["want"][comm.rank], case["index_type"])
        plan = comm.configure(contribute, want, n=case["n"], width=case["width"])
        first = plan.reduce(values[comm.rank], op=case["op"])
        out = np.empty_like(first)
        again = plan.reduce(values[comm.rank], op=UFUNCS[case["op"]], out=out, order="arrival")
        assert again is out
        in_one_call = comm.configure_reduce(
            contribute, want, values[comm.rank], n=case["n"], width=case["width"], op=case["op"]
        )
        return first, again, in_one_call

    for expected, got in zip(oracle(case, values), on_all(case["size"], body), strict=True):
        for result in got:
            assert result.dtype == expected.dtype
            np.testing.assert_array_equal(result, expected)


def test_means_and_ufuncs() -> None:
    def body(comm: sky.Comm) -> list[Any]:
        mine = [0] if comm.rank < 2 else [0, 1]
        plan = comm.configure(mine, [0, 1], n=2)
        ones = np.full(len(mine), float(comm.rank))
        bits = np.full(len(mine), 1 << comm.rank)
        return [
            plan.reduce(ones, op="mean").tolist(),
            plan.reduce(ones, op="mean_present").tolist(),
            plan.reduce(ones, op=np.logaddexp).tolist(),
            plan.reduce(bits, op="or").tolist(),
            plan.reduce(bits, op=np.bitwise_xor).tolist(),
            plan.reduce(bits * 6, op=np.gcd).tolist(),
            plan.reduce(bits > 2, op="or").tolist(),
        ]

    for mean, present, log, bit_or, xor, gcd, truth in on_all(4, body):
        assert mean == [1.5, 1.25] and present == [1.5, 2.5]
        np.testing.assert_allclose(log, [np.logaddexp.reduce([0.0, 1, 2, 3]), np.logaddexp(2.0, 3)])
        assert bit_or == [15, 12] and xor == [15, 12] and gcd == [6, 24] and truth == [1, 1]


def test_a_ufunc_that_fails_is_raised_on_all() -> None:
    def body(comm: sky.Comm) -> str:
        plan = comm.configure([0], [0], n=1)
        with pytest.raises(sky.BadInput) as caught:
            plan.reduce(np.array([7]), op=np.hypot)  # gives floats: cannot go back into integers
        plan.reduce(np.array([7]))
        return str(caught.value)

    assert all("op=hypot failed" in text for text in on_all(3, body))


def test_bad_values_on_one_rank_are_raised_on_the_other() -> None:
    def body(comm: sky.Comm) -> str:
        plan = comm.configure([1], [1], n=3)
        with pytest.raises(sky.BadInput) as caught:
            plan.reduce(np.ones(1 + comm.rank))
        assert plan.reduce(np.ones(1)).tolist() == [2.0]
        return str(caught.value)

    first, second = on_all(2, body)
    assert first == f"rank 1: {second}" and "shape (2,)" in second


def test_volume_and_stats() -> None:
    def body(comm: sky.Comm) -> sky.Plan:
        mine = np.arange(comm.rank, 60_000, 3)
        plan = comm.configure(mine, mine, n=60_000, degrees=[2, 2])
        plan.reduce(np.ones(len(mine)))
        assert plan.stats.total >= plan.stats.wait + plan.stats.transfer >= 0
        return plan

    for plan in on_all(4, body):
        volume = plan.volume
        assert [(v.layer, v.direction) for v in volume] == [(1, "down"), (2, "down"), (2, "up"), (1, "up")]
        assert all(v.degree == 2 and v.messages == 1 and v.bytes == 8 * v.rows for v in volume)
        assert abs(volume[0].rows + volume[0].own_rows - 20_000) <= 1
        assert volume[0].predicted_rows == pytest.approx(10_000, rel=0.01)
        assert repr(plan).startswith("Plan(n=60000, width=1, degrees=2x2")
