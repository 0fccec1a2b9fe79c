"""Kinds of values that are returned as they were passed: truth values, numbers, lists, objects, matrices; refusals."""

from __future__ import annotations

import json
import operator
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import networkx
import numpy as np
import pyarrow
import pytest
import scipy.sparse

import skyphos as sky
from conftest import Processes, on_all
from skyphos.graph import DistMatrix, Edges, pagerank
from skyphos.launch.bootstrap import sign_of_job
from skyphos.mapreduce import MapReduce

MASKED = np.ma.array([1.0, 2.0], mask=[True, False])


def refused(size: int, call: Callable[[sky.Comm], Any], *, on: int | None = None) -> list[str]:
    """The error of a call that all ranks refuse. With ``on``, only that rank makes it, and the others a valid call."""

    def body(comm: sky.Comm) -> str:
        with pytest.raises(sky.SkyphosError) as caught:
            call(comm) if on in (None, comm.rank) else comm.allreduce(np.ones(2))
        comm.barrier()
        return str(caught.value)

    said: list[str] = on_all(size, body)
    return said


# -- Truth values.


def test_truth_values_stay_truth_values() -> None:
    def body(comm: sky.Comm) -> None:
        size, rank = comm.size, comm.rank
        mask = np.arange(5) == rank
        either = np.arange(5) < size
        for op, want in (("or", either), ("max", either), (np.logical_or, either), ("and", np.zeros(5, bool))):
            for got in (
                comm.allreduce(mask, op=op),
                comm.allreduce(mask, op=op, algorithm="ring"),
                comm.allreduce(mask, op=op, async_op=True).wait(),
                comm.configure_reduce(np.arange(5), np.arange(5), mask, n=5, op=op),
                comm.configure(np.arange(5), np.arange(5), n=5).reduce(mask, op=op),
                comm.allreduce(sky.SparseVector(np.arange(5), mask, 5), op=op).to_dense(),
            ):
                assert got.dtype == np.bool_ and (got == want).all(), (op, got)
        rows = comm.allgather(mask)
        assert rows.dtype == np.bool_ and (rows == np.eye(size, 5, dtype=bool)).all()
        assert comm.alltoall(np.ones((size, 2), bool)).dtype == np.bool_
        assert comm.broadcast(mask, root=0).dtype == np.bool_
        assert comm.scatter([mask] * size if rank == 0 else None, like=mask).tolist() == (np.arange(5) == 0).tolist()
        out = np.zeros(5, bool)
        assert comm.allreduce(mask, op="or", out=out) is not None and (out == either).all()
        part = comm.reduce_scatter(sky.SparseVector([0, 4], [True, True], 5), op="max")
        assert part.dtype == np.bool_ and part.values.all()
        x = np.array([10, 20, 30, 40, 50])
        assert x[comm.allreduce(mask, op="or")].tolist() == x[:size].tolist()

    on_all(3, body)


def test_sums_of_truth_values_count() -> None:
    def body(comm: sky.Comm) -> None:
        many = np.ones(300, bool)
        zeros = np.zeros(300, int)
        for op in ("sum", np.add):
            assert comm.configure(zeros, [0], n=1).reduce(many, op=op).tolist() == [300 * comm.size]
            assert comm.configure_reduce(zeros, [0], many, n=1, op=op).tolist() == [300 * comm.size]
        for got in (comm.allreduce(many), comm.allreduce(sky.SparseVector.from_dense(many)).values):
            assert got.dtype == np.int64 and (got == comm.size).all()
        counts = comm.allreduce(many, out=np.empty(300, np.int64))
        assert counts.dtype == np.int64 and counts.sum() == 300 * comm.size
        whole = [got for got in gathered_values(comm, comm.shuffle(zeros, many)[1].tolist()) if got]
        assert whole == [[300 * comm.size]]
        # Truth values are counted, so they have the type of another rank's integers.
        mixed = comm.allreduce(many if comm.rank else np.full(300, 7))
        assert mixed.dtype == np.int64 and (mixed == 7 + comm.size - 1).all()
        with pytest.raises(sky.BadInput, match="floating-point values, not bool"):
            comm.allreduce(many, op="mean")
        with pytest.raises(sky.BadInput, match="out must be a int64"):
            comm.allreduce(many, out=np.empty(300, bool))

    on_all(3, body)


def gathered_values(comm: sky.Comm, x: Any) -> list[Any]:
    found: list[Any] = comm.allgather(x)
    return found


def test_truth_values_of_a_repeated_index() -> None:
    assert sky.SparseVector([0] * 256, np.ones(256, bool), n=1).values.tolist() == [True]
    for op, want in (("or", True), ("sum", True), ("and", False), ("min", False), ("max", True), ("prod", False)):
        x = sky.SparseVector([3, 3], [True, False], n=5, op=op)
        assert x.dtype == np.bool_ and x.values.tolist() == [want], op


