"""Values of 16 bits: float16 of NumPy, bfloat16 of ml_dtypes, against float32 rounded after each addition."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import skyphos as sky
from conftest import on_all

HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


def draw(rank: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal(shape).astype(dtype)


def combine(ufunc: np.ufunc, values: list[np.ndarray]) -> np.ndarray:
    """The values combined in rank order: each step in float32, rounded to nearest even."""
    total = values[0]
    for block in values[1:]:
        total = ufunc(total.astype(np.float32), block.astype(np.float32)).astype(total.dtype)
    return total


def bits(array: np.ndarray) -> list[int]:
    return array.view(np.uint16).ravel().tolist()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize(
    ("op", "ufunc"), [("sum", np.add), ("prod", np.multiply), ("min", np.minimum), ("max", np.maximum)]
)
def test_bits_of_every_operation(dtype: np.dtype[Any], width: int, op: str, ufunc: np.ufunc) -> None:
    ranks, rows = 5, 3000
    shape = (rows,) if width == 1 else (rows, width)
    values = [draw(rank, shape, dtype) for rank in range(ranks)]
    expected = combine(ufunc, values)
    mine = np.arange(rows) * 3

    def body(comm: sky.Comm) -> list[np.ndarray]:
        plan = comm.configure(mine, mine[::2], n=3 * rows, width=width, degrees=[ranks])
        got = plan.reduce(values[comm.rank], op=op)
        out = np.empty_like(got)
        assert plan.reduce(values[comm.rank], op=ufunc, out=out) is out
        in_one_call = comm.configure_reduce(
            mine, mine[::2], values[comm.rank], n=3 * rows, width=width, degrees=[ranks], op=op
        )
        return [got, out, in_one_call]

    for results in on_all(ranks, body):
        for got in results:
            assert got.dtype == dtype
            assert bits(got) == bits(expected[::2])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_means_ufuncs_and_special_values(dtype: np.dtype[Any]) -> None:
    def body(comm: sky.Comm) -> list[list[float]]:
        mine = [0] if comm.rank < 2 else [0, 1]
        plan = comm.configure(mine, [0, 1], n=2)
        ranks = np.full(len(mine), comm.rank, dtype)
        special = np.array([np.nan if comm.rank == 1 else 1.0, np.inf][: len(mine)], dtype)
        results = [
            plan.reduce(ranks, op="mean"),
            plan.reduce(ranks, op="mean_present"),
            plan.reduce(ranks, op=np.logaddexp),
            plan.reduce(special),
            plan.reduce(special, op="min"),
            plan.reduce(special, op="max"),
        ]
        assert all(result.dtype == dtype for result in results)
        return [result.astype(np.float64).tolist() for result in results]

    for mean, present, log, total, least, greatest in on_all(4, body):
        assert mean == [1.5, 1.25] and present == [1.5, 2.5]
        np.testing.assert_allclose(log, [np.logaddexp.reduce([0.0, 1, 2, 3]), np.logaddexp(2.0, 3)], rtol=0.02)
        assert all(np.isnan(result[0]) and result[1] == np.inf for result in (total, least, greatest))


def test_a_missing_index_is_the_identity() -> None:
    for dtype in HALVES:
        with sky.init() as comm:
            plan = comm.configure([0], [0, 1], n=2, missing="identity")
            ones = np.ones(1, dtype)
            assert plan.reduce(ones, op="min").astype(float).tolist() == [1, np.inf]
            assert plan.reduce(ones, op="prod").astype(float).tolist() == [1, 1]


def test_refusals() -> None:
    with sky.init() as comm:
        plan = comm.configure([0], [0], n=1)
        for dtype in HALVES:
            with pytest.raises(sky.BadInput, match=f"integers, not {dtype}"):
                plan.reduce(np.ones(1, dtype), op="or")
            with pytest.raises(sky.BadInput, match=f"out must be a {dtype}"):
                plan.reduce(np.ones(1, dtype), out=np.ones(1, np.uint16))
        with pytest.raises(sky.BadInput, match="bfloat16, float16"):
            plan.reduce(np.ones(1, ml_dtypes.float8_e5m2))


def test_two_kinds_of_halves_disagree() -> None:
    def body(comm: sky.Comm) -> str:
        plan = comm.configure([0], [0], n=1)
        with pytest.raises(sky.Mismatch) as caught:
            plan.reduce(np.ones(1, HALVES[comm.rank]))
        return str(caught.value)

    assert all("dtype=float16" in text and "dtype=bfloat16" in text for text in on_all(2, body))
