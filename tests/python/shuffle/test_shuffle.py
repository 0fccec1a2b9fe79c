"""Shuffle: every kind of keys and values against a dictionary, in memory and in files, and refusals."""

from __future__ import annotations

import functools
import operator
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import skyphos as sky
from conftest import Processes, on_all
from skyphos.collectives.blocks import exchange_blocks
from skyphos.errors import BadInput, Mismatch, SkyphosError
from skyphos.shuffle import Shuffle, stages, words
from skyphos.shuffle.stages import Stages

pa = pytest.importorskip("pyarrow")

# Kinds of keys that ranks pass, made from numbers.
KINDS: dict[str, Callable[[npt.NDArray[np.int64]], Any]] = {
    "int64": lambda keys: keys,
    "int32": lambda keys: keys.astype(np.int32),
    "uint8": lambda keys: keys.astype(np.uint8),
    "list": lambda keys: keys.tolist(),
    "str": lambda keys: [f"k{key}" for key in keys],
    "bytes": lambda keys: [b"\0" * (key % 3) + str(key).encode() for key in keys],
    "numpy str": lambda keys: np.array([f"k{key}" for key in keys], "U5"),
    "numpy bytes": lambda keys: np.array([f"k{key}" for key in keys], "S5"),
    "arrow": pa.array,
    "arrow str": lambda keys: pa.array([f"k{key}" for key in keys], pa.string()),
    "arrow chunks": lambda keys: pa.chunked_array(
        [[f"k{k}" for k in some] for some in (keys[:3], keys[3:])], pa.string()
    ),
    "arrow dictionary": lambda keys: pa.array([f"k{key}" for key in keys], pa.string()).dictionary_encode(),
    "arrow binary": lambda keys: pa.array([f"k{key}".encode() for key in keys], pa.binary()),
}


def listed(keys: Any) -> list[Any]:
    return keys.to_pylist() if hasattr(keys, "to_pylist") else keys.tolist() if hasattr(keys, "tolist") else list(keys)


