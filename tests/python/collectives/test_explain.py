"""Explanations of allreduce, and the plans that it keeps."""

from __future__ import annotations

import os
from types import SimpleNamespace as Record
from typing import Any

import numpy as np
import pytest

import skyphos as sky
from conftest import on_all
from skyphos.planning.explanation import explanation_of


def vector(rank: int, n: int, nnz: int) -> sky.SparseVector:
    """Distinct indices and values of a rank."""
    rng = np.random.default_rng(rank)
    return sky.SparseVector(np.sort(rng.choice(n, nnz, replace=False)), rng.standard_normal(nnz), n)


def test_a_named_ssar_above_the_dense_threshold_is_right_and_has_a_note() -> None:
    n = 20_000

    def body(comm: sky.Comm) -> sky.Explanation:
        x = vector(comm.rank, n, 4000)
        y, how = comm.allreduce(x, algorithm="split_allgather", explain=True)
        want = sum(vector(r, n, 4000).to_dense() for r in range(comm.size))
        np.testing.assert_allclose(y.to_dense(), want)
        assert not y.is_dense
        assert (how.entries, how.result_entries) == (4000, y.nnz)
        return how

    for how in on_all(4, body):
        assert how.algorithm == "split_allgather"
        assert how.result_entries > how.dense_threshold
        assert any("never changes form" in note for note in how.notes), how


@pytest.mark.parametrize(("numbers", "algorithm"), [(1 << 20, "dense_ring"), (1 << 16, "dense")])
def test_bytes_agree_with_the_frames_sent(numbers: int, algorithm: str) -> None:
    def body(comm: sky.Comm) -> sky.Explanation:
        # Each of the 8 ranks sends seven eighths of an array twice: of its own array, then of the reduced one.
        _, how = comm.allreduce(np.ones(numbers), explain=True)
        return how

    for how in on_all(8, body):
        assert (how.algorithm, how.result_is_dense) == (algorithm, True)
        assert how.sent_bytes == how.received_bytes == 2 * 7 * numbers
        assert "auto" in how.reason and str(how).startswith("dense")


def test_auto_explains_its_prediction_and_the_alternatives() -> None:
    n, nnz = 1 << 20, 20_000

    def body(comm: sky.Comm) -> None:
        x = vector(comm.rank, n, nnz)
        _, how = comm.allreduce(x, explain=True)
        assert how.predicted is not None and how.predicted.algorithm == how.algorithm
        assert abs(how.predicted.sent_bytes / how.sent_bytes - 1) < 0.4
        assert all(seconds >= how.predicted.seconds for _, seconds in how.others) and len(how.others) > 3
        assert "passed over" in str(how)
        _, how = comm.allreduce(x, algorithm="ring", explain=True)
        assert how.predicted is None and not how.others

    on_all(4, body)


def test_the_text_says_when_timings_overrule_predictions() -> None:
    """It has the winner's time and names an algorithm with a smaller prediction that did not run."""
    stage = Record(sent_bytes=100.0, received_bytes=100.0, messages=1.0, rounds=1.0, compute_s=0.0, seconds=2e-3)
    traffic = Record(sent_bytes=100, sent_frames=1, received_bytes=100)

    def timed(algorithm: str, degrees: list[int], seconds: float) -> Record:
        return Record(algorithm=algorithm, degrees=degrees, seconds=seconds)

    def said(others: list[Record], tried: list[Record], **options: Any) -> str:
        prediction = Record(stages=[stage], others=others, tried=tried)
        report: Any = Record(algorithm="ring", degrees=[], dense_threshold=0.0, traffic=traffic, prediction=prediction)
        return str(explanation_of("auto", report, 5, 9, is_dense=False, **options))

    faster, slower = [timed("allgather", [], 1e-3)], [timed("butterfly", [4, 2], 3e-3)]
    assert said(slower, []).splitlines()[0] == 'ring: asked for "auto": parts around a ring'
    won = said(slower, [timed("dense", [], 5e-3), timed("butterfly", [4, 2], 4e-3)])
    assert won.splitlines()[0].endswith("; it was the fastest of those that were tried, with at most 4 ms")
    assert "passed over (predicted): butterfly 4x2 3 ms" in won
    assert "tried, and slower (measured): dense 5 ms, butterfly 4x2 4 ms" in won
    against = said(slower + faster, [timed("dense", [], 5e-3)]).splitlines()[0]
    assert against.endswith("at most 5 ms, although allgather was predicted to be faster")
    assert "; a try, because it should take about as long as allgather" in said(slower + faster, [])
    assert "; the options may exclude allgather" in said(faster, [], limited=True)


def test_ranks_that_may_use_different_cores_agree() -> None:
    n = 1 << 18

    def body(comm: sky.Comm) -> list[tuple[str, float]]:
        if comm.rank == 0:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # for this thread only
        found = []
        for nnz in (3_000, 20_000, 60_000):
            x = vector(comm.rank, n, nnz)
            for _ in range(6):
                _, how = comm.allreduce(x, explain=True)
                assert how.predicted is not None
                found.append((how.algorithm, how.predicted.seconds))
        return found

    first, *others = on_all(4, body)
    assert all(other == first for other in others)


@pytest.mark.parametrize("algorithm", ["dense", "dense_ring", "dense_rabenseifner"])
@pytest.mark.parametrize("op", ["sum", "max"])
def test_sparse_vectors_as_arrays_keep_their_entries(algorithm: Any, op: str) -> None:
    def body(comm: sky.Comm) -> None:
        x = vector(comm.rank, 5_000, 300)
        y = comm.allreduce(x, op=op, algorithm=algorithm)
        want = comm.allreduce(x, op=op, algorithm="split_allgather")
        assert y.is_dense
        np.testing.assert_array_equal(y.indices, want.indices)
        np.testing.assert_allclose(y.values, want.values)

    on_all(5, body)


