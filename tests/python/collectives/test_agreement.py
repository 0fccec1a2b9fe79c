"""Every rank raises or none: interrupts, errors between calls, arguments that differ."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skyphos as sky
from conftest import Processes, on_all
from mpi_support import needs_mpi, run
from skyphos.collectives.agreement import agree_arguments, collective, report_error, together
from skyphos.errors import BadInput, Mismatch, SkyphosError, text_of
from skyphos.graph import Edges, pagerank
from skyphos.mapreduce import MapReduce
from skyphos.mapreduce.sums import checksum_of

# Rank 0 is interrupted while it waits for the others, which enter once it has left. A rank that gets an error repeats
# the step.
LATE = """
import os, signal, threading, time
from pathlib import Path

folder = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ["FOLDER"])
CALLS = {
    "array": lambda k: comm.allreduce(np.full(3, k))[0],
    "sparse": lambda k: comm.allreduce(sky.SparseVector([0], np.array([k]), n=9)).values[0],
    "work": lambda k: comm.allreduce(np.full(3, k), async_op=True).wait()[0],
    "gather": lambda k: comm.broadcast(None if (all := comm.gather(np.array([k]))) is None else float(all.sum())),
    "barrier": lambda k: comm.barrier() or k * comm.size,
    "object": lambda k: comm.broadcast({"k": k})["k"] * comm.size,
    "shuffle": lambda k: comm.allreduce(np.array([comm.shuffle([7], [k])[1].sum()]))[0],
}
def interrupt_when_in_call():
    # If 50 looks in a row find the main thread at one instruction in the library, it waits in a call for other ranks.
    looks, last = 0, None
    while looks < 50:
        frame = sys._current_frames()[threading.main_thread().ident]
        at = (frame.f_code, frame.f_lasti)
        is_in_library = frame.f_code.co_filename.startswith(os.path.dirname(sky.__file__))
        looks, last = (looks + 1 if is_in_library and at == last else 0), at
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)

for name, call in CALLS.items():
    left = folder / name
    if comm.rank == 0:
        threading.Thread(target=interrupt_when_in_call).start()
    else:
        while not left.exists():
            time.sleep(0.005)
    for k in (1.0, 10.0):
        for again in range(3):
            try:
                say(comm.rank, name, k, call(k))
                break
            except (KeyboardInterrupt, sky.SkyphosError) as error:
                say(comm.rank, name, k, type(error).__name__, error)
                left.touch()
"""
NAMES = ("array", "sparse", "work", "gather", "barrier", "object", "shuffle")


def expected(rank: int, size: int) -> list[str]:
    told = "KeyboardInterrupt " if rank == 0 else "SkyphosError rank 0 left the call: interrupted"
    return [
        line
        for name in NAMES
        for line in (f"{rank} {name} 1.0 {told}", f"{rank} {name} 1.0 {size}.0", f"{rank} {name} 10.0 {size}0.0")
    ]


def lines(text: str, rank: int) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"{rank} ")]


@pytest.mark.parametrize("shared_memory", ["1", "0"])
@pytest.mark.parametrize("size", [2, 3])
def test_entering_a_call_that_a_peer_has_left_raises(
    processes: Processes, tmp_path: Path, size: int, shared_memory: str
) -> None:
    each = dict.fromkeys(range(size), shared_memory)
    folder = dict.fromkeys(range(size), str(tmp_path))
    said = processes.lines(size, LATE, SKYPHOS_SHARED_MEMORY=each, FOLDER=folder)
    for rank, (out, err) in enumerate(said):
        assert lines(out, rank) == expected(rank, size), err


@needs_mpi
def test_entering_a_call_that_a_peer_has_left_raises_over_mpi(tmp_path: Path) -> None:
    script = (
        "import sys, numpy as np, skyphos as sky\n"
        "comm = sky.init(timeout=30)\n"
        "out = open(f'{sys.argv[1]}/out{comm.rank}', 'w')\n"
        "def say(*words): print(*words, file=out, flush=True)\n" + LATE
    )
    done = run(2, script, str(tmp_path))
    for rank in range(2):
        found = (tmp_path / f"out{rank}").read_text()
        assert lines(found, rank) == expected(rank, 2), done


# Ranks are interrupted at random moments, also between the parts of a collective and after its last part. A rank that
# gets an error repeats the step. Each step has a value of its own, so that mixed-up steps are detected.
INTERRUPTS = """
import os, random, signal

random.seed(f"{comm.rank} {os.environ['SEED']}")
in_call = in_handler = False