def lists(parts: list[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    """All values of each key, by rank and order."""
    found: dict[Any, list[Any]] = {}
    for keys, values in parts:
        for key, value in zip(listed(keys), values, strict=True):
            found.setdefault(key, []).append(value)
    return found


def whole(results: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """The results of all ranks in one dictionary; each key occurs once."""
    pairs = [(key, value) for keys, values in results for key, value in zip(listed(keys), values, strict=True)]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def drawn(rank: int, count: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(rank).zipf(1.5, count) % 200


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_keys(kind: str) -> None:
    parts = [(KINDS[kind](drawn(rank, 50 * rank)), np.arange(50.0 * rank)) for rank in range(3)]
    results = on_all(3, lambda comm: comm.shuffle(*parts[comm.rank]))
    got = whole(results)
    assert got == {key: sum(values) for key, values in lists(parts).items()}
    for (keys, _), (passed, _) in zip(results[1:], parts[1:], strict=True):
        assert type(keys) is type(passed) or kind in ("arrow chunks", "arrow dictionary")
        if isinstance(keys, np.ndarray):
            assert keys.dtype.kind == passed.dtype.kind and (keys.dtype == passed.dtype or keys.dtype.kind in "SU")
        if isinstance(keys, pa.Array) and kind not in ("arrow dictionary", "arrow chunks"):
            assert keys.type == passed.type


MERGES: dict[str, Callable[[Any, Any], Any]] = {
    "sum": operator.add,
    "prod": operator.mul,
    "min": np.minimum,
    "max": np.maximum,
    "or": operator.or_,
    "and": operator.and_,
}


def folded(values: list[Any], merge: Callable[[Any, Any], Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = merge(total, value)
    return total


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 5),
    counts=st.lists(st.integers(0, 60), min_size=5, max_size=5),
    dtype=st.sampled_from(["int32", "int64", "uint8", "uint32", "uint64"]),
    row=st.sampled_from([(), (1,), (3,), (2, 2)]),
    combine=st.sampled_from([*MERGES, "list", "count", "gcd", "function", "objects"]),
    strings=st.booleans(),
    tasks=st.integers(1, 3),
    waves=st.sampled_from([1, 2, 8]),
    memory=st.sampled_from([None, 1, 2000]),
    push_bytes=st.sampled_from([0, 100, 1 << 16]),
    mergeable=st.booleans(),
    partition=st.booleans(),
    local=st.sampled_from([True, "process", False]),
)
def test_results_equal_those_of_a_dictionary(
    *,
    size: int,
    counts: list[int],
    dtype: str,
    row: tuple[int, ...],
    combine: str,
    strings: bool,
    tasks: int,
    waves: int,
    memory: int | None,
    push_bytes: int,
    mergeable: bool,
    partition: bool,
    local: Any,
) -> None:
    """The rows are integers, so that the order of additions does not matter."""

    def batch(rank: int, task: int) -> tuple[Any, Any]:
        rng = np.random.default_rng([rank, task])
        numbers = rng.integers(0, 30, counts[rank])
        values = rng.integers(0, 100, (counts[rank], *row)).astype(dtype)
        keys = [f"key {number}" for number in numbers] if strings else numbers
        return keys, [{"v": int(v.sum())} for v in values] if combine == "objects" else values

    def merge(_: Any, a: Any, b: Any) -> Any:
        return {"v": a["v"] + b["v"]} if combine == "objects" else np.add(a, b, dtype=dtype)

    def owner(keys: Any, ranks: int) -> Any:
        return [int(str(key).rsplit(" ", 1)[-1]) * 7 % ranks for key in keys]

    functions: dict[str, Any] = {"gcd": np.gcd, "function": merge, "objects": merge}

    def body(comm: sky.Comm) -> list[tuple[Any, Any]]:
        shuffle = Shuffle(
            comm,
            functions.get(combine, combine),
            partition=owner if partition else None,
            mergeable=(lambda key: int(str(key).rsplit(" ", 1)[-1]) % 2 == 0) if mergeable else None,
            local_reduction=local,
            push_bytes=push_bytes,
            fetches=1 + push_bytes % 3,
            waves=waves,
            memory=memory,
            debug=True,
        )
        for task in reversed(range(tasks)):
            keys, values = batch(comm.rank, task)
            shuffle.add(keys, None if combine == "count" else values, task=task)
        parts = list(shuffle.parts())
        if partition:
            assert all(owner(keys, comm.size) == [comm.rank] * len(keys) for keys, _ in parts)
        return parts

    got = whole([part for parts in on_all(size, body) for part in parts])
    all_values = lists([batch(rank, task) for rank in range(size) for task in range(tasks)])
    assert got.keys() == all_values.keys()
    for key, values in all_values.items():
        here = got[key]
        if combine == "list":
            # In the order of ranks, except that the owner's values are first.
            assert sorted(map(str, here)) == sorted(map(str, values))
            assert here.dtype == dtype and here.shape == (len(values), *row)
        elif combine == "count":
            assert here == len(values)
        elif combine == "objects":
            assert here == {"v": sum(value["v"] for value in values)}
        else:
            with np.errstate(over="ignore"):
                want = folded(values, MERGES.get(combine, np.gcd if combine == "gcd" else np.add))
            assert np.array_equal(here, np.asarray(want).astype(dtype)), (key, here, want)


def test_a_list_of_objects_in_order() -> None:
    def body(comm: sky.Comm) -> Any:
        return comm.shuffle(["a", "b", "a"], [(comm.rank, 0), None, {comm.rank}], "list")

    got = whole(on_all(3, body))
    assert sorted(map(str, got["a"])) == sorted(str(one) for rank in range(3) for one in ((rank, 0), {rank}))
    assert got["b"] == [None] * 3


def test_results_are_the_same_in_each_run() -> None:
    def body(comm: sky.Comm) -> Any:
        rng = np.random.default_rng(comm.rank)
        keys, values = rng.zipf(1.3, 5000), rng.random(5000)
        return [comm.shuffle(keys, values, push_bytes=push) for push in (0, 0, 1 << 20)]

    for first, *others in on_all(4, body):
        for keys, values in others:
            assert (keys == first[0]).all() and values.tobytes() == first[1].tobytes()


def test_tasks_on_threads_with_a_ufunc() -> None:
    """A ufunc runs in the interpreter, while its table is locked."""
    with sky.init() as comm:
        shuffle = Shuffle(comm, np.gcd, memory=1 << 20)

        def task(number: int) -> None:
            for k in range(30):
                shuffle.add(np.arange(2000), np.full(2000, 6 * (k + number + 1)), task=number)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(task, range(4)))
        keys, values = shuffle.result()
    assert sorted(keys.tolist()) == list(range(2000)) and (values == 6).all()


def test_bytes_on_the_wire_and_local_reduction() -> None:
    """Each merged key is sent once, in few bytes."""

    def body(comm: sky.Comm) -> Any:
        keys = np.arange(comm.rank, 100_000) % 1000
        return comm.shuffle(keys, np.ones(len(keys)), explain=True)[2]

    for how in on_all(4, body):
        assert (how.merged, how.waves, how.spilled_bytes, how.host_bytes) == (1000, 1, 0, 0)
        # At most two bytes of key and eight of value for each key, and 40 bytes for each of three other ranks.
        assert how.sent_bytes <= 10 * 1000 * 1.05 + 3 * 40
        assert "1,000 after merging here" in str(how)


def test_without_local_reduction_all_values_travel() -> None:
    def body(comm: sky.Comm) -> Any:
        keys = np.zeros(500, np.int64)
        return [comm.shuffle(keys, keys, local_reduction=local, explain=True) for local in ("process", False)]

    reduced, plain = zip(*on_all(4, body), strict=True)
    assert whole([part[:2] for part in reduced]) == whole([part[:2] for part in plain]) == {0: 0}
    assert [part[2].merged for part in reduced] == [1] * 4
    assert [part[2].merged for part in plain] == [500] * 4
    assert sum(part[2].sent_bytes for part in plain) > 3 * 500 * 8


def test_invalid_local_reductions() -> None:
    with sky.init() as comm:
        with pytest.raises(BadInput, match="local_reduction='host'"):
            comm.shuffle([1], [1], local_reduction="host")  # type: ignore[arg-type]
        for true in (1, np.True_):
            assert Shuffle(comm, local_reduction=true)._local is True  # type: ignore[arg-type]


class Hosts(Stages):
    """Stages of a shuffle that treat each ``ranks_per_host`` consecutive ranks as one host."""

    def __init__(self, comm: sky.Comm, ranks_per_host: int) -> None:
        super().__init__(comm)
        self._host_of = (np.arange(comm.size) // ranks_per_host).astype(np.uint32)
        self.here = [rank for rank in range(comm.size) if rank // ranks_per_host == comm.rank // ranks_per_host]
        self.has_hosts = ranks_per_host > 1


def test_closing_closes_the_group_of_the_host() -> None:
    """If it stayed open, so would the connections."""

    def body(comm: sky.Comm) -> Any:
        comm._stages = Hosts(comm, 2)
        comm.shuffle([1], [1])
        group = comm._stages._host_group()
        comm.close()
        with pytest.raises(sky.SkyphosError, match="closed"):
            group.barrier()

    on_all(4, body)


@pytest.mark.parametrize("combine", ["sum", "function", "list"])
@pytest.mark.parametrize("ranks_per_host", [2, 3])
def test_ranks_of_a_host_merge_first(ranks_per_host: int, combine: str) -> None:
    """Each key leaves a host once."""
    merge: Any = (lambda _, a, b: a + b) if combine == "function" else combine

    def body(comm: sky.Comm) -> Any:
        comm._stages = Hosts(comm, ranks_per_host)
        keys = np.arange(600)
        first = comm.shuffle(keys, keys * (comm.rank + 1), merge, explain=True)
        return first, comm.shuffle(keys, keys, merge, local_reduction="process", explain=True)[2]

    results = on_all(6, body)
    got = whole([first[:2] for first, _ in results])
    for key in range(600):
        here = np.sort(got[key]).tolist() if combine == "list" else int(got[key])
        assert here == ([key * rank for rank in range(1, 7)] if combine == "list" else 21 * key)
    if combine == "sum":
        by_host = sum(first[2].sent_bytes for first, _ in results)
        by_process = sum(how.sent_bytes for _, how in results)
        # A host that merges sends each key once to another host; otherwise each of its ranks sends it to another rank.
        assert by_host < 1.15 * by_process / ranks_per_host * (1 - ranks_per_host / 6) / (1 - 1 / 6)
        assert all(first[2].host_bytes > 0 for first, _ in results)


def test_real_processes_exchange_long_blocks(processes: Processes) -> None:
    """A few megabytes in each direction, fetched two blocks at a time."""
    code = """
keys = np.arange(400_000) * 4 + comm.rank % 2
got, values, how = comm.shuffle(keys, np.ones((len(keys), 2), np.float32), fetches=2, explain=True)
print(len(got), int(values.sum()), how.sent_bytes > 2_000_000, flush=True)
"""
    counts, sums = 0, 0
    for out, err in processes.lines(4, code):
        words = out.split()
        assert words[2:] == ["True"], (out, err)
        counts, sums = counts + int(words[0]), sums + int(words[1])
    assert (counts, sums) == (800_000, 4 * 400_000 * 2)


def test_a_rank_that_dies_and_a_smaller_group(processes: Processes) -> None:
    """Rank 2 dies in its merge function, while the others wait for its blocks and a long block is in transfer."""
    code = """
import os
def merge(key, a, b):
    if comm.size == 4 and comm.rank == 2:
        os._exit(9)
    return a + b
try:
    comm.shuffle(np.arange(20_000), [1] * 20_000, merge, push_bytes=100)
    say("no error")
except sky.PeerLost as error:
    comm = comm.shrink()
    keys, values = comm.shuffle(np.arange(1000), [comm.rank] * 1000, merge)
    say(error.rank, comm.size, len(keys), sum(values))
"""
    said = [out.split() for out, _ in processes.lines(4, code)]
    assert said.pop(2) == []
    assert all(words[:2] == ["2", "3"] for words in said), said
    assert sum(int(words[2]) for words in said) == 1000 and sum(int(words[3]) for words in said) == 3000


def test_replicas_have_the_same_results() -> None:
    comms = sky.local(6, replication=2)

    def body(comm: sky.Comm) -> Any:
        keys = np.arange(5000) % (700 + comm.rank)
        first = comm.shuffle(keys, keys * 0.1, push_bytes=1000)
        return first, comm.shuffle([f"k{comm.rank}", "all"], [[comm.rank], [1]], lambda key, a, b: a + b, memory=1)

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(body, comms))
    for comm in comms:
        comm.close()
    for a, b in zip(results[:3], results[3:], strict=True):
        assert a[0][0].tobytes() == b[0][0].tobytes() and a[0][1].tobytes() == b[0][1].tobytes() and a[1] == b[1]
    assert whole([second for _, second in results[:3]]) == {"all": [1] * 3, "k0": [0], "k1": [1], "k2": [2]}


def test_files_are_gone_afterwards(tmp_path: Path) -> None:
    def body(comm: sky.Comm) -> int:
        folder = tmp_path / str(comm.rank)
        folder.mkdir()
        shuffle = Shuffle(comm, memory=50_000, spill_dir=folder)
        for k in range(10):
            shuffle.add(np.arange(k * 1000, k * 1000 + 3000), np.ones(3000))
        seen = 0
        for keys, values in shuffle.parts():
            assert list(folder.glob("*/*.arrow"))
            seen += len(keys)
            assert (values <= 3 * comm.size).all()
        how = shuffle.explanation()
        assert how.waves > 1 and how.spilled_bytes > 0, how
        return seen

    assert sum(on_all(3, body)) == 12_000
    assert not list(tmp_path.glob("*/*"))


def _raises(*_: Any) -> Any:
    raise KeyError("not this one")


class Unpicklable:
    """Raises when it is pickled."""

    def __reduce__(self) -> Any:
        raise RuntimeError("stays here")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([1, 2], [[1.0], [2.0, 3.0]]), "ragged rows"),
        (([1, 2], [1.0]), "values of shape \\(1,\\) for 2 keys"),
        (([1, 2], [1.0, 2.0], "mean"), "means of means"),
        (([1, 2], [1.0, 2.0], "or"), "integers, not float64"),
        (([1, 2], [1.0, 2.0], "all"), "unknown combine operation 'all': .*list, count"),
        (([1, 1], [1, 2], functools.partial(max)), "would use the key as a value: pass 'max'"),
        (([1, 2], [1.0, 2.0], 7), "not 7"),
        (([1, 2], ["a", "b"]), "must be numbers for combine=sum"),
        (([1, 2], None), "values are missing"),
        (([1, 2], [1, 2], "count"), "takes no values"),
        (([1.5, 2], [1, 2]), "integers, str or bytes, not float64"),
        (([1, "a"], [1, 2]), "integers, str or bytes|all str or all bytes"),
        ((["a", b"a"], [1, 2]), "all str or all bytes"),
        (([(1, 2)], [1]), "one dimension"),
        ((pa.array([1, None]), [1, 2]), "must not be null"),
        ((["\ud800"], [1]), "not text that can be sent"),
        (([1], [np.complex128(1)]), "complex128"),
        (([1], [Unpicklable()], "list"), "cannot be pickled: stays here"),
        (([1, 1], [1, 2], _raises), "combine=_raises raised KeyError on key 1.*not this one(.|\n)*Traceback"),
    ],
)
def test_errors_of_shuffles(arguments: tuple[Any, ...], words: str) -> None:
    """One rank passes the invalid arguments; all ranks raise, and the group stays usable."""

    def body(comm: sky.Comm) -> float:
        with pytest.raises(BadInput, match=words):
            comm.shuffle(*(arguments if comm.rank == 1 else ([3], [1.0], *arguments[2:3])))
        return float(comm.shuffle([5], [1.0])[1].sum())

    assert sum(on_all(3, body)) == 3


def test_a_function_that_fails_at_the_owner() -> None:
    """The owner of the key is the first to call the function with values of other ranks."""

    def merge(key: Any, a: Any, b: Any) -> Any:
        if key == "bad":
            raise ZeroDivisionError(f"{a} and {b}")
        return a + b

    def body(comm: sky.Comm) -> Any:
        comm._stages = Hosts(comm, 2 if comm.size == 4 else 1)
        with pytest.raises(BadInput, match=r"rank \d: combine=.*merge raised ZeroDivisionError on key 'bad'"):
            comm.shuffle(["good", "bad"], [1, 2], merge)
        return whole([comm.shuffle(["good"], [1], merge)])

    for size in (2, 3, 4):
        assert {"good": size} in on_all(size, body)


def test_a_function_that_fails_when_another_rank_has_completed_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks raise the function's error, and the group stays usable."""
    completed = threading.Event()

    def exchange(comm: Any, *args: Any, **kwargs: Any) -> Any:
        done = exchange_blocks(comm, *args, **kwargs)
        if comm.rank == 1:
            completed.set()
        return done

    monkeypatch.setattr(stages, "exchange_blocks", exchange)

    def to_rank_0(keys: Any, size: int) -> npt.NDArray[np.int64]:
        return np.zeros(len(keys), np.int64)

    def merge(key: Any, a: Any, b: Any) -> Any:
        assert completed.wait(30)
        raise ZeroDivisionError("too late")

    def body(comm: sky.Comm) -> Any:
        # Rank 0 requests a long block only after receiving the one before, so it is in the exchange when merge fails.
        keys = ["bad"] if comm.rank < 2 else [f"{comm.rank}:{k}" for k in range(100)]
        with pytest.raises(BadInput, match=r"rank 0: combine=.*merge raised ZeroDivisionError on key 'bad': too late"):
            comm.shuffle(keys, [1] * len(keys), merge, partition=to_rank_0, push_bytes=100, fetches=1)
        return whole([comm.shuffle(["good"], [1])])

    assert {"good": 4} in on_all(4, body)


@pytest.mark.parametrize(
    ("merge", "words"), [(lambda k, a, b: a - b, "not commutative"), (lambda k, a, b: (a + b) / 2, "not associative")]
)
def test_functions_that_depend_on_the_order(merge: Any, words: str) -> None:
    def body(comm: sky.Comm) -> None:
        with pytest.raises(BadInput, match=words):
            comm.shuffle(["x"] * 3, [1.0, 2.0, 4.0], merge, debug=True)
        comm.shuffle(["x"] * 3, [1.0, 2.0, 4.0], merge, debug=False)

    on_all(2, body)


def test_invalid_partition_functions() -> None:
    def body(comm: sky.Comm) -> None:
        for partition, text in [
            (lambda keys, ranks: np.full(len(keys), ranks), "returned rank 2"),
            (lambda keys, ranks: [0.5] * len(keys), "array of 2 integers"),
            (lambda keys, ranks: [0], "array of 2 integers"),
            (_raises, "not this one"),
            ("even", "must be a function of"),
        ]:
            with pytest.raises(BadInput, match=text):
                comm.shuffle([1, 2], [1, 2], partition=partition)  # type: ignore[arg-type]

    on_all(2, body)


def test_ranks_that_differ() -> None:
    def body(comm: sky.Comm) -> None:
        differs = comm.rank == 1
        for arguments, text in [
            (lambda: ((["a"] if differs else [1]), [1.0]), "keys of str"),
            (lambda: ([1], [1] if differs else [1.0]), "rank 0 has keys of int64 and values of float64, rank 1 has"),
            (lambda: ([1], [[1.0, 2.0]] if differs else [1.0]), r"shape \(2,\)"),
            # The error names the two ranks that meet first.
            (lambda: ([1], [1.0], "max" if differs else "sum"), r"is in shuffle\(combine='max'\)"),
        ]:
            with pytest.raises(Mismatch, match=text):
                comm.shuffle(*arguments())
        keys, values = ([], []) if differs else ([7], [2.5])
        assert comm.shuffle(keys, values, partition=lambda keys, ranks: [0] * len(keys))

    on_all(3, body)


def test_no_rank_has_any_keys() -> None:
    assert on_all(3, lambda comm: comm.shuffle([], [])) == [([], [])] * 3
    for keys, values in on_all(3, lambda comm: comm.shuffle(np.empty(0, np.int32), np.empty((0, 2), np.float32))):
        assert keys.dtype == np.int32 and values.shape == (0, 2) and values.dtype == np.float32


@settings(max_examples=50, deadline=None)
@given(
    text=st.lists(st.sampled_from([*" \t\n\r\v\f", "a", "bc", "\u00a0", "é"]), max_size=60).map("".join),
    batch_bytes=st.integers(1, 40),
)
def test_words_are_those_of_split(text: str, batch_bytes: int) -> None:
    raw = text.encode()
    assert [word for some in words(raw, batch_bytes) for word in some.tolist()] == raw.split()
    assert [word.encode() for some in words(text, batch_bytes) for word in some.tolist()] == raw.split()
    with sky.init() as comm:
        count = Shuffle(comm, "count")
        for some in words(memoryview(raw), batch_bytes):
            count.add(some)
        keys, counts = count.result()
    assert dict(zip(keys, np.asarray(counts).tolist(), strict=True)) == Counter(raw.split())


def test_words_of_invalid_arguments() -> None:
    assert list(words(b"")) == list(words("  \n")) == []
    for wrong in (7, None, "\ud800", [b"a"]):
        with pytest.raises(sky.BadInput, match="words are those of bytes or str"):
            words(wrong)


def test_shuffles_under_way_during_other_calls() -> None:
    def body(comm: sky.Comm) -> Any:
        keys = np.arange(2_000) * (comm.rank + 1) % 997
        works = [comm.shuffle(keys + k, np.ones(2_000), async_op=True) for k in range(3)]
        total = comm.allreduce(1.0)
        waited = [work.wait() for work in reversed(works)]
        at_once = [comm.shuffle(keys + k, np.ones(2_000)) for k in reversed(range(3))]
        pairs = [pair for both in zip(waited, at_once, strict=True) for pair in zip(*both, strict=True)]
        same = all(np.array_equal(a, b) for a, b in pairs)
        return total, same, "shuffle" in repr(works[0]) and works[0].done(), len(works[0].wait()[0])

    for total, same, done, keys in on_all(3, body):
        assert total == 3.0 and same and done and keys > 0


def test_the_work_of_a_shuffle_has_its_error_on_all_ranks() -> None:
    def body(comm: sky.Comm) -> str:
        values = np.ones(3) if comm.rank else np.ones(2)
        work = comm.shuffle([1, 2, 3], values, async_op=True)
        assert comm.allreduce(1) == 2
        assert isinstance(work.exception(), BadInput)
        with pytest.raises(BadInput) as error:
            work.wait()
        return str(error.value)

    zero, one = on_all(2, body)
    assert "2" in zero and one.startswith("rank 0: ")


def test_an_unfinished_shuffle_ends_with_its_group() -> None:
    rank_0_calls = threading.Event()

    def body(comm: sky.Comm) -> Any:
        if comm.rank == 1:
            assert rank_0_calls.wait(20)
        else:
            rank_0_calls.set()
        return comm.shuffle([1], [1], async_op=True)

    works = on_all(2, body)
    assert all(work.exception(timeout=20) is None or isinstance(work.exception(), SkyphosError) for work in works)
