"""Refused arguments of configure and of the plan, and indices that no rank contributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import skyphos as sky
from conftest import on_all


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
def test_bad_input_of_all_ranks_is_refused(bad: Any, words: str) -> None:
    def everyone(comm: sky.Comm) -> None:
        with pytest.raises(sky.BadInput, match=words):
            bad(comm)
        comm.barrier()

    on_all(2, everyone)


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
