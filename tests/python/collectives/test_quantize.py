"""Quantized allreduce and top-k with error feedback, from Python."""

from __future__ import annotations

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import skyphos as sky
from conftest import Processes, on_all

FLOATS = [np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
WHERE = ["result", "input", "both"]


def gradient(rank: int, n: int, dtype: Any = np.float32, step: int = 0) -> np.ndarray:
    return np.random.default_rng([rank, step, n]).standard_normal(n).astype(dtype)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_arrays_and_vectors(where: Any, dtype: np.dtype[Any]) -> None:
    size, n, bucket = 3, 3000, 64

    def body(comm: sky.Comm) -> list[Any]:
        quantize = sky.Quantize(bits=8, bucket=bucket, where=where, scale="max", seed=1)
        x = gradient(comm.rank, n, dtype)
        sparse = sky.SparseVector(np.arange(comm.rank, n, 5), x[comm.rank :: 5], n)
        out = np.empty_like(x)
        return [
            comm.allreduce(x, quantize=quantize, op="mean"),
            comm.allreduce(x, quantize=quantize, algorithm="split_allgather", op="mean"),
            comm.allreduce(x.reshape(50, 60), quantize=quantize, out=out.reshape(50, 60), op="mean").reshape(-1),
            comm.allreduce(sparse, quantize=quantize, op="mean").to_dense(),
        ]

    got = on_all(size, body)
    inputs = [gradient(rank, n, dtype).astype(np.float64) for rank in range(size)]
    parts = [np.where(np.arange(n) % 5 == rank, inputs[rank], 0) if rank < 5 else 0 for rank in range(size)]
    for results in zip(*got, strict=True):
        assert all(r.dtype == dtype and r.tobytes() == results[0].tobytes() for r in results)
    for k, exact in enumerate([sum(inputs) / size] * 3 + [sum(parts) / size]):
        # A step is the largest magnitude, at most 5, over 127; 0.05 is for the rounding of 16-bit types.
        assert np.abs(got[0][k].astype(np.float64) - exact).max() < 2 * 5 / 127 + 0.05


def test_unbiased_over_seeds_and_another_draw_each_call() -> None:
    def body(comm: sky.Comm) -> tuple[np.ndarray, list[bytes]]:
        x = gradient(comm.rank, 64, np.float64)
        draws = [comm.allreduce(x, quantize=sky.Quantize(2, 16, seed=seed)) for seed in range(600)]
        two_calls = [comm.allreduce(x, quantize=sky.Quantize(2, 16)).tobytes() for _ in range(2)]
        return np.mean(draws, axis=0), two_calls

    exact = gradient(0, 64, np.float64) + gradient(1, 64, np.float64)
    for mean, (one, two) in on_all(2, body):
        # The variance of a value is at most S²/4, where S is the norm of a bucket: 16 values of variance 2.
        assert np.sqrt(np.mean((mean - exact) ** 2)) < np.sqrt(32) / 2 / np.sqrt(600)
        assert one != two


def test_invalid_settings() -> None:
    for settings in ({"bits": 3}, {"bucket": 0}, {"where": "output"}, {"scale": "l1"}, {"seed": -1}):
        with pytest.raises(sky.BadInput, match=next(iter(settings))):
            sky.Quantize(**settings)  # type: ignore[arg-type]

    def errors(comm: sky.Comm) -> list[str]:
        x, bad = np.ones(4, np.float32), np.ones(4, np.float32)
        bad[3] = np.nan if comm.rank == 1 else 1
        quantize = sky.Quantize()
        calls: list[tuple[Any, dict[str, Any]]] = [
            (bad, {}),
            (x.astype(np.int32), {}),
            (x, {"op": "max"}),
            (x, {"algorithm": "dense_ring"}),
            (x, {"algorithm": "recursive_doubling"}),
            (x, {"quantize": 4}),
        ]
        found = []
        for array, settings in calls:
            with pytest.raises(sky.BadInput) as error:
                comm.allreduce(array, **({"quantize": quantize} | settings))
            found.append(str(error.value))
        with pytest.raises(sky.Mismatch) as mismatch:
            comm.allreduce(x, quantize=sky.Quantize(seed=comm.rank))
        with pytest.raises(sky.BadInput, match="NaN"):
            comm.allreduce(sky.SparseVector([comm.rank], bad[3:], 9), quantize=quantize, algorithm="ring")
        comm.barrier()
        return [*found, str(mismatch.value)]

    wanted = ["index 3 is NaN", "int32", 'op="max"', "dense_ring", "recursive_doubling", "Quantize", "ranks disagree"]
    for found in on_all(2, errors):
        for text, words in zip(found, wanted, strict=True):
            assert words in text


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_choices(dtype: np.dtype[Any]) -> None:
    x = gradient(0, 1000, dtype)
    magnitudes = np.abs(x.astype(np.float64))
    whole = sky.TopK(k=37, bucket=None, feedback=False).compress(x.reshape(10, 100))
    assert whole.nnz == 37
    assert magnitudes[whole.indices].min() >= np.sort(magnitudes)[-37]
    buckets = sky.TopK(k=3, bucket=100, feedback=False).compress(x)
    assert (np.bincount(buckets.indices // 100) == 3).all()
    reached = sky.TopK(threshold=1.5, feedback=False).compress(x)
    assert reached.indices.tolist() == np.flatnonzero(magnitudes >= 1.5).tolist()
    for y in (whole, buckets, reached):
        assert y.dtype == dtype
        assert y.values.tobytes() == x[y.indices].tobytes()


@pytest.mark.parametrize(
    ("bits", "feedback"), [(None, True), (4, "quantised"), (2, "quantised"), (8, "quantised")], ids=str
)
@pytest.mark.parametrize(("size", "under_way"), [(1, 1), (3, 1), (4, 1), (3, 3)])
def test_view_minus_true_iterate_is_the_mean_residual(bits: Any, feedback: Any, size: int, under_way: int) -> None:
    """SparCML, appendix C, eq. 5: v_t - x_t = the mean of the residuals, to rounding."""
    n, steps, rate = 2000, 60, 0.1

    def body(comm: sky.Comm) -> tuple[np.ndarray, np.ndarray]:
        topk = sky.TopK(k=4, bucket=128, bits=bits, feedback=feedback, seed=7)
        view, largest = np.zeros(n), 0.0
        works: list[sky.Work[Any]] = []
        for step in range(steps):
            g = rate * gradient(comm.rank, n, np.float64, step)
            if under_way == 1:
                view -= topk.allreduce(comm, g, op="mean", dense=True)
            else:
                works.append(topk.allreduce(comm, g, op="mean", dense=True, async_op=True))
                g[:] = np.nan  # it has been read
            while len(works) == under_way or (works and step == steps - 1):
                view -= works.pop(0).wait()
            assert topk.residual is not None
            largest = max(largest, np.abs(topk.residual).max())
        assert largest < 10 * rate * np.sqrt(steps), "the residual does not grow without bound"
        return view, topk.residual

    got = on_all(size, body)
    true = -rate * sum(gradient(rank, n, np.float64, step) for rank in range(size) for step in range(steps)) / size
    mean_residual = sum(residual for _, residual in got) / size
    for view, _ in got:
        np.testing.assert_allclose(view - true, mean_residual, rtol=0, atol=1e-12)


def test_quantised_compress_feeds_back() -> None:
    total = sum(gradient(0, 500, np.float64, step) for step in range(30))

    def lost(topk: sky.TopK) -> float:
        sent = sum(topk.compress(gradient(0, 500, np.float64, step)).to_dense() for step in range(30))
        return float(np.abs(sent + topk.residual - total).max())

    assert lost(sky.TopK(k=5, bucket=50, bits=4, feedback="quantised")) < 1e-12
    assert lost(sky.TopK(k=5, bucket=50, bits=4)) > 1e-3, "without feedback the quantiser's error is lost"
    same = [sky.TopK(k=5, bits=4).compress(gradient(0, 500), rank=rank).values.tobytes() for rank in (0, 0, 1)]
    assert same[0] == same[1] != same[2]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_loaded_state_continues_exactly(dtype: np.dtype[Any]) -> None:
    def settings() -> sky.TopK:
        return sky.TopK(k=3, bucket=64, bits=4, feedback="quantised", seed=3)

    topk, loaded = settings(), settings()
    for step in range(5):
        topk.compress(gradient(0, 300, dtype, step))
    loaded.load_state_dict(pickle.loads(pickle.dumps(topk.state_dict())))
    copies = [loaded, pickle.loads(pickle.dumps(topk))]
    want = topk.compress(gradient(0, 300, dtype, 5))
    for copy in copies:
        got = copy.compress(gradient(0, 300, dtype, 5))
        assert (got.indices.tolist(), got.values.tobytes()) == (want.indices.tolist(), want.values.tobytes())
        assert copy.residual.tobytes() == topk.residual.tobytes()
        assert copy.steps == 6
    with pytest.raises(sky.BadInput, match="'k': 3"):
        sky.TopK(k=4).load_state_dict(topk.state_dict())
    with pytest.raises(sky.BadInput, match="not a state of"):
        topk.load_state_dict({"k": 3})


def test_topk_keeps_the_chosen_values_of_a_failed_call() -> None:
    def body(comm: sky.Comm) -> None:
        topk = sky.TopK(k=2, bucket=None)
        x = gradient(comm.rank, 40 + comm.rank)
        work = topk.allreduce(comm, x, async_op=True)
        with pytest.raises(sky.Mismatch):
            work.wait()
        np.testing.assert_array_equal(topk.residual, x)

    on_all(2, body)


def test_invalid_arguments_of_topk() -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"k": -1}, "k must be"),
        ({"k": 0}, "k must be"),
        ({"k": 600}, "bucket=None"),
        ({"k": 1, "bits": 3}, "2, 4 or 8"),
        ({"k": 1, "bucket": 0}, "bucket"),
        ({}, "either"),
        ({"k": 1, "threshold": 1.0}, "either"),
        ({"threshold": -1.0}, "negative"),
        ({"threshold": np.nan}, "negative"),
        ({"k": 1, "feedback": "all"}, "feedback"),
        ({"k": 1, "feedback": "quantised"}, "bits"),
    ]
    for settings, words in bad:
        with pytest.raises(sky.BadInput, match=words):
            sky.TopK(**settings)
    topk = sky.TopK(k=1, bits=4)
    topk.compress(np.array([1.0, 2.0]))
    before = topk.residual.copy()
    for array, words in (
        (np.ones(3), "one TopK"),
        (np.ones(2, np.float32), "one TopK"),
        (np.ones(2, np.int32), "int32"),
        (np.array([np.nan, 1.0]), "index 0 is nan"),
        (sky.SparseVector([1], [1.0], 2), "sparse ones"),
    ):
        with pytest.raises(sky.BadInput, match=words):
            topk.compress(array)
    np.testing.assert_array_equal(topk.residual, before)
    # Without bits a NaN is always chosen.
    assert np.isnan(sky.TopK(k=1).compress(np.array([9.0, np.nan, np.inf])).values).all()


