"""Comm and Plan against NumPy, and refused arguments."""

from __future__ import annotations

import threading
import time
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
    put_out = sorted(set().union(*contribute))
    wanted = st.lists(st.sampled_from(put_out), max_size=30) if put_out else st.just([])
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
        both = comm.configure_reduce(
            contribute, want, values[comm.rank], n=case["n"], width=case["width"], op=case["op"]
        )
        return first, again, both

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


def test_missing_indices_are_named_with_the_ranks_that_want_them() -> None:
    def body(comm: sky.Comm) -> str:
        want = [1, 900 + comm.rank] if comm.rank else [1]
        with pytest.raises(sky.BadInput) as caught:
            comm.configure([1], want, n=1000)
        plan = comm.configure([1], want, n=1000, missing="identity")
        got = plan.reduce(np.array([2.0], np.float32), op="min")
        assert got.tolist() == [2.0, *[np.inf] * (len(want) - 1)]
        return str(caught.value)

    texts = on_all(3, body)
    assert len(set(texts)) == 1 and "901 (wanted by rank 1), 902 (wanted by rank 2)" in texts[0], texts


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (lambda c: c.configure([1.5], [0], n=3), "contribute must hold integers"),
        (lambda c: c.configure([[1]], [0], n=3), "1-D"),
        (lambda c: c.configure([1], [-1], n=3), r"want\[0\] = -1"),
        (lambda c: c.configure([3], [1], n=3), r"contribute\[0\] = 3"),
        (lambda c: c.configure([1], [1], n=3, degrees=[3]), "degrees 3 do not multiply"),
        (lambda c: c.configure([1], [1], n=3, degrees=[0, 2]), "degrees must be positive"),
        (lambda c: c.configure([1], [1], n=3, width=0), "width"),
        (lambda c: c.configure([1], [1], n=3, width=20_000).reduce(np.ones((1, 20_000))), "131072"),
        (lambda c: c.configure([1], [1], n=2**64), "2\\^63"),
        (lambda c: c.configure([1], [1], n=3, missing="ignore"), "missing must be"),
        (lambda c: c.configure([1], [1], n=3).reduce(np.array([1j])), "complex128"),
        (lambda c: c.configure([1], [1], n=3).reduce(np.ones(2)), r"values have shape \(2,\)"),
        (lambda c: c.configure([1], [1], n=3).reduce(np.ones(1), op="median"), "unknown operation"),
        (lambda c: c.configure([1], [1], n=3).reduce(np.ones(1), op="or"), "integers"),
        (lambda c: c.configure([1], [1], n=3).reduce(np.ones(1, int), op="mean"), "float"),
        (lambda c: c.configure([1], [1], n=3).reduce(np.ones(1), op=np.subtract), "no identity"),
        (lambda c: c.configure([1], [1], n=3).reduce(np.ones(1), op=max), "binary NumPy ufunc"),
        (
            lambda c: c.configure([1], [1], n=3).reduce(np.ones(1), out=np.ones(1, int)),
            "out must be a float64",
        ),
        (lambda c: c.configure([1], [1], n=3).reduce(np.ones(1), order="any"), "order must be"),
        (lambda c: c.split(-1), "color"),
    ],
)
def test_bad_input_on_all_ranks_and_on_one(bad: Any, words: str) -> None:
    def everyone(comm: sky.Comm) -> None:
        with pytest.raises(sky.BadInput, match=words):
            bad(comm)
        comm.barrier()

    on_all(2, everyone)


def test_bad_values_on_one_rank_are_raised_on_the_other() -> None:
    def body(comm: sky.Comm) -> str:
        plan = comm.configure([1], [1], n=3)
        with pytest.raises(sky.BadInput) as caught:
            plan.reduce(np.ones(1 + comm.rank))
        assert plan.reduce(np.ones(1)).tolist() == [2.0]
        return str(caught.value)

    first, second = on_all(2, body)
    assert first == f"rank 1: {second}" and "shape (2,)" in second


def test_different_calls_name_both_sides() -> None:
    def body(comm: sky.Comm) -> str:
        plan = comm.configure([1], [1], n=3)
        with pytest.raises(sky.Mismatch) as caught:
            plan.reduce(np.ones(1, np.float64 if comm.rank else np.float32))
        with pytest.raises(sky.Mismatch):
            comm.barrier() if comm.rank else comm.split(0)
        comm.barrier()
        return str(caught.value)

    for text in on_all(3, body):
        assert "rank 0 is in reduce(" in text and "dtype=float32" in text and "dtype=float64" in text


