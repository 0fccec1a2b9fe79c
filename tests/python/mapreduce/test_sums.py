"""Sums by key in one allreduce: equal to sums key by key; keys that it cannot take; functions that differ by rank."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import skyphos as sky
from conftest import on_all
from skyphos.errors import BadInput, Mismatch
from skyphos.mapreduce import MapReduce


def by_key(keys: Any, results: Any) -> Any:
    order = np.argsort(keys)
    return np.asarray(keys)[order], np.asarray(results)[order]


def as_given(batches: Any, state: Any) -> Any:
    yield from batches


def plain(op: str, batches: list[Any]) -> dict[int, Any]:
    """The expected results, computed key by key."""
    found: dict[int, Any] = {}
    merge = {"sum": np.add, "max": np.maximum, "count": np.add}[op]
    for keys, rows in batches:
        for key, row in zip(keys.tolist(), np.ones(len(keys), np.int64) if rows is None else rows, strict=True):
            found[key] = merge(found[key], row) if key in found else row
    return found


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_sums_equal_sums_key_by_key(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    size = data.draw(st.integers(1, 4))
    op = data.draw(st.sampled_from(["sum", "max", "count"]))
    dtype = data.draw(st.sampled_from([np.int64, np.int32, np.uint8, np.float64, np.float32]))
    key_type = data.draw(st.sampled_from([np.int64, np.int32, np.uint64, np.uint8]))
    row = data.draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    top = data.draw(st.sampled_from([1, 5, 200]))
    counts = data.draw(st.lists(st.lists(st.integers(0, 40), max_size=3), min_size=size, max_size=size))

    def batch(count: int) -> Any:
        rows = None if op == "count" else rng.integers(0, 9, (count, *row)).astype(dtype)
        return rng.integers(0, top, count).astype(key_type), rows

    given = [[batch(count) for count in rank_counts] for rank_counts in counts]
    want = plain(op, list(itertools.chain(*given)))

    def body(comm: sky.Comm) -> Any:
        found = []
        for collective in ("allreduce", "shuffle") if want else ("auto", "shuffle"):
            options: dict[str, Any] = {"partitions": [given[comm.rank]], "collective": collective}
            job = MapReduce(comm, map=as_given, reduce=op, combine=by_key, **options)
            found.append(job.run())
            assert ("allreduce" in job.iterations[0].seconds) == (collective == "allreduce")
        return found

    for found in on_all(size, body):
        for keys, results in found:
            assert keys.tolist() == sorted(want) and len(results) == len(want)
            for key, result in zip(keys.tolist(), results, strict=True):
                assert (result == want[key]).all() and np.shape(result) == np.shape(want[key])
        assert all(a.dtype == b.dtype for a, b in zip(*found, strict=True)) or not want


def test_the_state_is_on_all_ranks_and_is_not_broadcast() -> None:
    def body(comm: sky.Comm) -> Any:
        job = MapReduce(
            comm,
            map=lambda rows, state: (rows % 5, rows * state.sum()),
            reduce="sum",
            combine=lambda keys, sums: (sums % 11).astype(float),
            partitions=[np.arange(20) + comm.rank],
        )
        result = job.iterate(np.ones(1) if comm.rank == 0 else None, iterations=4)
        assert all("shuffle" not in iteration.seconds for iteration in job.iterations)
        assert comm.size == 1 or job.iterations[1].sent_bytes > 0
        return result.tolist()

    one, *_ = on_all(3, body)
    state = np.ones(1)
    for _ in range(4):
        rows = np.concatenate([np.arange(20) + rank for rank in range(3)])
        sums = np.zeros(5)
        np.add.at(sums, rows % 5, rows * state.sum())
        state = (sums % 11).astype(float)
    assert one == state.tolist()


@pytest.mark.parametrize(
    "keys",
    [np.array([-1, 2]), np.array([2**63 - 1], np.int64), np.array([2**64 - 1], np.uint64), ["a", "b"]],
    ids=["negative", "too high for an index", "unsigned", "strings"],
)
def test_other_keys_are_shuffled(keys: Any) -> None:
    def body(comm: sky.Comm) -> None:
        options: dict[str, Any] = {"map": lambda x, state: (keys, np.ones(len(keys))), "combine": lambda k, v: (k, v)}
        job = MapReduce(comm, reduce="sum", partitions=[0], **options)
        found, sums = job.run()
        assert sorted(np.asarray(found).tolist()) == sorted(np.asarray(keys).tolist())
        assert sums.tolist() == [comm.size] * len(keys) and "shuffle" in job.iterations[0].seconds
        with pytest.raises(BadInput, match='collective="allreduce" takes integer keys from 0 on'):
            MapReduce(comm, reduce="sum", partitions=[0], collective="allreduce", **options).run()
        assert comm.allreduce(np.ones(1))[0] == comm.size

    on_all(2, body)


def test_many_results_and_a_small_state_are_shuffled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyphos.mapreduce.sums._LARGE_BYTES", 1000)

    def body(comm: sky.Comm) -> list[bool]:
        def uses_allreduce(large: bool) -> bool:
            job = MapReduce(
                comm,
                map=lambda x, state: (np.arange(500), np.ones(500)),
                reduce="sum",
                combine=lambda keys, sums: sums[np.argsort(keys)] if large else sums.sum(),
                partitions=[0],
            )
            job.iterate(np.ones(500) if large else 1.0, iterations=2)
            return "allreduce" in job.iterations[0].seconds and "shuffle" not in job.iterations[0].seconds

        return [uses_allreduce(True), uses_allreduce(False)]

    assert on_all(2, body) == [[True, False]] * 2


def test_functions_that_differ_by_rank() -> None:
    def body(comm: sky.Comm) -> None:
        options: dict[str, Any] = {"map": lambda x, state: (x, x), "reduce": "sum", "partitions": [np.arange(4)]}
        with pytest.raises(Mismatch, match="different states on rank 0 and on rank 1"):
            MapReduce(comm, combine=lambda keys, sums: sums + comm.rank, **options).run()
        # Ranks may disagree on when to stop: the answer of rank 0 counts.
        ended = MapReduce(comm, combine=lambda keys, sums: sums, **options)
        ended.iterate(iterations=9, until=lambda before, after: comm.rank == 0)
        assert len(ended.iterations) == 1

        def fails(keys: Any, sums: Any) -> Any:
            if comm.rank == 2:
                raise KeyError("here alone")
            return sums

        with pytest.raises(BadInput, match=r"rank 2: combine raised KeyError(.|\n)*in fails"):
            MapReduce(comm, combine=fails, **options).run()
        assert comm.allreduce(np.ones(1))[0] == comm.size

    on_all(3, body)


def test_invalid_settings() -> None:
    def body(comm: sky.Comm) -> None:
        options: dict[str, Any] = {"map": lambda x, state: (x, x), "partitions": [np.arange(4)]}
        with pytest.raises(BadInput, match="collective='quick': one of auto, shuffle, allreduce"):
            MapReduce(comm, collective="quick", **options)
        for wrong in ({"reduce": "sum"}, {"reduce": "list"}, {"reduce": lambda k, v: 1, "merge": "sum"}):
            combine = None if wrong == {"reduce": "sum"} else by_key
            with pytest.raises(BadInput, match="takes a named operation as reduce, and combine"):
                MapReduce(comm, collective="allreduce", combine=combine, **wrong, **options)

    on_all(2, body)