def test_truth_values_by_key() -> None:
    def body(comm: sky.Comm) -> Any:
        keys, values = [0, 0, 1], np.array([True, False, False])
        done = {}
        for combine in ("or", "and", "min", "max", "sum", "list", np.logical_or):
            got = comm.shuffle(keys, values, combine)
            done[str(combine)] = dict(zip(got[0], got[1], strict=True))
        # A rank without pairs gets the type of the other rank's values.
        nothing = comm.shuffle([] if comm.rank else [5], [] if comm.rank else [True], "or")[1]
        assert nothing.dtype == np.bool_ if isinstance(nothing, np.ndarray) else nothing == []
        return done

    whole: dict[str, dict[int, Any]] = {}
    for done in on_all(2, body):
        for name, got in done.items():
            whole.setdefault(name, {}).update(got)
    for name in ("or", "max", str(np.logical_or)):
        assert whole[name] == {0: True, 1: False} and whole[name][0].dtype == np.bool_
    for name in ("and", "min"):
        assert whole[name] == {0: False, 1: False} and whole[name][0].dtype == np.bool_
    assert whole["sum"] == {0: 2, 1: 0} and whole["sum"][0].dtype == np.int64
    assert sorted(whole["list"][0].tolist()) == [False, False, True, True] and whole["list"][0].dtype == np.bool_


@pytest.mark.parametrize("collective", ["shuffle", "allreduce"])
def test_truth_values_in_map_reduce(collective: Any) -> None:
    def body(comm: sky.Comm) -> Any:
        parts = [np.arange(200), np.arange(200, 300)]
        found = {}
        for reduce in ("sum", "or"):
            job = MapReduce(
                comm,
                map=lambda part, _: (np.zeros(len(part), int), part >= 0),
                reduce=reduce,
                combine=lambda keys, values: np.asarray(values),
                partitions=parts,
                collective=collective,
            )
            found[reduce] = job.iterate(np.zeros(1), iterations=1)
        return found

    for found in on_all(2, body):
        assert found["sum"].dtype == np.int64 and found["sum"].tolist() == [600]
        assert found["or"].dtype == np.bool_ and found["or"].tolist() == [True]


# -- Masked arrays and other classes.


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.allreduce(MASKED),
        lambda c: c.allreduce([MASKED, MASKED]),
        lambda c: c.allreduce(np.ones(2), out=np.ma.zeros(2)),
        lambda c: c.allgather(MASKED),
        lambda c: c.gather(MASKED),
        lambda c: c.reduce(MASKED),
        lambda c: c.reduce_scatter(MASKED),
        lambda c: c.alltoall([MASKED] * c.size),
        lambda c: c.alltoall(np.ma.zeros((c.size, 2))),
        lambda c: c.scatter([MASKED] * c.size, like=MASKED),
        lambda c: c.configure(np.ma.array([1, 2], mask=[0, 1]), [1], n=3),
        lambda c: c.configure([1], np.ma.array([1, 2], mask=[0, 1]), n=3),
        lambda c: c.configure([0, 1], [1], n=3).reduce(MASKED),
        lambda c: c.configure([0, 1], [0, 1], n=3).reduce(np.ones(2), out=np.ma.zeros(2)),
        lambda c: c.configure_reduce([0, 1], [1], MASKED, n=3),
        lambda c: c.configure_reduce([0, 1], [1], [1.0, np.ma.masked], n=3),
        lambda c: c.topk_allreduce(MASKED, k=1),
        lambda c: sky.TopK(k=1).allreduce(c, MASKED),
        lambda c: c.outer_product_sum(MASKED, np.ones(3)),
        lambda c: c.outer_product_sum(np.ones(3), MASKED),
        lambda c: c.outer_product_sum(np.ones(3), np.ones(2), out=np.ma.zeros((3, 2))),
        lambda c: c.shuffle([0, 0], MASKED),
        lambda c: c.shuffle(np.ma.array([0, 1], mask=[0, 1]), [1, 2]),
        lambda c: c.shuffle([0, 0], MASKED, lambda key, a, b: a),
        lambda c: c.shuffle([0, 0], [1.0, np.ma.masked]),
        lambda c: DistMatrix(c, [0, 1], [1, 0], MASKED),
        lambda c: DistMatrix(c, [0, 1], [1, 0]).matvec(np.ma.ones(2)),
        lambda c: pagerank(c, np.ma.ones((2, 2))),
    ],
)
def test_masked_arrays_are_refused_by_name(call: Any) -> None:
    assert all(("masked" in text and "filled" in text) or "mask" in text for text in refused(2, call))


def test_masked_arrays_elsewhere(tmp_path: Path) -> None:
    for call in (
        lambda: sky.SparseVector([0, 1], MASKED, 3),
        lambda: sky.SparseVector(np.ma.array([0, 1], mask=[0, 1]), [1.0, 2.0], 3),
        lambda: sky.SparseVector.from_dense(MASKED),
        lambda: sky.SparseVector([0], [1.0], 3).to_dense(np.ma.masked),
        lambda: sky.LowRank(np.ma.ones((1, 2)), np.ones((1, 2))),
        lambda: sky.LowRank(np.ones((1, 2)), np.ones((1, 2))).add_to(np.ma.ones((2, 2))),
        lambda: sky.TopK(k=1).compress(MASKED),
        lambda: Edges(np.ma.array([0, 1], mask=[0, 1]), np.array([1, 0])),
    ):
        with pytest.raises(sky.BadInput, match="masked"):
            call()
    with sky.init() as comm:
        with pytest.raises(sky.BadInput, match=r"'x' is not an array of numbers.*masked"):
            sky.Checkpoint(tmp_path).save(comm, 1, {"x": MASKED})
        # An object that holds a masked array is pickled with the mask.
        assert comm.broadcast({"x": MASKED})["x"].mask.tolist() == [True, False]


def test_nulls_of_arrow_are_refused() -> None:
    column = pyarrow.array([1.0, None])
    for text in refused(2, lambda comm: comm.allreduce(column)):
        assert "null" in text.lower()
    assert on_all(2, lambda comm: comm.allreduce(pyarrow.array([1.0, 2.0])).tolist()) == [[2.0, 4.0]] * 2