def interrupt(signum, frame):
    global in_handler
    if in_handler:
        return
    in_handler = True
    places = ("agreement.py", "call"), ("work.py", "_settle")
    while frame is not None and (os.path.basename(frame.f_code.co_filename), frame.f_code.co_name) not in places:
        frame = frame.f_back
    if in_call and frame is None:  # outside the collective: try again a moment later
        signal.setitimer(signal.ITIMER_REAL, 1e-4)
    in_handler = False
    if frame is not None:
        raise KeyboardInterrupt

class Thing:  # travels as a pickle
    def __init__(self, step):
        self.step = step

def waited(work):
    while True:
        try:
            return work.wait()
        except KeyboardInterrupt:
            pass  # the next wait has the result, or says that the call was ended

signal.signal(signal.SIGALRM, interrupt)
vector = lambda step: sky.SparseVector([3], np.array([step]), n=9)
CALLS = {
    "broadcast": lambda step: comm.broadcast(Thing(step)).step,
    "allgather": lambda step: comm.allgather(Thing(step))[-1].step,
    "gather": lambda step: (comm.gather(Thing(step)) or [Thing(step)])[-1].step,
    "scatter": lambda step: comm.scatter([Thing(step)] * comm.size if comm.rank == 0 else None).step,
    "alltoall": lambda step: comm.alltoall([Thing(step)] * comm.size)[-1].step,
    "numbers": lambda step: comm.allreduce([step] * 300, op="max")[-1],
    "plan": lambda step: comm.allreduce(vector(step), op="max", keep_plan=True)[0].values[0],
    "shuffle": lambda step: max(comm.shuffle([7], [step], combine="max")[1], default=step),
    "work": lambda step: waited(comm.allgather(Thing(step), async_op=True))[-1].step,
}
quiet = 10  # steps without interrupts at the end, so that the last interrupt's error is raised in one of them
names = [name for name in CALLS for _ in range(15)] + ["numbers"] * quiet
step = errors = diverged = 0
while step < len(names):
    try:
        in_call = True
        if step < len(names) - quiet and random.random() < 0.3:
            signal.setitimer(signal.ITIMER_REAL, random.expovariate(1 / 0.001))
        found = CALLS[names[step]](step)
        in_call = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert found == step, (names[step], step, found)
        step += 1
    except (KeyboardInterrupt, sky.SkyphosError) as error:
        in_call = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        errors += 1
        assert not isinstance(error, (sky.Timeout, sky.PeerLost, sky.Mismatch)), (names[step], error)
        if isinstance(error, sky.errors.Diverged):
            diverged += 1
            comm = comm.shrink()
            step = int(comm.allreduce(np.array([step]), op="min")[0])
say(step, errors > 0, diverged)
"""


@pytest.mark.parametrize("shared_memory", ["1", "0"])
@pytest.mark.parametrize("size", [2, 3])
def test_interrupts_at_any_moment_never_mix_up_steps(processes: Processes, size: int, shared_memory: str) -> None:
    each, seeds = dict.fromkeys(range(size), shared_memory), dict.fromkeys(range(size), f"{size} {shared_memory}")
    said = processes.lines(size, INTERRUPTS, SKYPHOS_SHARED_MEMORY=each, SEED=seeds)
    for out, err in said:
        assert out == said[0][0] and out.startswith("145 True "), (out, err[-3000:])


class Wordless(Exception):
    """An error that has no text: ``str`` of it raises."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KeyboardInterrupt(), "rank 1: KeyboardInterrupt"),
        (SystemExit(3), "rank 1: SystemExit: 3"),
        (ValueError("no file 'a\udcff'"), r"rank 1: .*no file 'a\\udcff'"),
        (Wordless(), "rank 1: .*__str__ raised RuntimeError"),
        (MemoryError(), "rank 1: "),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_exception_of_one_rank_is_raised_on_all(error: BaseException, told: str) -> None:
    class Sent:
        def __init__(self, rank: int) -> None:
            self.rank = rank

        def __reduce__(self) -> object:
            raise error

    def fail(comm: sky.Comm) -> None:
        if comm.rank == 1:
            raise error

    def body(comm: sky.Comm) -> None:
        calls = [
            lambda: together(comm, lambda: fail(comm)),
            lambda: comm.broadcast(Sent(comm.rank), root=1),
            lambda: comm.shuffle([1, 1], [1, 2], combine=lambda key, a, b: fail(comm) or max(a, b)),
            lambda: comm.shuffle([1, 2], [1, 2], partition=lambda keys, ranks: fail(comm) or np.zeros(len(keys), int)),
            lambda: MapReduce(comm, map=lambda data, state: fail(comm) or ([0], [1.0]), partitions=["a"]).run(),
            lambda: MapReduce(
                comm,
                map=lambda data, state: ([0], [1.0]),
                combine=lambda keys, values: fail(comm) or 1.0,
                partitions=["a"],
            ).run(),
        ]
        for number, call in enumerate(calls):
            with pytest.raises((SkyphosError, type(error))) as caught:  # type: ignore[misc]
                call()
            if comm.rank == 1 and not isinstance(error, Exception):
                assert caught.value is error, number
            if comm.rank != 1:
                assert isinstance(caught.value, SkyphosError), number
        # All ranks are at the same place of the program.
        assert comm.allreduce(np.ones(1))[0] == comm.size

    on_all(3, body, timeout=10)


