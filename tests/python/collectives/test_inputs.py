"""Inputs of many kinds in every collective: the right value in the right type, or an error on all ranks.

No call changes its input.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import skyphos as sky
from conftest import on_all

DTYPES: list[Any] = [
    *(np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
    *(np.float16, np.float32, np.float64, np.longdouble, np.complex64, ml_dtypes.bfloat16),
]
ACCEPTED = {"bool", "int32", "int64", "uint8", "uint32", "uint64", "float16", "float32", "float64", "bfloat16"}
SHAPES = [(), (0,), (1,), (7,), (3, 4), (0, 3), (2, 2, 2)]
FLAGS = ["plain", "read-only", "strided", "byte-swapped", "fortran", "misaligned", "masked", "matrix", "units", "named"]
FORMATS = ["csr", "csc", "coo", "bsr", "lil", "dok", "dia"]
OPS = ["sum", "prod", "min", "max", "or", "and"]
FOLDS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "or": np.bitwise_or}
FOLDS["and"] = np.bitwise_and


class Units(np.ndarray):
    """An array whose arithmetic has another meaning, as those of unit packages have."""

    def __array_ufunc__(self, *_: Any, **__: Any) -> Any:
        return NotImplemented


class Named(np.ndarray):
    """A subclass of arrays with NumPy's arithmetic, such as those with a name."""


class Series:
    """A column with the methods of a pandas Series that conversion uses."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, at: Any) -> Any:
        return self.array[at]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.array, dtype, copy=copy)


def drawn(rank: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Small numbers, which NumPy adds exactly in any of the types."""
    rng = np.random.default_rng([rank, len(shape)])
    return rng.integers(0, 2 if np.dtype(dtype) == np.bool_ else 4, shape).astype(dtype)


def flagged(array: np.ndarray, flag: str) -> Any:
    """The same numbers in another layout or class."""
    if flag == "read-only":
        array.setflags(write=False)
    elif flag == "strided" and array.ndim:
        wide = np.zeros((*array.shape, 2), array.dtype)
        wide[..., 0] = array
        array = wide[..., 0]
    elif flag == "byte-swapped" and array.dtype.kind in "iuf" and array.dtype.name != "bfloat16":
        array = array.astype(array.dtype.newbyteorder())
    elif flag == "fortran":
        array = np.asfortranarray(array).reshape(array.shape)
    elif flag == "misaligned" and array.ndim:
        memory = np.zeros(array.nbytes + 1, np.uint8)[1:]
        memory[:] = np.frombuffer(array.tobytes(), np.uint8)
        array = memory.view(array.dtype).reshape(array.shape)
    elif flag == "masked":
        return np.ma.array(array, mask=np.ones(array.shape, bool))
    elif flag == "matrix" and array.ndim == 2:
        return array.view(np.matrix)
    elif flag == "units":
        return array.view(Units)
    elif flag == "named":
        return array.view(Named)
    return array


def snapshot(x: Any) -> Any:
    """Values, type, layout and flags of an input, to check that a call has not changed them."""
    if isinstance(x, (list, tuple)):
        return type(x), [snapshot(one) for one in x]
    if isinstance(x, Series):
        return snapshot(x.array)
    if isinstance(x, sky.SparseVector):
        return [snapshot(part) for part in (x._indices, x._values, x._present)], x.n
    if scipy.sparse.issparse(x):
        names = ("data", "indices", "indptr", "row", "col", "offsets", "rows")
        parts = [getattr(x, name, None) for name in names]
        held = sorted(x.items()) if x.format == "dok" else None
        return type(x), x.shape, [snapshot(p) for p in parts if isinstance(p, np.ndarray)], held
    if isinstance(x, np.ndarray):
        flags = x.flags
        mask = np.ma.getmaskarray(x).tolist() if isinstance(x, np.ma.MaskedArray) else None
        raw = x.tolist() if x.dtype == object else np.asarray(x).tobytes()
        return type(x), x.dtype.str, x.shape, x.strides, flags.writeable, flags.aligned, mask, copy.copy(raw)
    return type(x), repr(x)