# -- Numbers and lists.


def test_numbers_of_python() -> None:
    def body(comm: sky.Comm) -> None:
        first = comm.rank == 0
        assert comm.allreduce(3.5) == 7.0 and type(comm.allreduce(3.5)) is float
        assert comm.allreduce(2**62) == 2**63 and type(comm.allreduce(3)) is int
        assert comm.allreduce(-(2**62)) == -(2**63)
        assert comm.allreduce(True) == 2 and comm.allreduce(True, op="and") is True
        assert comm.allreduce(0 if first else 1.5) == 1.5
        assert comm.allreduce(first, op="max") is True
        assert comm.allreduce(1.5, op="mean") == 1.5
        got = comm.allreduce(np.float32(1.5))
        assert type(got) is np.float32 and got == 3
        assert type(comm.allreduce(np.int32(4) if first else 5)) is (np.int32 if first else int)
        assert comm.allreduce(4, op=np.add if first else "sum") == 8 and comm.allreduce(4, op=np.gcd) == 4
        assert comm.allreduce(5, async_op=True).wait() == 10
        assert comm.reduce(4, root=1) == (None if first else 8)
        assert comm.allgather(comm.rank) == [0, 1] and comm.gather(1.5) == ([1.5, 1.5] if first else None)
        assert [type(one) for one in comm.allgather(np.int8(3))] == [np.int8] * 2
        assert comm.scatter([1, "b"] if first else None) == (1 if first else "b")
        assert comm.alltoall([10 * comm.rank, 10 * comm.rank + 1]) == [comm.rank, 10 + comm.rank]
        assert comm.broadcast(7 if first else None) == 7
        assert comm.allreduce(np.nan if first else 1.0) != comm.allreduce(1.0)
        assert comm.allreduce(np.inf) == np.inf

    on_all(2, body)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.allreduce(2**63), "18446744073709551616, which does not fit 64 bits"),
        (lambda c: c.allreduce(2**64), "must fit 64 bits"),
        (lambda c: c.allreduce([1, -(2**63) - 1]), "must fit 64 bits"),
        (lambda c: c.allreduce([2**63] * 400), "does not fit 64 bits"),
        (lambda c: c.allreduce(2**40, op="prod"), "64 bits"),
        (lambda c: c.allreduce(np.int8(100)), "200, which does not fit int8"),
        (lambda c: c.allreduce(1j), "x.real, x.imag"),
        (lambda c: c.allreduce(np.complex64(1)), "x.real, x.imag"),
        (lambda c: c.allreduce("text"), "not str"),
        (lambda c: c.allreduce([1, "a"]), "list of str"),
        (lambda c: c.allreduce([[1], [1, 2]]), "one length"),
        (lambda c: c.allreduce([np.ones(2)]), "np.stack"),
        (lambda c: c.allreduce({1: 2}), "comm.allgather and comm.broadcast take any object"),
        (lambda c: c.allreduce(one for one in [1]), r"np.array\(list\(x\)\)"),
        (lambda c: c.allreduce(1, op="mean"), "integers"),
        (lambda c: c.allreduce(1.5, op="or"), "integers"),
        (lambda c: c.allreduce(1, algorithm="ring"), "options beside op="),
        (lambda c: c.reduce_scatter(3.5), "no parts"),
        (lambda c: c.allreduce(1, op="median"), "unknown operation"),
        (lambda c: c.allreduce(np.zeros(2, np.int8)), r"astype\(np.int32\)"),
        (lambda c: c.allreduce(np.zeros(2, complex)), r"view\(np.float64\)"),
    ],
)
def test_numbers_that_cannot_be_reduced(call: Any, words: str) -> None:
    import re

    assert all(re.search(words, text) for text in refused(2, call))


def test_a_number_too_large_for_another_ranks_type_is_not_changed() -> None:
    def reduced(*numbers: Any, op: str = "sum") -> Any:
        return sky.local(len(numbers)).run(lambda comm: comm.allreduce(numbers[comm.rank], op=op))[0]

    for numbers, op, expected in [
        ((np.float16(1), 100_000), "max", np.float64(100_000)),
        ((np.float16(1), 1e5), "max", np.float64(1e5)),
        ((np.float32(1), 2**24 + 1), "sum", np.float64(2**24 + 2)),
        ((ml_dtypes.bfloat16(1), 257), "sum", np.float64(258)),
        ((np.float32(1), 2**24), "max", np.float32(2**24)),
        ((np.float16(1), float("inf")), "max", np.float16("inf")),
        ((np.float32(0.5), 3), "sum", np.float32(3.5)),
    ]:
        found = reduced(*numbers, op=op)
        assert found == expected and type(found) is type(expected), (numbers, found)