def test_errors_reach_all_ranks_and_lose_nothing() -> None:
    def body(comm: sky.Comm) -> np.ndarray:
        topk = sky.TopK(k=1, bits=4)
        with pytest.raises(sky.BadInput, match="index 1 is nan"):
            topk.allreduce(comm, np.array([1.0, np.nan if comm.rank else 1.0, 5.0]))
        topk.reset()
        with pytest.raises(sky.Mismatch):
            topk.allreduce(comm, np.array([1.0, 2.0, 5.0][: 2 + comm.rank]))
        comm.barrier()
        assert topk.residual is not None
        return topk.residual

    short, whole = on_all(2, body)
    np.testing.assert_array_equal(short, [1.0, 2.0])
    np.testing.assert_array_equal(whole, [1.0, 2.0, 5.0])


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def body(comm: sky.Comm) -> tuple[Any, Any]:
        topk = sky.TopK(k=1, bucket=None)
        tensor = torch.tensor([[1.0, -3.0], [2.0, 0.0]])
        return topk.allreduce(comm, tensor, dense=True), comm.allreduce(tensor, quantize=sky.Quantize(8, scale="max"))

    for dense, quantised in on_all(2, body):
        assert torch.equal(dense, torch.tensor([[0.0, -6.0], [0.0, 0.0]]))
        assert quantised.shape == (2, 2)


def test_calls_under_way() -> None:
    def body(comm: sky.Comm) -> tuple[bytes, bytes]:
        x = gradient(comm.rank, 5000)
        works = [comm.allreduce(x, quantize=sky.Quantize(where=where), async_op=True) for where in ("both", "result")]
        result, both = (work.wait(timeout=20) for work in reversed(works))
        return result.tobytes(), both.tobytes()

    got = on_all(3, body)
    assert got[1:] == got[:1] * 2


def test_over_processes(processes: Processes) -> None:
    code = """
topk = sky.TopK(k=2, bucket=64, bits=4, feedback="quantised")
x = np.random.default_rng(comm.rank).standard_normal(10_000).astype(np.float32)
y = topk.allreduce(comm, x, dense=True)
z = comm.allreduce(x, quantize=sky.Quantize())
say(y.tobytes().hex()[:4000], z.tobytes().hex()[:4000])
"""
    said = [rank.communicate(timeout=60)[0] for rank in processes.start(3, code)]
    assert said[0]
    assert said[1:] == said[:1] * 2