def result_or_error(comm: sky.Comm, call: Callable[[], Any]) -> Any:
    """The result of a collective, or the SkyphosError that it raises."""
    try:
        return call()
    except sky.SkyphosError as error:
        assert len(str(error)) > 20, error
        return error
    finally:
        comm.barrier()


def all_of(size: int, make: Callable[[int], Any], call: Callable[[sky.Comm, Any], Any]) -> list[Any]:
    """The results or errors of all ranks. Checks that inputs are unchanged, and that all ranks raise or none."""

    def body(comm: sky.Comm) -> Any:
        x = make(comm.rank)
        before = snapshot(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = result_or_error(comm, lambda: call(comm, x))
        assert snapshot(x) == before, (before, snapshot(x))
        return result

    results = on_all(size, body)
    raised = [isinstance(one, Exception) for one in results]
    assert all(raised) or not any(raised), results
    return results


def result_dtype(dtype: Any, op: str) -> np.dtype:
    """The type of a result: sums and products of booleans are int64."""
    return np.dtype(np.int64) if np.dtype(dtype) == np.bool_ and op in ("sum", "prod") else np.dtype(dtype)


def is_float(dtype: Any) -> bool:
    return np.dtype(dtype).kind == "f" or np.dtype(dtype).name == "bfloat16"


def folded(arrays: list[np.ndarray], op: str) -> np.ndarray:
    kind = result_dtype(arrays[0].dtype, op)
    total = arrays[0].astype(kind)
    for array in arrays[1:]:
        total = FOLDS[op](total, array.astype(kind)).astype(kind)
    return total


def assert_same(result: Any, want: np.ndarray, kind: type) -> None:
    assert type(result) is kind, (type(result), kind)
    plain = np.asarray(result)
    assert plain.dtype == want.dtype.newbyteorder("=") and plain.shape == want.shape, (plain, want)
    np.testing.assert_array_equal(plain.astype(np.float64), want.astype(np.float64))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    size=st.sampled_from([1, 2, 3]),
    dtype=st.sampled_from(DTYPES),
    shape=st.sampled_from(SHAPES),
    flag=st.sampled_from([*FLAGS, "series"]),
    op=st.sampled_from(OPS),
    one_rank=st.booleans(),
)
def test_arrays(*, size: int, dtype: Any, shape: tuple[int, ...], flag: str, op: str, one_rank: bool) -> None:
    """``one_rank``: only the last rank's array has that layout or class."""

    def make(rank: int) -> Any:
        array = drawn(rank, shape, dtype)
        if one_rank and rank < size - 1:
            return array
        return Series(array) if flag == "series" else flagged(array, flag)

    arrays = [drawn(rank, shape, dtype) for rank in range(size)]
    fits = np.dtype(dtype).name in ACCEPTED and flag not in ("masked", "units")
    reduces = fits and not (op in ("or", "and") and is_float(dtype))

    def check(call: Callable[[sky.Comm, Any], Any], want: Callable[[int], Any], expect: bool) -> None:
        for rank, result in enumerate(all_of(size, make, call)):
            assert isinstance(result, Exception) != expect, (result, flag, dtype)
            if not expect:
                assert isinstance(result, sky.BadInput), result
            elif want(rank) is None:
                assert result is None
            else:
                is_matrix = isinstance(make(rank), np.matrix) and want(rank).ndim == 2
                assert_same(result, want(rank), np.matrix if is_matrix else np.ndarray)

    root, n, stack = size - 1, arrays[0].size, np.stack(arrays)
    total = folded(arrays, op) if reduces else arrays[0]
    part = lambda r: total.reshape(-1)[n * r // size : n * (r + 1) // size]  # noqa: E731
    check(lambda c, x: c.allreduce(x, op=op), lambda _: total, reduces)
    check(lambda c, x: c.allreduce(x, op=op, async_op=True).wait(), lambda _: total, reduces)
    check(lambda c, x: c.allreduce(x, op=op, algorithm="ring"), lambda _: total, reduces)
    check(lambda c, x: c.reduce(x, op=op, root=root), lambda r: total if r == root else None, reduces)
    check(lambda c, x: c.reduce_scatter(x, op=op), part, reduces)
    moves: list[tuple[Callable[[sky.Comm, Any], Any], Callable[[int], Any]]] = [
        (lambda c, x: c.allgather(x), lambda _: stack),
        (lambda c, x: c.gather(x, root=root), lambda r: stack if r == root else None),
        (lambda c, x: c.alltoall([x] * size), lambda _: stack),
        (lambda c, x: c.scatter([x] * size if c.rank == root else None, x, root=root), lambda _: arrays[root]),
    ]
    for call, want in moves:
        if np.dtype(dtype).name in ACCEPTED or flag in ("masked", "series"):
            check(call, want, fits)
            continue
        # Arrays that cannot be reduced are still moved, as objects.
        for rank, result in enumerate(all_of(size, make, call)):
            assert not isinstance(result, Exception), result
            expected = want(rank)
            assert (result is None) == (expected is None)
            pairs = zip(result, expected, strict=True) if isinstance(result, list) else [(result, expected)]
            for one, original in pairs if expected is not None else ():
                plain = np.asarray(one)  # an object keeps its byte order
                assert plain.dtype.newbyteorder("=") == original.dtype and plain.tolist() == original.tolist()
    if n:
        places = np.arange(n)
        values = lambda x: x.array.reshape(-1) if isinstance(x, Series) else x.reshape(-1)  # noqa: E731
        flat_total = total.reshape(-1)
        if flag != "matrix":
            check(lambda c, x: c.configure(places, places, n=n).reduce(values(x), op=op), lambda _: flat_total, reduces)
            check(lambda c, x: c.configure_reduce(places, places, values(x), n=n, op=op), lambda _: flat_total, reduces)
            vector = lambda c, x: sky.SparseVector(places, values(x), n)  # noqa: E731
            check(
                lambda c, x: np.asarray(c.allreduce(_on_all_or_none(c, lambda: vector(c, x)), op=op)),
                lambda _: flat_total,
                reduces,
            )


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    size=st.sampled_from([1, 2, 3]),
    dtype=st.sampled_from([np.float16, np.float32, np.float64, ml_dtypes.bfloat16, np.bool_, np.int64]),
    flag=st.sampled_from([*FLAGS, "series"]),
)
def test_other_collectives(*, size: int, dtype: Any, flag: str) -> None:
    def make(rank: int) -> Any:
        array = drawn(rank, (8,), dtype)
        return Series(array) if flag == "series" else flagged(array, flag)

    arrays = [drawn(rank, (8,), dtype) for rank in range(size)]
    for rank, result in enumerate(all_of(size, make, lambda c, x: c.broadcast(x, root=0))):
        # Any object can be broadcast: those without a NumPy description are pickled.
        kind = make(0)
        assert rank == 0 or type(result) is type(kind)
        if flag != "series":
            assert (
                result.dtype == kind.dtype and np.ma.getmaskarray(result).tolist() == np.ma.getmaskarray(kind).tolist()
            )
            assert np.asarray(result).tolist() == arrays[0].tolist()
    fits = is_float(dtype) and flag not in ("masked", "units")
    total = folded(arrays, "sum")
    for call, want in [
        (lambda c, x: c.outer_product_sum(x, np.ones(2, dtype)), np.stack([total, total], 1)),
        (lambda c, x: c.topk_allreduce(x, k=8).to_dense(), total),
        (lambda c, x: sky.TopK(k=8).allreduce(c, x, dense=True), total),
    ]:
        for result in all_of(size, make, call):
            assert isinstance(result, sky.BadInput) != fits, (result, dtype, flag)
            if fits:
                assert_same(result, want, np.ndarray)