def test_lists_of_numbers() -> None:
    def body(comm: sky.Comm) -> None:
        assert comm.allreduce([1, 2]) == [2, 4]
        assert comm.allreduce([[1, 2], [3, 4.5]]) == [[2.0, 4.0], [6.0, 9.0]]
        assert comm.allreduce((1, 2)) == (2, 4)
        assert comm.allreduce([]) == []
        assert comm.allreduce([1] if comm.rank else [1.5]) == [2.5]
        assert comm.allreduce([2**63] if comm.rank else [1]) == [2**63 + 1]
        assert comm.allreduce([True, False], op="or") == [True, False] and comm.allreduce([True, False]) == [2, 0]
        many = list(range(1000))
        assert comm.allreduce(many) == [2 * one for one in many]
        assert comm.allreduce([float(one) for one in many]) == [2.0 * one for one in many]
        assert comm.allreduce([2**62] * 1000)[0] == 2**63
        assert comm.allreduce(many, async_op=True).wait()[-1] == 1998
        assert comm.reduce([1.0, 2.0]) == (None if comm.rank else [2.0, 4.0])
        assert comm.reduce_scatter([1, 2, 3]) == ([4, 6] if comm.rank else [2])
        assert comm.allgather([1, 2]) == [[1, 2]] * 2

    on_all(2, body)


def test_ranks_with_numbers_of_different_types() -> None:
    for call in (
        lambda c: c.allreduce(3, op="max" if c.rank else "min"),
        lambda c: c.allreduce([1] if c.rank else [1, 2]),
        lambda c: c.allreduce([1] if c.rank else 1),
        lambda c: c.allreduce(3) if c.rank else c.allreduce(np.ones(3)),
        lambda c: c.allreduce(3) if c.rank else c.allgather(3),
        lambda c: c.reduce(3) if c.rank else c.allreduce(3),
    ):

        def body(comm: sky.Comm, call: Any = call) -> None:
            with pytest.raises(sky.Mismatch):
                call(comm)
            comm.barrier()

        on_all(2, body)


# -- Objects.


class Unreadable:
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> Any:
        return _fail, ()


def _fail() -> None:
    raise RuntimeError("not here")


def test_objects_are_gathered() -> None:
    def body(comm: sky.Comm) -> None:
        rank, size = comm.rank, comm.size
        for x in ({"a": rank}, {rank}, "text" * rank, None, b"by\0" * rank, picklable, [{}, ()], "é", [None, "a"]):
            assert comm.allgather(x)[rank] == x and len(comm.allgather(x)) == size
            assert comm.gather(x, root=1) == (comm.allgather(x) if rank == 1 else comm.allgather(x) and None)
        assert comm.allgather({"rank": rank}, async_op=True).wait() == [{"rank": k} for k in range(size)]
        assert comm.gather(rank, async_op=True).wait() == (None if rank else list(range(size)))
        big = {"x": np.full(100_000 * (rank == 2), 3.0)}  # rank 2's object is far larger than the others
        assert [one["x"].size for one in comm.allgather(big)] == [0, 0, 100_000]
        assert comm.alltoall([(rank, to) for to in range(size)]) == [(source, rank) for source in range(size)]
        assert comm.scatter([{k: k} for k in range(size)] if rank == 1 else None, root=1) == {rank: rank}
        _, how = comm.allgather({"a": 1}, explain=True)
        assert how.algorithm
        comm.allgather({"a": 1}, algorithm="ring")

    on_all(3, body)


def picklable(key: Any) -> Any:
    """A function that can be pickled."""
    return key


@pytest.mark.parametrize("on", [None, 1])
def test_objects_that_cannot_travel(on: int | None) -> None:
    for text in refused(2, lambda comm: comm.allgather(lambda: 0), on=on):
        assert "cannot be pickled" in text

    def unreadable(comm: sky.Comm) -> None:
        for call in (lambda: comm.allgather(Unreadable()), lambda: comm.gather(Unreadable())):
            with pytest.raises(sky.BadInput, match="cannot be read here: not here"):
                call()
        comm.barrier()

    on_all(2, unreadable)


def test_an_object_among_arrays_is_a_mismatch() -> None:
    def body(comm: sky.Comm) -> list[str]:
        said = []
        for call in (comm.allgather, comm.gather, comm.allreduce):
            with pytest.raises((sky.Mismatch, sky.BadInput)) as caught:
                call({"a": 1} if comm.rank else np.ones(3))
            said.append(str(caught.value))
        for other in (sky.SparseVector([1], [1.0], 5), np.ones(3)):
            with pytest.raises(sky.Mismatch, match="of objects"):
                comm.allgather("text" if comm.rank else other)
        comm.barrier()
        return said

    for gathered, at_root, _ in on_all(2, body):
        assert "allgather of arrays" in gathered and "allgather of objects" in gathered, gathered
        assert "gather of objects" in at_root


def test_objects_over_processes(processes: Processes) -> None:
    code = (
        "import json\n"
        "say(json.dumps([comm.allgather({'rank': comm.rank}), comm.gather('x' * comm.rank), comm.allreduce(2.5),\n"
        "  comm.allreduce([1, 2]), comm.alltoall([comm.rank] * comm.size), len(comm.allgather(b'1' * 10**6)[1])]))\n"
    )
    for rank, (out, err) in enumerate(processes.lines(3, code)):
        assert json.loads(out) == [
            [{"rank": k} for k in range(3)],
            None if rank else ["", "x", "xx"],
            7.5,
            [3, 6],
            [0, 1, 2],
            10**6,
        ], err


# -- Matrices and other arrays.