def test_a_rank_that_does_not_come_is_named() -> None:
    gone = threading.Event()

    def body(comm: sky.Comm) -> Any:
        if comm.rank == 1:
            gone.wait(30)
            return None
        try:
            with pytest.raises(sky.Timeout, match="rank 1 did not come") as caught:
                comm.barrier()
        finally:
            gone.set() if comm.rank == 0 else None
        return caught.value.missing

    assert on_all(3, body, timeout=0.3) == [(1,), None, (1,)]


def test_closed_and_split() -> None:
    def body(comm: sky.Comm) -> None:
        with comm.split(comm.rank % 2, key=-comm.rank) as half:
            assert (half.size, half.rank) == (2, 1 - comm.rank // 2)
            assert half.configure_reduce([0], [0], np.array([comm.rank]), n=1)[0] == 2 + 2 * (comm.rank % 2)
        assert comm.split(None) is None
        comm.barrier()
        comm.close()
        comm.close()
        with pytest.raises(sky.BadInput, match="closed"):
            comm.barrier()

    on_all(4, body)


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


def test_local_arguments() -> None:
    for arguments in ({"size": 0}, {"size": 2, "threads": 0}, {"size": 2, "timeout": -1.0}):
        with pytest.raises(sky.BadInput):
            sky.local(**arguments)


@pytest.mark.parametrize(
    "bad",
    [
        lambda c, a: c.configure(a, a, n=-1),
        lambda c, a: c.configure(a * 1.5, a, n=9),
        lambda c, a: c.configure([[1, 2], [3]], a, n=9),
        lambda c, a: c.configure(a, a, n="x"),
        lambda c, a: c.configure(a, a, n=9, width="a"),
        lambda c, a: c.configure(a, a, n=9, width=1.5),
        lambda c, a: c.configure(a, a, n=9, degrees=3),
        lambda c, a: c.configure(a, a, n=9, min_packet="a"),
        lambda c, a: c.configure_reduce(a, a, np.ones(2), n=9),
        lambda c, a: c.configure_reduce(a, a, np.ones(5), n=9, op="bogus"),
        lambda c, a: c.configure_reduce(a, a, np.ones(5, np.int64), n=9, out=a),
        lambda c, a: c.split("x"),
        lambda c, a: c.split(0, key=2**70),
        lambda c, a: c.barrier(),
    ],
)
def test_a_group_is_usable_after_an_error_on_one_rank(bad: Any) -> None:
    def body(comm: sky.Comm) -> list[float]:
        ids = np.arange(5)
        try:
            if comm.rank == 1:
                bad(comm, ids)
            else:
                comm.configure(ids, ids, n=9)
        except (sky.BadInput, sky.Mismatch):
            pass
        else:
            raise AssertionError("no error")
        return comm.configure(ids, ids, n=9).reduce(np.ones(5)).tolist()

    assert on_all(3, body, timeout=5.0) == [[3.0] * 5] * 3


def test_misaligned_and_foreign_arrays_are_copied() -> None:
    misaligned = np.zeros(41, np.uint8)[1:].view(np.int64)
    assert not misaligned.flags.aligned
    misaligned[:] = range(5)
    with sky.init() as comm:
        plan = comm.configure(misaligned, misaligned[::2], n=5)
        assert plan.reduce(misaligned).tolist() == [0, 2, 4]
        assert plan.reduce(misaligned.astype(np.float64)[::1]).tolist() == [0, 2, 4]
        with pytest.raises(sky.BadInput, match=str(2**63 + 5)):
            comm.configure(np.array([2**63 + 5], ">u8"), [], n=9)
        with pytest.raises(sky.BadInput, match="no rank -1"):
            comm.address(-1)


def test_closing_while_another_thread_is_in_a_call() -> None:
    first, second = sky.local(2, timeout=20.0)
    caught: list[Exception] = []

    def wait() -> None:
        try:
            first.barrier()
        except sky.SkyphosError as error:
            caught.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    # The other rank's answer to nothing: it is not in the call, so `first` waits until it is closed.
    while waiting.is_alive() and not caught:
        first.close()
        waiting.join(0.05)
    assert "rank 0 left the call: its Comm was closed" in str(caught[0])
    with pytest.raises(sky.SkyphosError, match="rank 0"):
        second.barrier()


def test_time_outs_are_accurate() -> None:
    def body(comm: sky.Comm) -> float:
        start = time.monotonic()
        if comm.rank == 0:
            with pytest.raises(sky.Timeout, match=r"within the timeout of 2.0 s in barrier\(\): rank 1 did not come"):
                comm.barrier()
        return time.monotonic() - start

    assert 2.0 <= on_all(2, body, timeout=2.0)[0] < 3.0