def _on_all_or_none(comm: sky.Comm, work: Callable[[], Any]) -> Any:
    """Run ``work``; if it raises on one rank, raise on all: `SparseVector` itself knows nothing of other ranks."""
    from skyphos.collectives.agreement import together

    return together(comm, work)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    size=st.sampled_from([1, 2, 3]),
    dtype=st.sampled_from([np.bool_, np.int8, np.int32, np.int64, np.float32, np.float64, np.complex128]),
    shape=st.sampled_from([(1, 1), (1, 50_000), (4, 6), (6, 1), (0, 3), (3, 0)]),
    form=st.sampled_from(FORMATS),
    matrix=st.booleans(),
    frozen=st.booleans(),
    twice=st.booleans(),
)
def test_sparse_matrices(
    *, size: int, dtype: Any, shape: tuple[int, int], form: str, matrix: bool, frozen: bool, twice: bool
) -> None:
    def dense(rank: int) -> np.ndarray:
        rng = np.random.default_rng([rank, *shape])
        density = min(0.3, 20 / max(1, shape[0] * shape[1]))
        return (rng.random(shape) < density) * rng.integers(1, 2 if dtype is np.bool_ else 4, shape)

    def make(rank: int) -> Any:
        whole = scipy.sparse.coo_array(dense(rank).astype(dtype))
        row, column = whole.coords
        data = whole.data
        if twice and dtype is not np.bool_:  # entries that are stored twice, in no order
            half = np.ones(len(data), dtype)
            row, column, data = np.r_[row, row][::-1], np.r_[column, column][::-1], np.r_[data - half, half][::-1]
        kind = scipy.sparse.coo_matrix if matrix else scipy.sparse.coo_array
        made: Any = kind((data, (row, column)), shape=shape)
        if form == "csr" and twice:
            made = (scipy.sparse.csr_matrix if matrix else scipy.sparse.csr_array)(made)
        made = made.asformat(form)
        if frozen:
            for name in ("data", "indices", "indptr", "offsets"):
                part = getattr(made, name, None)
                if isinstance(part, np.ndarray):
                    part.setflags(write=False)
        return made

    fits = np.dtype(dtype).name in ACCEPTED
    total = sum(dense(rank).astype(np.int64) for rank in range(size))
    kind = np.dtype(np.int64) if dtype is np.bool_ else np.dtype(dtype)

    def check(result: Any, want: np.ndarray, dtype: Any) -> None:
        assert type(result) is type(make(0)) and result.format == form, (type(result), result.format)
        assert result.shape == want.shape and result.dtype == dtype, (result.dtype, dtype)
        np.testing.assert_array_equal(result.toarray(), want)

    for result in all_of(size, make, lambda c, x: c.allreduce(x)):
        assert isinstance(result, sky.BadInput) != fits, result
        if fits:
            check(result, total, kind)
    for result in all_of(size, make, lambda c, x: c.allgather(x)):
        assert isinstance(result, sky.BadInput) != fits, result
        for rank, one in enumerate(result if fits else ()):
            check(one, dense(rank), dtype)
    gathered = all_of(size, make, lambda c, x: c.gather(x))
    reduced = all_of(size, make, lambda c, x: c.reduce(x, op="max"))
    if fits:
        check(gathered[0][-1], dense(size - 1), dtype)
        highest = np.maximum.reduce([dense(rank).astype(np.int64) for rank in range(size)])
        check(reduced[0], highest, dtype)
    else:
        assert isinstance(gathered[0], sky.BadInput) and isinstance(reduced[0], sky.BadInput)