def test_matrices_stay_matrices_and_the_callers_matrix_is_not_changed() -> None:
    A = scipy.sparse.csr_matrix(np.array([[1.0, 2.0], [3.0, 4.0]]))
    B = scipy.sparse.csr_array((np.array([1.0, 2.0, 3.0]), np.array([1, 0, 0]), np.array([0, 3])), shape=(1, 2))
    with sky.init() as comm:
        y = comm.allreduce(A)
        assert type(y) is scipy.sparse.csr_matrix and ((y * y).toarray() == (A * A).toarray()).all()
        assert comm.allreduce(B).toarray().tolist() == [[5.0, 1.0]] and B.nnz == 3
        for part in (B.data, B.indices, B.indptr):
            part.setflags(write=False)
        C = scipy.sparse.csr_array((B.data, B.indices, B.indptr), shape=(1, 2))
        assert comm.allreduce(C).toarray().tolist() == [[5.0, 1.0]]
        assert sky.SparseVector.from_scipy(C).to_dense().tolist() == [[5.0, 1.0]] and C.nnz == 3
        bsr = scipy.sparse.bsr_matrix(np.kron(np.eye(2), np.ones((2, 3))), blocksize=(2, 3))
        assert comm.allreduce(bsr).blocksize == (2, 3)
        factors = scipy.sparse.csr_matrix(np.eye(2))
        assert type(comm.outer_product_sum(factors, factors)) is scipy.sparse.csr_matrix
        one = scipy.sparse.csr_array(scipy.sparse.coo_array((np.array([2.0]), (np.array([5]),)), shape=(9,)))
        assert comm.allreduce(one).format == "csr" and comm.allreduce(one).shape == (9,)


def test_unstored_elements_of_a_sparse_matrix_are_absent() -> None:
    def body(comm: sky.Comm) -> None:
        mine = scipy.sparse.csr_array(np.array([[0.0, 5.0], [0.0, 0.0]]) if comm.rank else np.array([[3.0, 0], [0, 0]]))
        for op in ("min", "prod"):
            got = comm.allreduce(mine, op=op)
            assert got.nnz == 2 and got.toarray().tolist() == [[3.0, 5.0], [0.0, 0.0]]
        part = comm.reduce_scatter(mine)  # by rows
        assert part.shape == (2, 2) and part.toarray().tolist() == ([[0, 0], [0, 0]] if comm.rank else [[3, 5], [0, 0]])
        wide = scipy.sparse.coo_array(([1.0], ([0], [2**40])), shape=(1, 2**41))
        assert comm.allreduce(wide).data.tolist() == [2.0]
        assert comm.reduce_scatter(wide).sum() == (2.0 if comm.rank else 0.0)
        assert comm.topk_allreduce(wide, k=1).indices.tolist() == [2**40]
        with pytest.raises(sky.BadInput, match="op sum or mean"):
            comm.reduce_scatter(mine, op="min")

    on_all(2, body)


def test_sparse_truth_values() -> None:
    def body(comm: sky.Comm) -> None:
        mask = scipy.sparse.csr_matrix(np.arange(6).reshape(2, 3) % 3 == comm.rank)
        either = comm.allreduce(mask, op="or")
        assert type(either) is scipy.sparse.csr_matrix and either.dtype == np.bool_ and either.nnz == 4
        counts = comm.allreduce(mask)
        assert counts.dtype == np.int64 and counts.sum() == 4
        rows = comm.reduce_scatter(mask)
        assert rows.dtype == np.int64 and rows.toarray()[comm.rank].tolist() == [1, 1, 0] and rows.nnz == 2
        assert comm.allgather(mask)[1].dtype == np.bool_
        total, plan, how = comm.allreduce(mask.astype(float), keep_plan=True, explain=True)
        assert plan.reduce(np.ones(2)).tolist() == [1.0] * 4 and total.nnz == 4 and how.algorithm

    on_all(2, body)


def test_low_rank_factors_are_not_reduced_as_a_vector() -> None:
    low = sky.LowRank(np.ones((1, 2)), np.ones((1, 3)))
    with sky.init() as comm:
        assert type(comm.allgather(low)[0]) is sky.LowRank
        with pytest.raises(sky.BadInput, match="to_dense"):
            comm.allreduce(low)


def test_columns_of_pandas() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")

    def body(comm: sky.Comm) -> None:
        column = pandas.Series([1.0, 2.0], index=["a", "b"])
        assert comm.allreduce(column).tolist() == [2.0, 4.0]
        plan = comm.configure(pandas.Index([3, 5]), pandas.Series([5]), n=9)
        assert plan.reduce(column).tolist() == [4.0]
        keys, values = comm.shuffle(pandas.Series(["a", "b"]), column)
        assert set(keys) <= {"a", "b"} and all(value in (2.0, 4.0) for value in values)
        with pytest.raises(sky.BadInput):
            comm.allreduce(pandas.Series([1, None], dtype="Int64"))

    on_all(2, body)


def test_numpy_converts_a_sparse_vector_to_an_array() -> None:
    x = sky.SparseVector([1, 3], [1.5, 2.5], 5)
    assert np.asarray(x).tolist() == [0.0, 1.5, 0.0, 2.5, 0.0] and np.asarray(x).dtype == np.float64
    assert np.asarray(x, np.float32).dtype == np.float32 and (np.ones(5) + np.asarray(x)).sum() == 9
    assert np.array(x, copy=True).shape == (5,)
    with pytest.raises(ValueError, match="copy"):
        np.array(x, copy=False)
    with pytest.raises(sky.BadInput, match=r"takes .* GB .*use .indices and .values"):
        np.asarray(sky.SparseVector([1], [1.0], 2**62))
    rows = sky.SparseVector([1], [[1.0, 2.0]], 2)
    assert np.asarray(rows).tolist() == [[0.0, 0.0], [1.0, 2.0]]
    with sky.init() as comm, pytest.raises(sky.BadInput, match="SparseVector"):
        comm.configure([0, 1], [0], n=2).reduce(sky.SparseVector([0, 1], [1.0, 2.0], 2))


