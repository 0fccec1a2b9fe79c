"""Allreduce of vectors and arrays against NumPy, and refused settings."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import skyphos as sky
from collectives_support import vector
from conftest import Processes, on_all
from skyphos.collectives.allreduce import Algorithm

DTYPES = ["float32", "float64", "int32", "int64", "uint8", "uint32", "uint64"]
UFUNCS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
ALGORITHMS = [name for name in get_args(Algorithm) if name != "dense_mpi"]  # for groups over MPI only
SPARSE = [name for name in ALGORITHMS if not name.startswith("dense")]
DENSE = [name for name in ALGORITHMS if name not in SPARSE or name == "auto"]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_allreduce_as_numpy(data: st.DataObject) -> None:
    size, n = data.draw(st.integers(1, 5)), data.draw(st.sampled_from([1, 64, 3000]))
    dtype, op = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(list(UFUNCS)))
    algorithm, width = data.draw(st.sampled_from(SPARSE)), data.draw(st.sampled_from([1, 3]))
    index_type = data.draw(st.sampled_from(["int32", "int64", "uint32", "uint64"]))
    ufunc = UFUNCS[op]
    lists = [data.draw(st.lists(st.integers(0, n - 1), max_size=40)) for _ in range(size)]
    shape = () if width == 1 else (width,)
    rows = [np.random.default_rng(k).integers(1, 4, (len(li), *shape)).astype(dtype) for k, li in enumerate(lists)]
    fill = 77
    want = np.full((n, *shape), fill, dtype)
    held = np.zeros(n, bool)
    for indices, values in zip(lists, rows, strict=True):
        for index, row in zip(indices, values, strict=True):
            want[index] = ufunc(want[index], row, dtype=dtype) if held[index] else row
            held[index] = True

    def body(comm: sky.Comm) -> sky.SparseVector:
        x = sky.SparseVector(np.array(lists[comm.rank], index_type), rows[comm.rank], n, op=op)
        return comm.allreduce(x, op=op, algorithm=algorithm)

    for y in on_all(size, body):
        assert y.dtype == np.dtype(dtype)
        if algorithm == "split_allgather_dense" and op == "sum":
            want[~held] = 0
        else:
            assert y.indices.tolist() == np.flatnonzero(held).tolist()
            assert y.nnz == held.sum()
        if not y.is_dense:
            assert y.indices.dtype == np.dtype(index_type)
        np.testing.assert_array_equal(y.to_dense(fill), want)


@pytest.mark.parametrize("algorithm", DENSE)
def test_dense_arrays(algorithm: Any) -> None:
    def body(comm: sky.Comm) -> np.ndarray:
        x = np.random.default_rng(comm.rank).integers(0, 9, (50, 70)).astype(np.float32)
        out = np.empty_like(x)
        assert comm.allreduce(x, algorithm=algorithm, out=out) is not None
        np.testing.assert_array_equal(comm.allreduce(x, algorithm="split_allgather_dense"), out)
        return out

    want = sum(np.random.default_rng(rank).integers(0, 9, (50, 70)) for rank in range(5))
    for got in on_all(5, body):
        np.testing.assert_array_equal(got, want)


def test_results_have_the_kind_of_the_input() -> None:
    def body(comm: sky.Comm) -> list[Any]:
        x = vector(comm.rank)
        wide = vector(comm.rank, width=3)
        return [comm.allreduce(x.to_scipy()), comm.allreduce(wide.to_scipy()), comm.allreduce(x.to_dense())]

    total = vector(0).to_dense() + vector(1).to_dense()
    wide_total = vector(0, width=3).to_dense() + vector(1, width=3).to_dense()
    for coo, csr, array in on_all(2, body):
        assert (coo.format, coo.shape, csr.format) == ("coo", (1000,), "csr")
        np.testing.assert_array_equal(coo.toarray(), total)
        np.testing.assert_array_equal(csr.toarray(), wide_total)
        np.testing.assert_array_equal(array, total)


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def body(comm: sky.Comm) -> tuple[Any, Any]:
        x = vector(comm.rank, dtype="float32").to_torch()
        assert sky.SparseVector.from_torch(x).values.ctypes.data == x._values().data_ptr()
        return comm.allreduce(x), comm.allreduce(x.to_dense())

    total = vector(0, dtype="float32").to_dense() + vector(1, dtype="float32").to_dense()
    for sparse, dense in on_all(2, body):
        assert sparse.is_sparse
        assert not dense.is_sparse
        assert torch.equal(sparse.to_dense(), torch.from_numpy(total))
        assert torch.equal(dense, torch.from_numpy(total))


def test_operations_on_vectors_that_become_dense() -> None:
    def body(comm: sky.Comm) -> dict[str, sky.SparseVector]:
        n = 200
        indices = np.arange(comm.rank, n, 3)
        x = sky.SparseVector(indices, np.full(len(indices), comm.rank + 1.0), n)
        return {op: comm.allreduce(x, op=op, dense_threshold=150) for op in ("sum", "min", "max", "prod")}

    for results in on_all(3, body):
        for y in results.values():
            assert y.is_dense
            assert y.nnz == 200
            np.testing.assert_array_equal(y.to_dense(), np.arange(200) % 3 + 1.0)


def test_custom_operations_and_means() -> None:
    def body(comm: sky.Comm) -> tuple[np.ndarray, ...]:
        x = sky.SparseVector([comm.rank, 5], np.array([1.0, comm.rank + 1.0]), 8)
        custom = comm.allreduce(x, op=np.logaddexp).to_dense(-np.inf)
        return custom, comm.allreduce(x, op="mean").to_dense(), comm.allreduce(x, op="mean_present").to_dense()

    for custom, mean, present in on_all(3, body):
        assert custom[5] == pytest.approx(np.logaddexp.reduce([1.0, 2.0, 3.0]))
        assert custom[7] == -np.inf
        assert (mean[0], mean[5], present[0], present[5]) == (pytest.approx(1 / 3), 2.0, 1.0, 2.0)


def test_prune_drops_cancelled_entries() -> None:
    def body(comm: sky.Comm) -> tuple[int, list[int]]:
        x = sky.SparseVector([1, 4], np.array([1.0, 1.0 - 2.0 * comm.rank]), 9)
        return comm.allreduce(x).nnz, comm.allreduce(x, prune=True).indices.tolist()

    assert on_all(2, body) == [(2, [1])] * 2


def test_nan_and_infinity_pass() -> None:
    def body(comm: sky.Comm) -> np.ndarray:
        x = sky.SparseVector([0, 1, 2], np.array([np.nan, np.inf, -np.inf if comm.rank else np.inf]), 4)
        return comm.allreduce(x).to_dense()

    for got in on_all(2, body):
        np.testing.assert_array_equal(got, [np.nan, np.inf, np.nan, 0.0])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"algorithm": "fastest"}, "unknown algorithm"),
        ({"algorithm": "dense", "quantize": sky.Quantize(bits=4)}, "quantise partial sums"),
        ({"degrees": [3]}, "degrees 3"),
        ({"split": "odd"}, "split must be"),
        ({"dense_threshold": -4}, "dense_threshold"),
        ({"op": "median"}, "median"),
        ({"op": "mean_present", "algorithm": "ring"}, "does not send these counts"),
        ({"out": np.empty(3)}, "out= is for dense arrays"),
    ],
)
def test_settings_that_make_no_sense_on_one_rank_fail_on_all(settings: dict[str, Any], said: str) -> None:
    def body(comm: sky.Comm) -> str:
        x = vector(comm.rank)
        with pytest.raises(sky.SkyphosError) as caught:
            comm.allreduce(x, **(settings if comm.rank == 1 else {}))
        comm.barrier()
        return str(caught.value)

    for text in on_all(2, body):
        assert said in text or "settings" in text or "op=" in text


def test_real_processes(processes: Processes) -> None:
    code = (
        "idx = np.arange(comm.rank, 3_000_000, 7)\n"
        "x = sky.SparseVector(idx, np.ones(len(idx), np.float32), 3_000_000)\n"
        "for a in ['split_allgather', 'allgather', 'ring', 'recursive_doubling', 'butterfly']:\n"
        "    y = comm.allreduce(x, algorithm=a); say(a, y.nnz, float(y.values.sum()))\n"
        "say(float(comm.allreduce(np.ones(5_000_000, np.float32)).sum()))\n"
    )
    for process in processes.start(3, code):
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        lines = out.splitlines()
        assert all(line.split()[1:] == ["1285716", "1285716.0"] for line in lines[:5]), lines
        assert lines[5] == "15000000.0"


def showing(array: np.ndarray[Any, Any], *protocols: str) -> Any:
    """An object that has only these protocols of an array."""
    return type("Showing", (), {name: getattr(array, name) for name in protocols})()


def test_objects_with_an_array_protocol_are_accepted() -> None:
    array = np.arange(6, dtype=np.float32)
    kinds = [
        showing(array, "__array_interface__"),
        showing(array, "__dlpack__", "__dlpack_device__"),
        memoryview(array),
    ]

    def body(comm: sky.Comm) -> None:
        for x in kinds:
            total = comm.allreduce(x)
            assert type(total) is np.ndarray and (total == comm.size * array).all(), x
        assert (comm.allreduce(b"\1\2", op="max") == [1, 2]).all()
        for bad in ("text", object(), {1.0}, None):
            with pytest.raises(sky.BadInput, match="gives access to an array"):
                comm.allreduce(bad)

    on_all(2, body)