NUMBERS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.integers(-5, 5),
    st.floats(-8, 8, width=16),
    st.sampled_from([np.float32(1.5), np.float64(2.5), np.int32(7), np.int64(-7), np.uint64(9), np.bool_(True)]),
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(numbers=st.lists(NUMBERS, min_size=1, max_size=3), op=st.sampled_from(["sum", "prod", "min", "max"]))
def test_numbers(numbers: list[Any], op: str) -> None:
    """``numbers``: each rank's number."""
    fold = {"sum": lambda a, b: a + b, "prod": lambda a, b: a * b, "min": min, "max": max}[op]
    plain = [one.item() if isinstance(one, np.generic) else one for one in numbers]
    has_float = any(isinstance(one, float) for one in plain)
    if not (all(isinstance(one, bool) for one in plain) and op in ("min", "max")):
        plain = [float(one) if has_float else int(one) for one in plain]
    want = plain[0]
    for one in plain[1:]:
        want = fold(want, one)
    results = all_of(len(numbers), lambda rank: numbers[rank], lambda c, x: c.allreduce(x, op=op))
    gathered = all_of(len(numbers), lambda rank: numbers[rank], lambda c, x: c.allgather(x))
    for rank, result in enumerate(results):
        assert [(type(one), one) for one in gathered[rank]] == [(type(one), one) for one in numbers]
        if isinstance(result, sky.BadInput):
            assert not has_float and (not -(2**63) <= want < 2**64 or any(isinstance(x, np.generic) for x in numbers))
            continue
        assert isinstance(result, np.generic) == isinstance(numbers[rank], np.generic)
        own = result.item() if isinstance(result, np.generic) else result
        assert type(own) is type(want)
        assert own == want if not has_float else own == pytest.approx(want, rel=1e-6)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    size=st.sampled_from([1, 2, 3]),
    length=st.sampled_from([0, 1, 3, 300]),
    kind=st.sampled_from(["int", "large", "float", "bool", "nested", "tuple"]),
)
def test_lists(size: int, length: int, kind: str) -> None:
    def make(rank: int) -> Any:
        numbers: list[Any] = [rank + k for k in range(length)]
        if kind == "large":
            numbers = [2**62 + number for number in numbers]
        elif kind == "float":
            numbers = [number / 2 for number in numbers]
        elif kind == "bool":
            numbers = [number % 2 == 0 for number in numbers]
        elif kind == "nested":
            return [[number, -number] for number in numbers]
        return tuple(numbers) if kind == "tuple" else numbers

    def added(a: Any, b: Any) -> Any:
        return type(a)(added(x, y) for x, y in zip(a, b, strict=True)) if isinstance(a, (list, tuple)) else a + b

    want = make(0)
    for rank in range(1, size):
        want = added(want, make(rank))
    if kind == "bool" and size == 1:
        want = [int(one) for one in want]
    for result in all_of(size, make, lambda c, x: c.allreduce(x)):
        assert result == want and type(result) is type(want), (result, want)
        assert not length or kind == "nested" or type(result[0]) is type(want[0])
    gathered = all_of(size, make, lambda c, x: c.allgather(x))
    assert gathered == [[make(rank) for rank in range(size)]] * size


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    size=st.sampled_from([1, 2, 3]),
    dtype=st.sampled_from([dtype for dtype in DTYPES if dtype is not np.longdouble]),
    flag=st.sampled_from([*FLAGS, "series", "list"]),
    keys=st.sampled_from(["int64", "uint32", "list", "str", "np.str_", "masked", "series"]),
    combine=st.sampled_from(["sum", "max", "or", "list"]),
)
def test_shuffles(*, size: int, dtype: Any, flag: str, keys: str, combine: str) -> None:
    count = 9

    def keys_of() -> Any:
        numbers = np.arange(count) % 3
        if keys in ("str", "np.str_"):
            names = np.array(["a", "b", "c"])[numbers]
            return list(names) if keys == "np.str_" else names.tolist()
        if keys == "masked":
            return np.ma.array(numbers, mask=[True] + [False] * (count - 1))
        if keys == "series":
            return Series(numbers)
        return numbers.tolist() if keys == "list" else numbers.astype(keys)

    def make(rank: int) -> Any:
        values = drawn(rank, (count,), dtype)
        if flag == "list":
            return keys_of(), values.tolist()
        return keys_of(), Series(values) if flag == "series" else flagged(values, flag)

    # A list holds Python numbers: those of an integer type that is not accepted become int64.
    becomes_int64 = flag == "list" and np.dtype(dtype).kind in "iu"
    known = np.dtype(dtype).name in ACCEPTED or becomes_int64
    if flag == "list" and np.dtype(dtype) == np.complex64 and combine == "list":
        return  # a list of objects, which is fine
    fits = known and flag not in ("masked", "units") and keys != "masked"
    fits = fits and not (combine == "or" and is_float(dtype))
    values = [drawn(rank, (count,), dtype) for rank in range(size)]
    if flag == "list":
        values = [np.asarray(one.tolist()) for one in values]
    results = all_of(size, make, lambda c, x: c.shuffle(*x, combine=combine))
    assert isinstance(results[0], sky.BadInput) != fits, (results, dtype, flag, keys, combine)
    if not fits:
        return
    got = {str(key): value for result in results for key, value in zip(*map(list, result), strict=True)}
    assert len(got) == 3
    for k, name in enumerate("abc" if "str" in keys else "012"):
        mine = [one[k::3] for one in values]
        if combine == "list":
            assert np.concatenate([np.sort(one.astype(float)) for one in mine]).size == len(got[name])
            assert np.asarray(got[name]).dtype == values[0].dtype
            continue
        want = np.atleast_1d(folded(list(np.concatenate(mine)[:, None]), combine))[0]
        assert np.asarray(got[name]).dtype == want.dtype and got[name] == want, (got, want)