def test_fill_values_out_of_range_of_the_type() -> None:
    whole = sky.SparseVector([1], [5], 3)
    assert whole.to_dense(-7).tolist() == [-7, 5, -7] and whole.to_dense(2.0).tolist() == [2, 5, 2]
    truth = sky.SparseVector([1], [True], 3)
    assert truth.to_dense(True).all() and truth.to_dense().tolist() == [False, True, False]
    small = sky.SparseVector([1], np.ones(1, np.float32), 3)
    assert np.isnan(small.to_dense(np.nan)[0]) and np.isinf(small.to_dense(np.inf)[0])
    unsigned = sky.SparseVector([1], np.ones(1, np.uint8), 3)
    for x, fill in [
        (whole, np.nan),
        (whole, np.inf),
        (whole, 0.5),
        (whole, 2**63),
        (unsigned, -1),
        (unsigned, 256),
        (truth, 2),
        (truth, np.nan),
        (small, 1e300),
        (small, "a"),
        (small, None),
        (small, 1j),
        (small, [1, 2]),
    ]:
        with pytest.raises(sky.BadInput, match="fill must be a number that"):
            x.to_dense(fill)


def test_an_unknown_operation_is_refused_even_if_no_index_repeats() -> None:
    with pytest.raises(sky.BadInput, match="op must be one of"):
        sky.SparseVector([1, 2], [1.0, 2.0], 5, op="nonsense")


# -- Configured reductions.


def test_the_width_is_taken_from_the_values() -> None:
    def body(comm: sky.Comm) -> None:
        rows = np.arange(6.0).reshape(2, 3)
        assert comm.configure_reduce([0, 1], [1], rows, n=2).tolist() == (comm.size * rows[1:]).tolist()
        assert comm.configure_reduce([0, 1], [1], rows, n=2, width=3).shape == (1, 3)
        with pytest.raises(sky.BadInput, match="width=2 was given, not 3"):
            comm.configure_reduce([0, 1], [1], rows, n=2, width=2)
        plan = comm.configure([0, 1], [1], n=2)
        with pytest.raises(sky.BadInput, match=r"configured with width=1: configure\(..., width=3\)"):
            plan.reduce(rows)

    on_all(2, body)


@pytest.mark.parametrize(
    "call",
    [
        lambda c, f: c.configure([1], [1], n=f(10)).n,
        lambda c, f: c.configure([1], [1], n=5, width=f(2)).width,
        lambda c, f: c.configure([1], [1], n=5, degrees=[f(2)]).degrees,
        lambda c, f: c.configure([1], [1], n=5, expected_nnz=f(2)).n,
        lambda c, f: sky.SparseVector([1], [1.0], f(10)).n,
        lambda c, f: c.owned_range(f(10), f(1)).stop,
        lambda c, f: len(c.owned_range(f(10**9))),
        lambda c, f: c.broadcast("x", root=f(0)),
        lambda c, f: c.reduce(np.ones(1), root=f(1)) is None,
        lambda c, f: c.gather(np.ones(1), root=f(1)) is None,
        lambda c, f: c.topk_allreduce(np.ones(3), k=f(2)).nnz,
        lambda c, f: sky.TopK(k=f(1), bucket=f(4)).compress(np.ones(4)).nnz,
        lambda c, f: c.outer_product_sum(np.ones(2), np.ones(2), algorithm="rabenseifner", grid=(f(1), f(2))).shape,
        lambda c, f: c.allreduce(sky.SparseVector([1], [1.0], 4), dense_threshold=f(2)).nnz,
        lambda c, f: c.allreduce(np.ones(64), quantize=sky.Quantize(bits=f(4), bucket=f(64), seed=f(1))).size,
        lambda c, f: [len(part) for part in c.shuffle([1], [1], push_bytes=f(8), fetches=f(2), memory=f(10**6))],
    ],
)
def test_counts_may_be_floats_without_fraction(call: Any) -> None:
    def body(comm: sky.Comm) -> None:
        want = call(comm, int)
        assert call(comm, float) == want == call(comm, np.float64)
        for wrong in (lambda number: number + 0.5, lambda number: bool(number) or True, str, lambda _: np.nan):
            with pytest.raises((sky.BadInput, TypeError)):
                call(comm, wrong)
                raise sky.BadInput("taken: it was the same number") if wrong is str else AssertionError("taken")
            comm.barrier()

    on_all(2, body)


def test_split_accepts_booleans_and_whole_floats_as_colors() -> None:
    def body(comm: sky.Comm) -> list[int]:
        groups = [comm.split(color) for color in (comm.rank == 0, np.bool_(comm.rank == 0), 1.0, comm.rank % 2)]
        return [group.size for group in groups if group is not None]

    assert on_all(3, body) == [[1, 1, 3, 2], [2, 2, 3, 1], [2, 2, 3, 2]]


def test_sizes_and_ranks_out_of_range() -> None:
    with sky.init() as comm:
        with pytest.raises(sky.BadInput, match="n must be from 0 to"):
            comm.owned_range(-5)
        with pytest.raises(sky.BadInput, match="no rank 3 in a group of 1"):
            comm.owned_range(5, 3)


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ({1, 2}, "sorted"),
        ({1: 2}, "list"),
        ((one for one in [1]), "list"),
        (np.array([True, False]), "flatnonzero"),
        ([1.0], "astype"),
        ([2**64], "64 bits"),
        (3, r"pass \[3\]"),
        (scipy.sparse.csr_array(np.eye(2)), "toarray"),
        ([None], "NoneType"),
    ],
)
def test_errors_of_invalid_indices_suggest_a_conversion(indices: Any, words: str) -> None:
    import re

    for text in refused(2, lambda comm: comm.configure(indices, [0], n=3)):
        assert re.search(words, text), text