def test_an_error_between_two_calls_is_reported_to_all() -> None:
    @collective()
    def two_steps(comm: sky.Comm) -> None:
        comm.barrier()
        if comm.rank == 0:
            raise OSError("the disk is full")
        comm.barrier()

    def body(comm: sky.Comm) -> None:
        with pytest.raises(BadInput, match="the disk is full"):
            two_steps(comm)
        assert comm.allreduce(np.ones(1))[0] == comm.size

    on_all(3, body)


def test_an_exception_object_that_is_raised_again_is_reported_again() -> None:
    error = ValueError("no such column")

    @collective()
    def step(comm: sky.Comm) -> None:
        if comm.rank == 1:
            raise error
        comm.barrier()

    def body(comm: sky.Comm) -> None:
        for _ in range(3):
            with pytest.raises(BadInput, match="no such column"):
                step(comm)
            assert comm.allreduce(np.ones(1))[0] == comm.size

    on_all(3, body, timeout=10)


# Values that one rank passes by mistake, also of types that cannot be compared, converted or tested for truth.
ODD = (np.array([1, 2]), "10", [1], {}, 1.5, float("nan"), b"x", object())
WRONG_ON_ONE_RANK = {
    "allreduce": ("degrees", "dense_threshold", "expected_nnz", "keep_plan", "explain", "async_op", "algorithm", "op"),
    "topk_allreduce": ("k", "op", "contributed", "async_op"),
    "reduce_scatter": ("degrees", "expected_nnz", "explain", "async_op", "op"),
    "reduce": ("root", "op", "async_op"),
    "allgather": ("algorithm", "explain", "async_op"),
    "gather": ("root", "async_op"),
    "scatter": ("root", "async_op"),
    "alltoall": ("async_op",),
    "broadcast": ("root", "algorithm", "chunk_bytes", "ack_timeout", "on_loss", "explain", "async_op"),
    "barrier": ("async_op",),
    "split": ("color", "key"),
    "configure": ("n", "width", "degrees", "missing", "min_packet", "expected_nnz", "async_op"),
    "shuffle": ("combine", "partition", "memory", "async_op"),
    "outer_product_sum": ("prune", "scatter", "async_op"),
}


def test_no_collective_is_left_out() -> None:
    code = collective()(lambda: None).__code__  # shared by all decorated functions
    names = {name for name in dir(sky.Comm) if getattr(getattr(sky.Comm, name), "__code__", None) is code}
    names.remove("configure_reduce")  # has the arguments and the page of configure
    assert names == set(WRONG_ON_ONE_RANK)
    table = (Path(__file__).parents[3] / "docs/collectives/README.md").read_text(encoding="utf-8")
    pages = set(re.findall(r"^\| \[(\w+)\]", table, re.M))
    assert {name.removesuffix("_sum") for name in names - {"barrier", "split"}} == pages