OTHERS: list[Any] = [
    *(
        {"a": 1},
        {1, 2},
        "text",
        None,
        object,
        range(3),
        (i for i in ()),
        b"bytes",
        1j,
        np.complex128(1),
        np.datetime64(1, "s"),
    ),
    *([1, "a"], [[1], [1, 2]], [None], np.array(["a"]), np.array([object()]), np.zeros(2, "f4,i4"), np.ma.masked),
    *([np.ma.masked, 1.0], [np.zeros(2)], 2**64, [2**64], float, np.zeros(2, "M8[s]"), Series(np.array([None, 1]))),
]


@pytest.mark.parametrize("x", OTHERS, ids=[f"{k}-{type(x).__name__}" for k, x in enumerate(OTHERS)])
def test_objects_that_are_no_vectors_are_refused_by_all_collectives(x: Any) -> None:
    for only_rank_1 in (False, True):
        calls: list[Callable[[sky.Comm, Any], Any]] = [
            lambda c, x: c.allreduce(x),
            lambda c, x: c.reduce(x),
            lambda c, x: c.reduce_scatter(x),
            lambda c, x: c.topk_allreduce(x, k=1),
            lambda c, x: c.outer_product_sum(x, x),
            lambda c, x: c.configure([0], [0], n=1).reduce(x),
            lambda c, x: c.configure_reduce([0], [0], x, n=1),
            lambda c, x: c.configure(x, x, n=9),
            lambda c, x: sky.TopK(k=1).allreduce(c, x),
        ]
        for number, call in enumerate(calls):
            is_rows = isinstance(x, list) and isinstance(x[0], np.ndarray)
            if (number < 3 and isinstance(x, bytes)) or (number == 7 and isinstance(x, range)) or is_rows:
                continue  # valid there: bytes are 8-bit numbers, a range is indices, and a list of rows is a matrix

            def make(rank: int, only_rank_1: bool = only_rank_1) -> Any:
                return np.ones(1) if only_rank_1 and rank == 0 else x

            for result in all_of(2, make, call):
                assert isinstance(result, (sky.BadInput, sky.Mismatch)), (number, x, result)