# -- Keys.


def test_keys_of_numpys_strings_and_lists_without_a_type() -> None:
    def body(comm: sky.Comm) -> list[Any]:
        is_1 = comm.rank == 1
        done = []
        for arguments in [
            (list(np.array(["a", "b", "a"])), None, "count"),
            (list(np.array([b"a", b"b", b"a"])), None, "count"),
            ([1, 2] if is_1 else [2**63], [1, 2] if is_1 else [2**63 + 1]),
            ([1, 2] if is_1 else np.array([2**63], np.uint64), [1, 2] if is_1 else np.array([5], np.uint64)),
            ([np.int32(1), 2] if is_1 else [-1], [1, 2] if is_1 else [5]),
            ([] if is_1 else ["a"], [] if is_1 else [5]),
            (np.array([]) if is_1 else ["a"], np.array([]) if is_1 else [5]),
            (["x"], [3] if is_1 else [2**63], "list"),
            ([7] if is_1 else [2**63], [{3}] if is_1 else [{4}], lambda key, a, b: a | b),
        ]:
            keys, values = comm.shuffle(*arguments)
            done.append((list(keys), list(values)))
        return done

    counts, letters, *rest = map(list, zip(*on_all(2, body), strict=True))
    joined = lambda parts: {k: v for keys, values in parts for k, v in zip(keys, values, strict=True)}  # noqa: E731
    assert joined(counts) == {"a": 4, "b": 2} and joined(letters) == {b"a": 4, b"b": 2}
    assert all(type(key) is str for key in joined(counts))
    assert joined(rest[0]) == {1: 1, 2: 2, 2**63: 2**63 + 1}
    assert joined(rest[1]) == {1: 1, 2: 2, 2**63: 5}
    assert joined(rest[2]) == {1: 1, 2: 2, -1: 5}
    assert joined(rest[3]) == joined(rest[4]) == {"a": 5}
    assert sorted(joined(rest[5])["x"].tolist()) == [3, 2**63]
    assert joined(rest[6]) == {7: {3}, 2**63: {4}}


@pytest.mark.parametrize(
    ("keys", "values", "combine", "words"),
    [
        ([9, 9], [1, 2], max, "pass 'max'"),
        ([9, 9], [1, 2], min, "pass 'min'"),
        ([9, 9], [1, 2], sum, "pass 'sum'"),
        ([9, 9], [1, 2], operator.add, "pass 'sum'"),
        ([9, 9], [1, 2], np.max, "lambda key, a, b"),
        ([9, 9], [1, 2], list, "lambda key, a, b"),
        ([9], [1], lambda a, b: a, r"\(key, a, b\)"),
        ([2**64], [1], "sum", "64|uint64"),
        ([-1, 2**63], [1, 2], "sum", "all fit int64, or all uint64"),
        ([(1, 2)], [1], "sum", "one dimension.*repr"),
        ({1: 2}, [1], "sum", r"list\(x\)"),
        ((one for one in [1]), [1], "sum", r"list\(x\)"),
        ([1.5], [1], "sum", "astype"),
        ("abc", [1, 2, 3], "sum", r"pass \[key\]"),
        ([1], (one for one in [1]), "sum", "list"),
        ([1], {1: 2}, lambda key, a, b: a, "list"),
    ],
)
def test_shuffles_that_make_no_sense(keys: Any, values: Any, combine: Any, words: str) -> None:
    import re

    for text in refused(2, lambda comm: comm.shuffle(keys, values, combine)):
        assert re.search(words, text), text


# -- Checkpoints.


def test_checkpoints_keep_types_from_elsewhere(tmp_path: Path) -> None:
    state = {
        "half": np.array([[1.5, -2.0]], ml_dtypes.bfloat16),
        "scalar": np.array(3.0, ml_dtypes.bfloat16),
        "small": np.array([1, -3], ml_dtypes.int4),
        "f8": np.arange(4.0).astype(ml_dtypes.float8_e5m2)[::2],
        "truth": np.array([True, False]),
        "plain": np.arange(3),
        "swapped": np.arange(3, dtype=">i4"),
        "time": np.array(["2020-01-01"], "M8[D]"),
    }

    def body(comm: sky.Comm) -> sky.Restored:
        checkpoint = sky.Checkpoint(tmp_path)
        checkpoint.save(comm, 1, state)
        found = checkpoint.restore(comm)
        assert found is not None
        return found

    for found in on_all(2, body):
        for name, array in state.items():
            assert found[name].dtype == array.dtype and found[name].shape == array.shape, name
            assert found[name].tobytes() == array.tobytes(), name


def test_checkpoints_of_objects_other_than_arrays(tmp_path: Path) -> None:
    with sky.init() as comm:
        for value, words in (
            (sky.SparseVector([1], [1.0], 3), "indices"),
            (scipy.sparse.csr_array(np.eye(2)), "toarray"),
            ([[1], [1, 2]], "ragged"),
            (np.eye(2).view(np.matrix), "matrix"),
        ):
            with pytest.raises(sky.BadInput, match=words):
                sky.Checkpoint(tmp_path).save(comm, 1, {"x": value})


