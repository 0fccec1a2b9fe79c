"""Lists that NumPy gives different types on different ranks: one type holds all numbers, or all ranks raise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import skyphos as sky
from conftest import on_all
from skyphos.errors import BadInput, Mismatch

BIG = 2**63

Call = Callable[[sky.Comm, Any], Any]


def places(x: Any) -> list[int]:
    return list(range(len(x)))


CALLS: dict[str, Call] = {
    "configure_reduce": lambda comm, x: comm.configure_reduce(places(x), [0], x, n=2),
    "reduce": lambda comm, x: comm.configure(places(x), [0], n=2).reduce(x),
    "allreduce": lambda comm, x: comm.allreduce(sky.SparseVector(places(x), x, 2)).to_dense()[:1],
}


def results(call: Call, passed: list[Any]) -> list[Any]:
    """The results or errors of all ranks, after which the group still works."""

    def body(comm: sky.Comm) -> Any:
        try:
            return call(comm, passed[comm.rank])
        except sky.SkyphosError as error:
            return error
        finally:
            assert comm.allreduce(1) == comm.size

    return on_all(len(passed), body)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    ("passed", "expected"),
    [
        ([[1], [BIG]], np.array([BIG + 1], np.uint64)),
        ([[1], [BIG], [2]], np.array([BIG + 3], np.uint64)),
        ([[], [1]], np.array([1])),
        ([[], [BIG], []], np.array([BIG], np.uint64)),
        ([[], [True]], np.array([1])),
        ([[1], [1.5]], np.array([2.5])),
        ([[], np.array([1.5], np.float32)], np.array([1.5], np.float32)),
        ([[2], np.array([1], np.int32), []], np.array([3], np.int32)),
        ([[2], np.array([1.5], np.float32)], np.array([3.5], np.float32)),
        ([(2,), np.array([1], np.uint8)], np.array([3], np.uint8)),
    ],
)
def test_lists_of_different_types(call: Call, passed: list[Any], expected: Any) -> None:
    for result in results(call, passed):
        assert result.dtype == expected.dtype and result.tolist() == expected.tolist()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    ("passed", "error", "words"),
    [
        ([[-1], [BIG]], Mismatch, "dtype=int64.*dtype=uint64"),
        ([[2**53 + 1], [1.5]], Mismatch, "dtype=int64.*dtype=float64"),
        ([[0.1], np.array([1], np.float32)], BadInput, r"list of float64 where other ranks pass float32.*np.array\("),
        ([[300], np.array([1], np.uint8)], BadInput, "list of int64 where other ranks pass uint8"),
        ([np.array([1]), np.array([1.5])], Mismatch, "dtype=int64.*dtype=float64"),
    ],
)
def test_numbers_that_no_common_type_holds(call: Call, passed: list[Any], error: type, words: str) -> None:
    for result in results(call, passed):
        assert type(result) is error, result
        with pytest.raises(error, match=words):
            raise result


def test_rows_on_some_ranks_and_an_empty_list_on_another() -> None:
    rows = np.arange(6.0).reshape(2, 3)

    def body(comm: sky.Comm) -> Any:
        x = rows if comm.rank else []
        plan = comm.configure(places(x), [1], n=2, width=3)
        return plan.reduce(x), comm.configure_reduce(places(x), [1], x, n=2)

    for one, other in on_all(3, body):
        assert one.tolist() == other.tolist() == [[6.0, 8.0, 10.0]]


def test_other_mismatches_are_not_changed() -> None:
    """If a rank is in another call, nothing is repeated and the error blames no list."""

    def body(comm: sky.Comm) -> None:
        with pytest.raises(Mismatch) as caught:
            comm.barrier() if comm.rank == 2 else comm.configure_reduce([0], [0], [1], n=1)
        assert "list" not in str(caught.value)

    on_all(3, body)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lists=st.lists(
        st.lists(st.integers(-(2**63), 2**64 - 1), max_size=3) | st.lists(st.floats(width=32), max_size=3),
        min_size=2,
        max_size=3,
    )
)
def test_any_lists(lists: list[Any]) -> None:
    """All ranks get the minimum of all ranks' numbers, which is exact, or all ranks raise."""

    def call(comm: sky.Comm, x: Any) -> Any:
        return comm.configure_reduce([0] * len(x), [0], x, n=1, op="min", missing="identity")

    found = results(call, lists)
    assert len({isinstance(one, sky.SkyphosError) for one in found}) == 1
    numbers = [one for some in lists for one in some]
    for one in found:
        if not isinstance(one, sky.SkyphosError) and numbers and not any(map(math.isnan, numbers)):
            assert one[0].item() == min(numbers)
