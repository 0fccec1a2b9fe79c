"""SparseVector and the collectives of vectors against NumPy, and what they refuse."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pyarrow
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import skyphos as sky
from conftest import Processes, on_all
from skyphos.collectives.allgather import Schedule
from skyphos.collectives.allreduce import Algorithm

DTYPES = ["float32", "float64", "int32", "int64", "uint8", "uint32", "uint64"]
UFUNCS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
ALGORITHMS = [name for name in get_args(Algorithm) if name != "dense_mpi"]  # which is over MPI only
SPARSE = [name for name in ALGORITHMS if not name.startswith("dense")]
DENSE = [name for name in ALGORITHMS if name not in SPARSE or name == "auto"]
SCHEDULES = get_args(Schedule)


def vector(rank: int, n: int = 1000, dtype: str = "float64", width: int = 1) -> sky.SparseVector:
    """Some entries with small whole numbers, so that sums are exact."""
    rng = np.random.default_rng([rank, n])
    indices = np.unique(rng.integers(0, n, n // 7))
    shape = (len(indices),) if width == 1 else (len(indices), width)
    return sky.SparseVector(indices, rng.integers(1, 4, shape).astype(dtype), n)


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


def test_the_kind_that_came_in() -> None:
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


def test_operations_across_the_change_of_form() -> None:
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


@pytest.mark.parametrize("size", [1, 2, 5])
def test_reduce_scatter_and_reduce(size: int) -> None:
    def body(comm: sky.Comm) -> tuple[Any, ...]:
        x = vector(comm.rank)
        return comm.reduce_scatter(x), comm.reduce_scatter(x.to_dense()), comm.reduce(x, root=size - 1)

    total = sum(vector(rank).to_dense() for rank in range(size))
    got = on_all(size, body)
    for rank, (part, array, _) in enumerate(got):
        assert part.owned == range(1000 * rank // size, 1000 * (rank + 1) // size)
        np.testing.assert_array_equal(part.to_dense()[part.owned], total[part.owned])
        np.testing.assert_array_equal(array, total[part.owned])
        assert set(part.indices) <= set(part.owned)
    assert [reduced is None for *_, reduced in got] == [True] * (size - 1) + [False]
    np.testing.assert_array_equal(got[-1][2].to_dense(), total)


@pytest.mark.parametrize("degrees", [None, [4], [2, 2]])
def test_layers_of_a_reduce_scatter(degrees: list[int] | None) -> None:
    def body(comm: sky.Comm) -> tuple[Any, ...]:
        return comm.reduce_scatter(vector(comm.rank), degrees=degrees, expected_nnz=400, explain=True)

    total = sum(vector(rank).to_dense() for rank in range(4))
    for rank, (part, how) in enumerate(on_all(4, body)):
        assert part.owned == range(250 * rank, 250 * (rank + 1))
        np.testing.assert_array_equal(part.to_dense()[part.owned], total[part.owned])
        assert int(np.prod(how.degrees)) == 4 and (degrees is None or list(how.degrees) == degrees)
        assert (how.predicted is None) == (degrees is not None)
        assert "dense above" not in str(how) and f"{part.nnz} in the result" in str(how)


def test_layers_that_cannot_be() -> None:
    def body(comm: sky.Comm) -> None:
        x = vector(comm.rank)
        with pytest.raises(sky.BadInput, match="size 4"):
            comm.reduce_scatter(x, degrees=[3, 2])
        with pytest.raises(sky.BadInput, match="positive"):
            comm.reduce_scatter(x, degrees=[-2, -2])
        with pytest.raises(sky.BadInput, match="mean_present"):
            comm.reduce_scatter(x, degrees=[2, 2], op="mean_present")
        with pytest.raises(sky.BadInput, match="sparse vectors"):
            comm.reduce_scatter(x.to_dense(), explain=True)
        with pytest.raises(sky.BadInput, match="expected_nnz"):
            comm.reduce_scatter(x, expected_nnz=1001)

    on_all(4, body)


def test_how_an_allgather_went() -> None:
    def body(comm: sky.Comm) -> list[sky.Explanation]:
        x, array = vector(comm.rank), vector(comm.rank).to_dense()
        found = [comm.allgather(x, explain=True)[1] for _ in range(3)]
        return [*found, comm.allgather(array, explain=True)[1], comm.allgather(x, algorithm="ring", explain=True)[1]]

    all_found = on_all(4, body)
    for found in all_found:
        assert [how.algorithm for how in found] == [how.algorithm for how in all_found[0]]
        assert all(how.algorithm in SCHEDULES for how in found)
        assert found[-1].algorithm == "ring" and 'asked for "ring"' in str(found[-1])
        assert all(how.sent_bytes > 0 for how in found)
        assert found[0].result_entries == sum(vector(rank).nnz for rank in range(4))


@pytest.mark.parametrize("algorithm", SCHEDULES)
def test_allgather(algorithm: Any) -> None:
    def body(comm: sky.Comm) -> tuple[list[sky.SparseVector], np.ndarray]:
        x = vector(comm.rank)
        return comm.allgather(x, algorithm=algorithm), comm.allgather(
            x.to_dense().reshape(10, 100), algorithm=algorithm
        )

    for vectors, arrays in on_all(5, body):
        assert arrays.shape == (5, 10, 100)
        for rank, theirs in enumerate(vectors):
            np.testing.assert_array_equal(theirs.to_dense(), vector(rank).to_dense())
            np.testing.assert_array_equal(arrays[rank].ravel(), vector(rank).to_dense())


def test_gather_alltoall_scatter() -> None:
    def body(comm: sky.Comm) -> tuple[Any, ...]:
        x = [vector(10 * comm.rank + to) for to in range(3)]
        shares = x if comm.rank == 1 else None
        return comm.gather(x[0], root=2), comm.alltoall(x), comm.scatter(shares, like=x[0], root=1)

    for rank, (gathered, each, share) in enumerate(on_all(3, body)):
        assert (gathered is not None) == (rank == 2)
        for k, theirs in enumerate(gathered or []):
            np.testing.assert_array_equal(theirs.to_dense(), vector(10 * k).to_dense())
        for k, theirs in enumerate(each):
            np.testing.assert_array_equal(theirs.to_dense(), vector(10 * k + rank).to_dense())
        np.testing.assert_array_equal(share.to_dense(), vector(10 + rank).to_dense())


def test_vectors_from_and_to() -> None:
    dense = np.array([0.0, 2.0, 0.0, 3.0])
    x = sky.SparseVector.from_dense(dense)
    assert (x.nnz, x.n, x.width, x.is_dense, x.nbytes) == (2, 4, 1, False, 32)
    np.testing.assert_array_equal(sky.SparseVector.from_scipy(x.to_scipy()).to_dense(), dense)
    np.testing.assert_array_equal(sky.SparseVector.from_scipy(scipy.sparse.coo_array(dense)).to_dense(), dense)
    kept = sky.SparseVector.from_dense(dense, keep_zeros=True)
    assert kept.is_dense
    assert np.shares_memory(kept.values, dense)
    rows = sky.SparseVector([2, 0], np.array([[1.0, 2.0], [3.0, 4.0]]), 3)
    np.testing.assert_array_equal(rows.to_dense(), [[3, 4], [0, 0], [1, 2]])
    np.testing.assert_array_equal(rows.to_scipy().toarray(), rows.to_dense())
    indices, values = np.array([1, 5]), np.array([1.0, 2.0])
    assert np.shares_memory(sky.SparseVector(indices, values, 9).indices, indices)
    low = sky.SparseVector([3, 1, 3], np.array([5, 2, 4]), 9, op="min")
    assert (low.indices.tolist(), low.values.tolist()) == ([1, 3], [2, 4])
    assert sky.SparseVector([], np.empty(0), 5).to_dense().tolist() == [0.0] * 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([1, 10], [1.0, 2.0], 10), r"indices\[1\] = 10 is outside"),
        (([-1, 1], [1.0, 2.0], 10), r"indices\[0\] = -1 is outside"),
        (([3, 1, 12], [1.0, 2.0, 3.0], 10), r"indices\[2\] = 12 is outside"),
        (([1], [1.0, 2.0], 10), "shape"),
        (([1.5], [1.0], 10), "integers"),
        (([1], [1j], 10), "float32"),
        (([1], [1.0], -1), "n must be"),
        (([[1]], [1.0], 10), "1-D"),
    ],
)
def test_vectors_that_make_no_sense(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(sky.BadInput, match=said):
        sky.SparseVector(*arguments)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"algorithm": "fastest"}, "unknown algorithm"),
        ({"algorithm": "dense", "quantize": sky.Quantize(bits=4)}, "adds up on the way"),
        ({"degrees": [3]}, "degrees 3"),
        ({"split": "odd"}, "split must be"),
        ({"dense_threshold": -4}, "dense_threshold"),
        ({"op": "median"}, "median"),
        ({"op": "mean_present", "algorithm": "ring"}, "loses on the way"),
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


def test_ranks_that_differ_are_named() -> None:
    def body(comm: sky.Comm) -> list[str]:
        said = []
        for x, call in [
            (vector(comm.rank, n=1000 + comm.rank // 2), comm.allreduce),
            (vector(0, dtype=["float32", "float64"][comm.rank // 2]), comm.allreduce),
            (vector(0), comm.allgather if comm.rank == 2 else comm.reduce),
        ]:
            with pytest.raises(sky.Mismatch) as caught:
                call(x)
            said.append(str(caught.value))
        return said

    for n, dtype, calls in on_all(3, body):
        assert "n=1000" in n
        assert "n=1001" in n
        assert "float32" in dtype
        assert "float64" in dtype
        assert "allgather" in calls
        assert "reduce(" in calls


@pytest.mark.parametrize(
    "call",
    [
        lambda comm, x: comm.allreduce(x),
        lambda comm, x: comm.allreduce(x, async_op=True).wait(),
        lambda comm, x: comm.reduce(x),
        lambda comm, x: comm.reduce_scatter(x),
        lambda comm, x: comm.allgather(x),
        lambda comm, x: comm.gather(x),
        lambda comm, x: comm.alltoall([x, x]),
        lambda comm, x: comm.scatter([x, x], like=x),
    ],
)
def test_matrices_of_other_shapes_are_refused(call: Any) -> None:
    """They travel as vectors of entries, which may be as long. One of a single row goes with vectors."""
    scipy_sparse = pytest.importorskip("scipy.sparse")
    entries = np.arange(6.0)

    def body(comm: sky.Comm, shapes: Any) -> None:
        x = scipy_sparse.csr_array(entries.reshape(shapes[comm.rank]))
        with pytest.raises(sky.Mismatch):
            call(comm, x)
        comm.barrier()

    for shapes in [((2, 3), (3, 2)), ((1, 6), (6, 1)), ((6, 1), (2, 3))]:
        on_all(2, lambda comm, shapes=shapes: body(comm, shapes))
    on_all(2, lambda comm: call(comm, scipy_sparse.csr_array(entries.reshape(2, 3))))
    row = scipy_sparse.csr_array(entries.reshape(1, 6))
    on_all(2, lambda comm: call(comm, row if comm.rank else sky.SparseVector.from_dense(entries)))


def test_masks_that_arrays_show_are_seen() -> None:
    class Shows:
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            return np.ma.array([1.0, 2.0], mask=[True, False])

    def body(comm: sky.Comm) -> None:
        for call in (comm.allreduce, comm.allgather, lambda x: comm.shuffle([0, 0], x)):
            with pytest.raises(sky.BadInput, match="masked array"):
                call(Shows())

    on_all(2, body)


def test_other_objects_are_refused_by_all() -> None:
    def body(comm: sky.Comm) -> str:
        with pytest.raises(sky.BadInput) as caught:
            comm.allreduce("text" if comm.rank else vector(0))
        return str(caught.value)

    assert all("not str" in text for text in on_all(2, body))


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


def showing(array: np.ndarray[Any, Any], *ways: str) -> Any:
    """An object that shows an array in these ways alone."""
    return type("Showing", (), {way: getattr(array, way) for way in ways})()


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
            with pytest.raises(sky.BadInput, match="shows an array"):
                comm.allreduce(bad)

    on_all(2, body)


def test_arrow_tables() -> None:
    for x in (
        sky.SparseVector([9, 2, 5], np.array([[1, 2], [3, 4], [5, 6]]), 12),
        sky.SparseVector([9, 2], np.array([1.5, 2.5], np.float32), 12),
    ):
        table = x.to_arrow()
        back = sky.SparseVector.from_arrow(table, 12)
        assert (back.indices == x.indices).all() and (back.values == x.values).all() and back.dtype == x.dtype
        assert (sky.SparseVector.from_arrow(pyarrow.concat_tables([table, table]), 12).values == 2 * x.values).all()
        assert (sky.SparseVector.from_arrow(table.to_batches()[0], 12).values == x.values).all()
    columns = {"at": [1, 2], "gone": [1.0, None], "text": ["a", "b"]}
    for index, values, text in [("no", "at", "no column 'no'"), ("at", "gone", "1 nulls"), ("at", "text", "string")]:
        with pytest.raises(sky.BadInput, match=text):
            sky.SparseVector.from_arrow(pyarrow.table(columns), 3, index=index, values=values)