# -- Graphs.


def test_graphs_as_other_libraries_have_them() -> None:
    graph = networkx.gnp_random_graph(20, 0.15, seed=3, directed=True)
    graph.add_node(20)
    for number, edge in enumerate(graph.edges):
        graph.edges[edge]["weight"] = 1 + number % 3
    both = graph.to_undirected()
    forms = [
        (graph, graph),
        (networkx.to_numpy_array(graph), graph),
        (networkx.to_scipy_sparse_array(graph), graph),
        (scipy.sparse.csc_matrix(networkx.to_scipy_sparse_array(graph)), graph),
        (both, both),
        (networkx.to_numpy_array(both), both),
    ]
    for form, original in forms:
        want = networkx.pagerank(original, tol=1e-12)

        def body(comm: sky.Comm, form: Any = form) -> Any:
            result = pagerank(comm, form, tol=1e-13, max_iterations=500)
            mine = np.zeros(21)
            mine[result.vertices[result.owned]] = result.ranks[result.owned]
            return comm.allreduce(mine)

        for got in on_all(2, body):
            np.testing.assert_allclose(got, [want[k] for k in range(21)], atol=1e-10)


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        ("edges.txt", "load"),
        (np.ones((3, 2)), "square.*Edges"),
        ([[1]], "not list"),
        (networkx.path_graph(["a", "b"]), "convert_node_labels_to_integers"),
        (np.eye(2) * 1j, "real numbers"),
    ],
)
def test_invalid_graphs(graph: Any, words: str) -> None:
    with sky.init() as comm, pytest.raises(sky.BadInput, match=words):
        pagerank(comm, graph)


# -- Names.


def test_public_names() -> None:
    names = dir(sky)
    assert {"Checkpoint", "ray", "graph", "torch", "mapreduce", "Comm", "init", "local", "__version__"} <= set(names)
    assert not {"allreduce", "arguments", "annotations", "TYPE_CHECKING", "import_module", "vectors"} & set(names)
    for name in set(names) - {"torch"}:
        assert getattr(sky, name) is not None
    assert sky.graph.pagerank is pagerank and sky.mapreduce.MapReduce is MapReduce
    for name, words in [
        ("allreduce", r"comm = sky.init\(\); comm.allreduce\(x\)"),
        ("broadcast", r"comm.broadcast\(x\)"),
        ("barrier", r"comm.barrier\(\)"),
        ("rank", "comm.rank"),
        ("Allreduce", r"comm = sky.init\(\); comm.allreduce\(x\)"),
        ("Get_rank", r"comm = sky.init\(\); comm.rank"),
        ("nonsense", "no attribute 'nonsense'"),
    ]:
        with pytest.raises(AttributeError, match=words):
            getattr(sky, name)
    with pytest.raises(AttributeError, match=r"comm = sky.init\(\); comm.shuffle"):
        sky.shuffle([1], [1])  # type: ignore[operator]


def test_names_of_mpi() -> None:
    with sky.init() as comm:
        for name, words in [
            ("Get_rank", "comm.rank"),
            ("Get_size", "comm.size"),
            ("Allreduce", r"comm.allreduce\(x\)"),
            ("bcast", r"comm.broadcast\(x, root\)"),
            ("Scatter", r"comm.scatter\(xs"),
            ("Barrier", r"comm.barrier\(\)"),
            ("Abort", r"raise SystemExit\(code\)"),
        ]:
            with pytest.raises(AttributeError, match=f"no attribute '{name}': here it is {words}"):
                getattr(comm, name)
        with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
            _ = comm.nonsense
        assert not hasattr(comm, "is_sparse")


# -- Groups within one process, and groups of one rank.


def test_a_function_on_all_ranks() -> None:
    group = sky.local(3)
    assert group.run(lambda comm: comm.allreduce(comm.rank)) == [3] * 3
    assert group.run(lambda comm, k: k + comm.rank, 10) == [10, 11, 12]
    with pytest.raises(sky.BadInput, match="not str"):
        group.run(lambda comm: comm.allreduce("text"))
    assert group.run(lambda comm: comm.allreduce(1)) == [3] * 3  # every rank raised, so the group goes on

    def failing(comm: sky.Comm) -> None:
        if comm.rank == 1:
            raise ZeroDivisionError("here")
        comm.barrier()

    with pytest.raises(ZeroDivisionError, match="here"):
        group.run(failing)

    def refusing(comm: sky.Comm) -> None:
        if comm.rank == 1:
            sky.SparseVector([9], [1.0], 3)
        comm.barrier()

    with pytest.raises(sky.BadInput, match="outside the index space"):
        sky.local(2).run(refusing)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"SLURM_NTASKS": "4"}, "srun"),
        ({"PMIX_RANK": "0"}, "launcher that is not known"),
        ({"MASTER_ADDR": "node1", "MASTER_PORT": "7000"}, "RANK and WORLD_SIZE"),
        ({"SLURM_NTASKS": "1"}, None),
        ({}, None),
    ],
)
def test_a_group_of_one_in_a_job(environment: dict[str, str], words: str | None, monkeypatch: Any) -> None:
    sign = sign_of_job(environment)
    assert (sign is None) == (words is None) and (words or "") in (sign or "")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sky.init().close()
        sky.init(rank=0, world_size=1).close()
    assert [str(one.message).startswith("sky.init() makes a group of one process") for one in caught] == [True] * (
        words is not None
    )