@pytest.mark.parametrize("width", [1, 3])
def test_a_kept_plan_reduces_new_values(width: int) -> None:
    def body(comm: sky.Comm) -> None:
        rng = np.random.default_rng(comm.rank)
        indices = np.unique(rng.integers(0, 5000, 300))
        shape = (len(indices),) if width == 1 else (len(indices), width)
        first, second = rng.standard_normal(shape), rng.standard_normal(shape)
        y, plan = comm.allreduce(sky.SparseVector(indices, first, 5000), keep_plan=True)
        np.testing.assert_allclose(plan.reduce(first), y.values)
        want = comm.allreduce(sky.SparseVector(indices, second, 5000))
        np.testing.assert_allclose(plan.reduce(second), want.values)
        with pytest.raises(sky.BadInput, match="keep_plan"):
            comm.allreduce(np.ones(3), keep_plan=True)

    on_all(3, body)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_topk_allreduce(dtype: str) -> None:
    n, k, size = 3000, 40, 5

    def gradient(rank: int) -> Any:
        return np.random.default_rng(rank).standard_normal(n).astype(dtype)

    def body(comm: sky.Comm) -> None:
        mine = gradient(comm.rank)
        for given in (mine, sky.SparseVector(np.arange(n), mine, n)):
            y, used = comm.topk_allreduce(given, k, contributed=True)
            own = np.argsort(-np.abs(mine))[:k]
            assert set(used) == set(own) & set(y.indices)
        total = np.zeros(n)
        for rank in range(size):
            top = np.argsort(-np.abs(gradient(rank)))[:k]
            total[top] += gradient(rank)[top]
        want = np.sort(np.argsort(-np.abs(total))[:k])
        np.testing.assert_array_equal(y.indices, want)
        np.testing.assert_allclose(y.values, total[want], rtol=1e-5)
        assert comm.topk_allreduce(mine, k, op="mean", async_op=True).wait().nnz == k
        for bad, said in [((mine, 0), "k must be"), ((np.ones(3, np.int64), 2), "float")]:
            with pytest.raises(sky.SkyphosError, match=said):
                comm.topk_allreduce(*bad)
        with pytest.raises(sky.Mismatch):
            comm.topk_allreduce(mine, k + comm.rank % 2)

    on_all(size, body)


def test_dup_is_a_group_of_its_own() -> None:
    def body(comm: sky.Comm) -> None:
        other = comm.dup()
        work = comm.allreduce(np.ones(10), async_op=True)
        assert other.allreduce(np.ones(2))[0] == comm.size
        assert (other.rank, other.size) == (comm.rank, comm.size)
        assert work.wait()[0] == comm.size
        other.close()

    on_all(3, body)


def test_rows_too_wide_are_refused_by_name() -> None:
    def body(comm: sky.Comm) -> None:
        with pytest.raises(sky.BadInput, match="width=40000"):
            comm.allreduce(sky.SparseVector([1], np.ones((1, 40_000), np.float32), 5))

    on_all(2, body)


def test_hints_change_no_result_and_bad_ones_are_refused() -> None:
    n = 100_000

    def body(comm: sky.Comm) -> None:
        want = sum(vector(r, n, 3000).to_dense() for r in range(comm.size))
        mine = vector(comm.rank, n, 3000)
        for hint in (0, 10, 11_000, n):
            for _ in range(3):
                np.testing.assert_allclose(comm.allreduce(mine, expected_nnz=hint).to_dense(), want)
            plan = comm.configure(mine.indices, mine.indices, n=n, expected_nnz=hint)
            np.testing.assert_allclose(plan.reduce(mine.values), want[mine.indices])
        for wrong in (n + 1, -1, 2**63, 0.5):
            with pytest.raises((sky.BadInput, TypeError)):
                comm.allreduce(mine, expected_nnz=wrong)  # type: ignore[arg-type]
        with pytest.raises(sky.BadInput, match="expected_nnz"):
            comm.configure(mine.indices, mine.indices, n=n, expected_nnz=-1)
        hint = 500 if comm.rank == 0 else 600
        with pytest.raises(sky.Mismatch):
            comm.allreduce(mine, expected_nnz=hint)

    on_all(4, body)


def test_why_a_plan_has_its_degrees() -> None:
    def body(comm: sky.Comm) -> list[sky.PlanExplanation]:
        indices = vector(comm.rank, 5_000, 300).indices
        settings: list[dict[str, Any]] = [{}, {"degrees": [2, 2]}, {"min_packet": 100.0}, {"expected_nnz": 1000}]
        return [comm.configure(indices, indices, n=5_000, **more).explain() for more in settings]

    all_found = on_all(4, body)
    assert all(str(found[k]) == str(all_found[0][k]) for found in all_found for k in range(4))
    chosen, named, by_kylix_rule, hinted = all_found[0]
    for how in (chosen, hinted):
        assert how.predicted is not None and how.predicted.degrees == how.degrees and len(how.others) == 1
        assert {how.degrees, how.others[0].degrees} == {(4,), (2, 2)}
        assert how.predicted.seconds <= how.others[0].seconds and len(how.predicted.reduce) == 2 * len(how.degrees)
        assert "passed over" in str(how) and "down 1" in str(how) and "to configure" in str(how)
    assert named.degrees == (2, 2) and named.predicted is None and "named" in str(named)
    assert by_kylix_rule.predicted is None and "Kylix's rule" in str(by_kylix_rule)