@pytest.mark.parametrize(
    ("call", "argument"), [(call, argument) for call, names in WRONG_ON_ONE_RANK.items() for argument in names]
)
def test_an_argument_that_is_wrong_on_one_rank_raises_on_all(call: str, argument: str) -> None:
    def given(comm: sky.Comm) -> tuple[tuple[Any, ...], dict[str, Any]]:
        vector = sky.SparseVector([comm.rank], np.ones(1), n=9)
        return {
            "topk_allreduce": ((np.arange(4.0),), {"k": 2}),
            "gather": ((np.ones(2),), {}),
            "scatter": (([np.ones(2)] * comm.size,), {}),
            "alltoall": (([np.ones(2)] * comm.size,), {}),
            "broadcast": (({"a": 1},), {}),
            "barrier": ((), {}),
            "split": ((0,), {}),
            "configure": (([1], [1]), {"n": 9}),
            "shuffle": (([1], [1]), {}),
            "outer_product_sum": ((np.ones((2, 2)), np.ones((2, 2))), {}),
        }.get(call, ((vector,), {}))

    def body(comm: sky.Comm) -> list[str]:
        outcomes = []
        for odd in ODD:
            positional, named = given(comm)
            if comm.rank == 1:
                named[argument] = odd
                if call == "split" and argument == "color":
                    positional, named = (odd,), {}
            try:
                result = getattr(comm, call)(*positional, **named)
                outcomes.append("done")
                if isinstance(result, (sky.Comm, sky.Plan)):
                    result.close()
            except SkyphosError as error:
                assert not isinstance(error, (sky.Timeout, sky.PeerLost)), f"{odd!r}: {error}"
                outcomes.append("refused")
            assert comm.allreduce(np.ones(1))[0] == comm.size
        return outcomes

    first, *others = on_all(2, body, timeout=10)
    assert all(other == first for other in others), (first, others)
    assert "refused" in first


def test_an_error_that_all_raise_keeps_its_class() -> None:
    @collective()
    def fails(comm: sky.Comm) -> None:
        comm.barrier()
        raise Mismatch("all found the same")

    def body(comm: sky.Comm) -> None:
        with pytest.raises(Mismatch, match="all found the same"):
            fails(comm)
        assert comm.allreduce(np.ones(1))[0] == comm.size

    on_all(3, body)


def test_report_error_returns_the_exception_to_raise() -> None:
    with sky.init() as comm:
        assert isinstance(report_error(comm, OSError("no")), BadInput)
        assert isinstance(report_error(comm, KeyboardInterrupt()), KeyboardInterrupt)
    assert text_of(Wordless()).startswith("(no text")


def test_arguments_that_differ_are_named() -> None:
    def body(comm: sky.Comm) -> None:
        last = comm.rank == comm.size - 1
        edges = Edges(np.array([0, 1]), np.array([1, 0]))
        vector = sky.SparseVector([1], np.ones(1), n=9)
        for call, told in [
            (lambda: pagerank(comm, edges, damping=0.5 if last else 0.85), "damping=0.85"),
            (lambda: pagerank(comm, edges, tol=1e-3 if last else 1e-8), "tol=1e-08"),
            (lambda: pagerank(comm, edges, personalization={0: 1.0} if last else None), "personalization=None"),
            (lambda: comm.allreduce(vector, algorithm="ring" if last else "auto"), "algorithm=ring"),
            (lambda: comm.allreduce(vector, split="even" if last else "hash"), "split=even"),
            (lambda: comm.allreduce(np.zeros((2, 3) if last else (3, 2))), r"shape=\(2, 3\)"),
            (lambda: comm.allgather(np.zeros((2, 3) if last else (3, 2))), r"shape=\(2, 3\)"),
            (lambda: comm.gather(np.zeros((2, 3) if last else (3, 2))), r"shape=\(2, 3\)"),
            (lambda: comm.reduce(np.zeros((2, 3) if last else (3, 2))), r"shape=\(2, 3\)"),
            (lambda: comm.reduce_scatter(np.zeros((2, 3) if last else (3, 2))), r"shape=\(2, 3\)"),
            (lambda: comm.topk_allreduce(np.ones(5), k=3 if last else 2), "k=3"),
            (lambda: comm.configure([1], [1], n=9, expected_nnz=1 if last else None), "expected_nnz=None"),
            (lambda: comm.outer_product_sum(np.ones((2, 2)), np.ones((2, 2)), scatter=last), "scatter=True"),
            (lambda: comm.shuffle([1], [1], combine="max" if last else "sum"), "combine='sum'"),
            (lambda: agree_arguments(comm, "f", x=last), r"f\(x=True\)"),
            (lambda: agree_arguments(comm, "f" if last else "g"), "is in g"),
            (
                lambda: MapReduce(comm, map=len, reduce="max" if last else "sum", partitions=["a"]),
                r"MapReduce\(reduce='sum'\)",
            ),
        ]:
            with pytest.raises(Mismatch, match=told):
                call()
        assert comm.allreduce(np.ones(1))[0] == comm.size

    on_all(3, body)


def test_advice_for_lists_without_a_common_type() -> None:
    def body(comm: sky.Comm) -> str:
        with pytest.raises(Mismatch) as caught:
            comm.configure_reduce([1], [1], [2**60 + 1] if comm.rank else [0.5])
        return str(caught.value).partition("; ")[2]

    of_floats, of_integers = on_all(2, body)
    assert "a list was taken for float64: pass np.array(values, dtype)" in of_floats
    assert "a list was taken for int64: pass np.array(values, dtype)" in of_integers


