"""Broadcast of Python objects: every kind, every route, and what cannot be sent."""

from __future__ import annotations

import pickle
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

import skyphos as sky
from conftest import Processes, on_all
from skyphos.collectives.broadcast import BroadcastAlgorithm
from skyphos.collectives.packing import is_pickle, pack, unpack

ALGORITHMS = get_args(BroadcastAlgorithm)


def same(a: Any, b: Any) -> bool:
    """Whether two objects are alike, to the bit and type."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        alike = a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes()
        return bool(a.dtype == b.dtype and a.shape == b.shape and alike)
    if isinstance(a, sky.SparseVector):
        return a.n == b.n and a.is_dense == b.is_dense and same(a.indices, b.indices) and same(a.values, b.values)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


OBJECTS = [
    np.arange(7),
    np.zeros((0, 3), np.float32),
    np.array(2.5),
    np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    np.arange(100_000.0)[::3],
    np.arange(200_000, dtype=np.int16).reshape(100, -1),
    np.array(["a", "bc"]),
    np.array([None, {}], object),
    np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
    sky.SparseVector([3, 9], np.array([1.0, 2.0], np.float32), n=1 << 40),
    sky.SparseVector.from_dense(np.arange(9.0)),
    sky.SparseVector([2], np.ones((1, 4)), n=5),
    b"bytes" * 20_000,
    bytearray(b"x"),
    "text",
    None,
    {"a": np.arange(50_000.0), "b": [1, 2], "c": np.arange(3)},
    {k: np.full(k, k) for k in range(300)},
]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_ranks_have_the_object(algorithm: Any) -> None:
    def body(comm: sky.Comm) -> list[Any]:
        return [
            comm.broadcast(obj if comm.rank == k % 3 else None, k % 3, algorithm=algorithm)
            for k, obj in enumerate(OBJECTS)
        ]

    for got in on_all(3, body):
        for received_object, obj in zip(got, OBJECTS, strict=True):
            assert same(received_object, obj), (received_object, obj)


def test_a_copy_may_be_written_to() -> None:
    x = {"a": np.zeros(100_000)}

    def body(comm: sky.Comm) -> Any:
        received_object = comm.broadcast(x, 1)
        comm.barrier()
        received_object["a"] += comm.rank if comm.rank != 1 else 0
        return received_object

    zero, one, two = on_all(3, body)
    assert one is x
    assert [part["a"][-1] for part in (zero, one, two)] == [0, 0, 2]


def test_async_op_and_explain() -> None:
    def body(comm: sky.Comm) -> None:
        works = [comm.broadcast(np.full(200_000, root), root, async_op=True) for root in range(comm.size)]
        for root, work in enumerate(works):
            assert (work.wait() == root).all()
        _, how = comm.broadcast(np.ones(25_000), algorithm="chain", chunk_bytes=10_000, explain=True)
        assert (how.algorithm, how.chunk_bytes, how.reason) == ("chain", 10_000, "asked for")
        assert how.message_bytes >= 200_000
        assert how.sent_frames >= (20 if comm.rank < comm.size - 1 else 0)
        _, how = comm.broadcast(7, explain=True)
        assert "fewest rounds" in str(how)

    on_all(4, body)


class Unpicklable:
    """Raises when it is pickled."""

    def __reduce__(self) -> Any:
        raise RuntimeError("not this one")


def _unreadable() -> Any:
    raise RuntimeError("not here")


class Unreadable:
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> Any:
        return _unreadable, ()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"obj": Unpicklable()}, "Unpicklable cannot be sent, for it cannot be pickled: not this one"),
        ({"obj": lambda: 0}, "cannot be pickled"),
        ({"obj": Unreadable()}, "cannot be read here: not here"),
        ({"obj": 1, "root": 3}, "root=3 is not a rank"),
        ({"obj": 1, "root": -1}, "root=-1 is not a rank"),
        ({"obj": 1, "algorithm": "quick"}, "unknown algorithm"),
        ({"obj": 1, "chunk_bytes": 0}, "chunk_bytes must be from 1 to"),
        ({"obj": 1, "chunk_bytes": 1 << 20}, "1 to 131072"),
    ],
)
def test_bad_input_raises_on_all_ranks(arguments: dict[str, Any], words: str) -> None:
    def body(comm: sky.Comm) -> str:
        with pytest.raises(sky.BadInput) as caught:
            comm.broadcast(**arguments)
        assert comm.broadcast("still here" if comm.rank == 2 else None, 2) == "still here"
        return str(caught.value)

    for said in on_all(3, body):
        assert words in said


def test_roots_that_differ() -> None:
    def body(comm: sky.Comm) -> None:
        with pytest.raises(sky.Mismatch, match="root="):
            comm.broadcast(1, comm.rank)
        assert comm.broadcast(5) == 5

    on_all(2, body)


@settings(deadline=None)
@given(
    st_numpy.arrays(
        st.one_of(
            st_numpy.integer_dtypes(),
            st_numpy.floating_dtypes(),
            st_numpy.complex_number_dtypes(),
            st_numpy.boolean_dtypes(),
        ),
        st_numpy.array_shapes(min_dims=0, min_side=0, max_side=6),
    ),
    st.booleans(),
)
def test_packed_arrays_are_unpacked_unchanged(x: np.ndarray, transposed: bool) -> None:
    x = x.T if transposed else x
    parts = pack(x)
    assert same(unpack([part.copy() for part in parts]), np.array(x, order="K")) or x.dtype.byteorder == ">"
    assert not is_pickle(parts) or not x.dtype.isnative


def test_no_byte_of_an_array_is_copied() -> None:
    a, b = np.arange(1000.0), np.asfortranarray(np.ones((300, 5)))
    for parts, arrays in ((pack(a), [a]), (pack({"a": a, "b": [b]}), [a, b]), (pack(b), [b])):
        assert [np.shares_memory(part, array) for part, array in zip(parts[1:], arrays, strict=True)] == [True] * len(
            arrays
        )
        received = [part.copy() for part in parts]
        out = unpack(received)
        array = out["a"] if isinstance(out, dict) else out
        assert np.shares_memory(array, received[1])


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"J",
        b"J{}",
        b"J[]",
        b'J{"kind":"array"}',
        b'J{"kind":"array","array":["<f8",[3],false]}',
        b'J{"kind":"array","array":["O",[1],false]}',
        b'J{"kind":"sparse","n":3,"arrays":[null]}',
        b'J{"kind":"other"}',
        b"J\xff",
        b"Pnothing",
    ],
)
def test_invalid_encodings(head: bytes) -> None:
    with pytest.raises(sky.BadInput):
        unpack([np.frombuffer(head, np.uint8), np.zeros(8, np.uint8)])


def test_other_kinds_are_pickled() -> None:
    for x in (np.array(["a"]), {"a": 1}, np.float64(3), [b"x"]):
        assert is_pickle(pack(x))
    for x in (np.ones(3), sky.SparseVector([1], np.ones(1), n=3), b"x"):
        assert not is_pickle(pack(x))
    assert pickle.loads(pack("x")[0][1:]) == "x"


def test_ranks_of_a_host_share_one_copy(processes: Processes) -> None:
    """Together they add one message to the host's memory; ``Pss`` divides a shared page among its processes."""
    code = """
def memory_bytes(name):
    with open("/proc/self/smaps_rollup") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith(name + ":"))
size = 64 << 20
x = np.ones(size, np.uint8) if comm.rank == 0 else None
before, private = memory_bytes("Pss"), memory_bytes("Private_Dirty")
y = comm.broadcast(x)
assert y.sum() == size
comm.barrier()
print("pss", memory_bytes("Pss") - before, "private", memory_bytes("Private_Dirty") - private, flush=True)
comm.barrier()
"""
    size, share, private = 64 << 20, 0, []
    for out, err in processes.lines(4, code):
        words = out.split()
        assert words[:1] == ["pss"], (out, err)
        share += int(words[1])
        private.append(int(words[3]))
    assert size <= share + (4 << 20) and share < 1.25 * size, share
    assert max(private) < size / 4, private