def test_different_states_are_detected() -> None:
    class Model:
        def __init__(self, weight: float) -> None:
            self.weight, self.children = weight, {"a": [1, 2]}

    same = [1.0, "a", None, (1, [2.0]), {"a": {1, 2}}, np.float32(2), np.arange(3), Model(1.0), b"x", len]
    again = [1.0, "a", None, (1, [2.0]), {"a": {2, 1}}, np.float32(2), np.arange(3), Model(1.0), b"x", len]
    others = [1, "b", 0, (1, [2.5]), {"a": {1, 3}}, np.float64(2), np.arange(3.0), Model(2.0), b"y", max]
    for one, equal, other in zip(same, again, others, strict=True):
        assert checksum_of(one) == checksum_of(equal) and checksum_of(one) != checksum_of(other), one
    circle: list[object] = [1]
    circle.append(circle)
    assert checksum_of(circle) == checksum_of(circle)


def test_calls_while_the_interpreter_ends_raise() -> None:
    script = """
import numpy as np, skyphos as sky
class Model:
    def __del__(self):
        for call in (lambda: self.comm.allreduce(np.ones(1)), lambda: self.comm.barrier()):
            try: call()
            except sky.errors.SkyphosError as error: print(type(error).__name__, error, flush=True)
m = Model(); m.comm = sky.init()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == 2 * "BadInput rank 0: this Comm is closed\n" and not done.stderr


def test_an_unfinished_call_does_not_delay_the_exit(processes: Processes) -> None:
    code = "import time\nstart = time.monotonic()\nw = comm.allreduce(np.ones(10**6), async_op=True)\nimport atexit\n"
    code += "atexit.register(lambda: None)\n"
    for _ in range(4):
        group = processes.start(2, code)
        for process in group:
            _, err = process.communicate(timeout=3.5)
            assert process.returncode == 0 and not err, err


def test_a_child_of_a_rank_has_no_place_in_the_group(processes: Processes) -> None:
    code = """
import subprocess, time
start = time.monotonic()
if comm.rank == 1:
    script = "import skyphos as sky; sky.init()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    say(done.returncode, done.stderr.strip().splitlines()[-1])
    script = "import skyphos as sky; print(sky.init(rank=0, world_size=1, rendezvous='127.0.0.1:1').size)"
    say(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip())
comm.barrier()
"""
    (_, err), (out, _) = processes.lines(2, code)
    first, second = out.splitlines()
    assert first.startswith("1 skyphos.errors.BadInput: rank 1 of this group is process ") and not err
    assert second == "1"


def test_peers_receive_the_reason_why_a_rank_left(processes: Processes) -> None:
    code = """
comm.barrier()
if comm.rank == 1:
    {how}
try:
    while True:
        comm.allreduce(np.ones(3))
except sky.PeerLost as error:
    say(error.rank, error)
"""
    for how in ('raise ValueError("no such file: a.txt")', 'with comm: raise ValueError("no such file: a.txt")'):
        for rank, (out, err) in enumerate(processes.lines(3, code.format(how=how))):
            if rank == 1:
                assert err.strip().endswith("ValueError: no such file: a.txt")
            else:
                assert out.startswith("1 rank 1 (") and "rank 1 failed: ValueError: no such file: a.txt" in out


def test_the_launcher_names_the_first_failed_rank_and_prints_its_traceback_last(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, skyphos as sky\n"
        "comm = sky.init(timeout=30)\ncomm.barrier()\n"
        "if comm.rank == 1:\n    comm.allreduce(np.ones(3))\n    raise ValueError('no such file')\n"
        "while True: comm.allreduce(np.ones(3))\n"
    )
    command = [sys.executable, "-m", "skyphos.cli", "run", "-n", "3", str(script)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("SKYPHOS_")}
    for _ in range(4):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
        *others, head, where, line, what, end = done.stderr.splitlines()
        assert sorted(one[:14] for one in others) == ["[0] PeerLost: ", "[2] PeerLost: "], done.stderr
        assert all("rank 1 failed: ValueError: no such file" in one for one in others)
        assert head == "[1] Traceback (most recent call last):" and "script.py" in where and "raise" in line
        assert what == "[1] ValueError: no such file" and done.returncode == 1
        assert end.startswith("skyphos: rank 1 on ") and "status 1 (ValueError: no such file)" in end
