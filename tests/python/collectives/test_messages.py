"""Messages from one rank to another: what is received equals what was sent, and errors reach the ranks concerned."""

from __future__ import annotations

import threading
import time
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import skyphos as sky
from conftest import Processes, on_all
from mpi_support import needs_mpi, run
from skyphos.errors import BadInput, Mismatch, PeerLost, SkyphosError, Timeout


class Label(bytes):
    """A user's subclass of ``bytes``: it is sent as a pickle, ``bytes`` itself is not."""


def with_owned_range(vector: sky.SparseVector) -> sky.SparseVector:
    (part,) = sky.local(1).run(lambda comm: comm.reduce_scatter(vector))
    assert part.owned is not None
    return part  # type: ignore[no-any-return]


SENT: list[Any] = [
    3.5,
    -7,
    True,
    None,
    "text, ζ",
    b"bytes",
    [1.0, 2.0],
    [1, "a", None],
    {"a": np.arange(3), "b": {1, 2}},
    (1, 2),
    np.float32(2.5),
    np.bool_(True),
    np.str_("word"),
    np.zeros(0),
    np.array(4.0),
    np.array([True, False]),
    np.arange(6).reshape(2, 3)[:, ::2],
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(4, dtype=">i4"),
    np.array([1.5, 2.5], ml_dtypes.bfloat16),
    np.ma.array([1.0, 2.0], mask=[True, False]),
    np.arange(300_000.0),
    sky.SparseVector([3, 5], np.array([1.0, 2.0]), n=9),
    sky.SparseVector.from_dense(np.array([0.0, 1.0, 2.0])),
    sky.SparseVector([3], np.array([1.5], ml_dtypes.bfloat16), n=9),
    with_owned_range(sky.SparseVector([3, 5], np.array([1.0, 2.0]), n=9)),
    np.bytes_(b"a\0b"),
    Label(b"bytes"),
    ml_dtypes.bfloat16(2.5),
    ml_dtypes.float8_e5m2(2.5),
    np.array([1.5, 2.0], ml_dtypes.float8_e5m2),
    np.array([1.5, 2.0], ml_dtypes.float8_e4m3fn),
    np.array([1, -2], ml_dtypes.int4),
    np.array([1.5], np.longdouble),
    np.array(["2026-11-28"], np.datetime64),
    np.array([(1, 2.0)], "i4,f8"),
    sp.csr_array(np.eye(3)),
    sp.coo_matrix(np.eye(2)),
]


def same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and has_same_values(a, b)


def has_same_values(a: Any, b: Any) -> bool:
    if isinstance(a, np.ma.MaskedArray):
        return bool(np.array_equal(a.mask, b.mask)) and np.array_equal(a.compressed(), b.compressed())
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, sky.SparseVector):
        alike = (a.n, a.dtype, a.owned) == (b.n, b.dtype, b.owned)
        return alike and np.array_equal(a.to_dense(), b.to_dense())
    if sp.issparse(a):
        return bool((a != b).nnz == 0)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return bool(a == b)


def test_received_objects_equal_sent_ones() -> None:
    def body(comm: sky.Comm) -> None:
        for tag, x in enumerate(SENT):
            if comm.rank == 0:
                comm.send(x, dest=1, tag=tag)
                comm.isend(x, 1, tag).wait()
                assert comm.sendrecv(x, 1, tag, source=1) == tag
            else:
                got = [comm.recv(source=0, tag=tag), comm.irecv(0, tag).wait(), comm.sendrecv(tag, 0, source=0)]
            shared = comm.broadcast(x if comm.rank == 0 else None)
            if comm.rank:
                assert all(same(x, one) for one in [*got, shared]), (x, got, shared)
                assert not isinstance(x, np.ndarray) or got[0].flags.writeable

    on_all(2, body)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["<f8", ">f8", "<i2", "|b1", "<c16", "|u1"]),
    shape=st.lists(st.integers(0, 5), max_size=3),
    layout=st.sampled_from(["c", "f", "strided", "read-only"]),
    room=st.sampled_from(["none", "c", "f", "strided", "other type", "other shape", "read-only"]),
)
def test_arrays_of_every_layout_into_arrays_of_every_layout(
    kind: str, shape: list[int], layout: str, room: str
) -> None:
    """``room`` is the layout of the array that receives."""
    x = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape).astype(kind)
    x = laid_out(x, layout)
    before = x.copy()
    out = None if room == "none" else laid_out(np.zeros_like(x, order="C"), room)

    def body(comm: sky.Comm) -> Any:
        if comm.rank == 0:
            comm.send(x, 1)
            return None
        if room == "read-only":
            with pytest.raises(BadInput, match="out must be writable"):
                comm.recv(0, out=out)
            return comm.recv(0)
        if room in ("other type", "other shape"):
            with pytest.raises(Mismatch, match=r"rank 0 sent .* rank 1 receives it in an array of"):
                comm.recv(0, out=out)
            return before
        got = comm.recv(0, out=out)
        assert out is None or got is out
        return got

    got = on_all(2, body)[1]
    assert got.dtype == x.dtype and got.shape == x.shape and np.array_equal(got, before)
    assert np.array_equal(x, before)


def laid_out(x: npt.NDArray[Any], layout: str) -> npt.NDArray[Any]:
    match layout:
        case "f":
            return x.copy(order="F")
        case "strided" if x.ndim:
            wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)[..., ::2]
            wide[...] = x
            return wide
        case "read-only":
            x = x.copy()
            x.flags.writeable = False
            return x
        case "other type":
            return np.zeros(x.shape, np.float16)
        case "other shape":
            return np.zeros((*x.shape, 2), x.dtype)
    return x


def test_any_source_and_any_tag() -> None:
    def body(comm: sky.Comm) -> Any:
        if comm.rank > 0:
            comm.send(comm.rank * 10, 0, tag=comm.rank)
            return comm.recv(source=0)
        got = [comm.recv(return_status=True) for _ in range(comm.size - 1)]
        for x, status in got:
            assert (status.source, status.tag) == (x // 10, x // 10) and status.nbytes > 0
            comm.send("thanks", status.source)
        return sorted(x for x, _ in got)

    assert on_all(4, body) == [[10, 20, 30], "thanks", "thanks", "thanks"]


def test_probe_and_iprobe() -> None:
    def body(comm: sky.Comm) -> None:
        if comm.rank == 0:
            comm.send("one", 1, tag=1)
            comm.send("two", 1, tag=2)
            assert comm.recv() == "done"
            return
        assert comm.probe(tag=2).tag == 2
        seen = comm.probe()
        assert (seen.source, seen.tag) == (0, 1)
        assert comm.iprobe(tag=3) is None
        assert comm.iprobe(0, 2) == sky.Status(0, 2, comm.probe(0, 2).nbytes)
        assert (comm.recv(tag=2), comm.recv(tag=1), comm.iprobe()) == ("two", "one", None)
        comm.send("done", 0)

    on_all(2, body)


def test_large_messages_in_both_directions_at_once() -> None:
    def body(comm: sky.Comm) -> None:
        x = np.full(3_000_000, float(comm.rank))
        other = 1 - comm.rank
        out = np.empty_like(x)
        assert comm.sendrecv(x, other, source=other, out=out) is out and (out == other).all()
        work = comm.isend(x, comm.rank)  # to itself
        assert (comm.recv(comm.rank) == comm.rank).all()
        work.wait()

    on_all(2, body)


@pytest.mark.parametrize("length", [10, 3_000_000])
def test_sent_and_received_arrays_may_share_memory(length: int) -> None:
    def body(comm: sky.Comm) -> None:
        other = 1 - comm.rank
        x = np.arange(length + 1.0) + comm.rank
        expected = np.arange(length + 1.0) + other
        out = x.copy()
        assert comm.sendrecv(out, other, source=other, out=out) is out and (out == expected).all()
        out = x.copy()
        comm.sendrecv({"part": out[:-1]}, other, source=other, sendtag=1)
        got = comm.sendrecv(out[:-1], other, source=other, out=out[1:])
        assert (got == expected[:-1]).all() and got.base is out

    on_all(2, body)


def test_a_sendrecv_that_cannot_receive_has_sent_its_object() -> None:
    def body(comm: sky.Comm) -> None:
        x = np.ones(5_000_000)  # more than is sent before the receiver has called recv
        if comm.rank == 0:
            with pytest.raises(Mismatch, match="rank 1 sent int64"):
                comm.sendrecv(x, 1, source=1, out=np.empty(3))
            x[:] = 2.0
        else:
            comm.send(np.arange(3), 0)
            assert (comm.recv(0) == 1.0).all()
        comm.barrier()

    on_all(2, body)


BAD: list[tuple[Any, str]] = [
    (lambda comm: comm.send(1, 2), "dest=2 is not a rank of a group of 2: ranks are 0 to 1"),
    (lambda comm: comm.send(1, -1), "dest=-1 is not a rank"),
    (lambda comm: comm.send(1, "1"), "dest must be a whole number, not '1'"),
    (lambda comm: comm.send(1, 0.5), "dest must be a whole number, not 0.5"),
    (lambda comm: comm.send(1, 0, -3), r"tag must be from 0 to 2147483647, not -3"),
    (lambda comm: comm.send(1, 0, 2**31), "tag must be from 0 to 2147483647"),
    (lambda comm: comm.isend(1, 0, True), "tag must be a whole number, not True"),
    (lambda comm: comm.recv(-1), "source=-1 is not a rank of a group of 2: ranks are 0 to 1; source=None takes any"),
    (lambda comm: comm.recv(tag=-1), "tag must be from 0 to 2147483647, not -1; tag=None takes any"),
    (lambda comm: comm.irecv(5), "source=5 is not a rank"),
    (lambda comm: comm.probe("a"), "source must be a whole number"),
    (lambda comm: comm.iprobe(9), "source=9 is not a rank"),
    (lambda comm: comm.recv(out=[1.0]), "out must be a NumPy array, not list"),
    (lambda comm: comm.recv(out=np.ma.zeros(3)), "out must be a NumPy array, not a masked array"),
    (lambda comm: comm.recv(return_status="no"), "return_status must be True or False, not 'no'"),
    (lambda comm: comm.sendrecv(1, 0, out=3), "out must be a NumPy array, not int"),
]


@pytest.mark.parametrize("k", range(len(BAD)))
def test_bad_arguments_are_errors_of_this_rank_alone(k: int) -> None:
    call, text = BAD[k]

    def body(comm: sky.Comm) -> None:
        if comm.rank == 0:
            with pytest.raises(BadInput, match=text):
                call(comm)
            assert comm.iprobe(0) is None, "nothing was sent"
        comm.barrier()

    on_all(2, body)


class Unsendable:
    def __reduce__(self) -> Any:
        raise ValueError("a file cannot be sent")


def test_a_receiver_raises_for_an_object_that_cannot_be_sent() -> None:
    def body(comm: sky.Comm) -> Any:
        if comm.rank == 0:
            with pytest.raises(BadInput, match="Unsendable cannot be sent, for it cannot be pickled: a file"):
                comm.send(Unsendable(), 1, tag=4)
            comm.send("next", 1, tag=4)
            return None
        with pytest.raises(BadInput, match="rank 0: Unsendable cannot be sent, for it cannot be pickled: a file"):
            comm.recv(0, 4)
        return comm.recv(0)

    assert on_all(2, body) == [None, "next"]


class Unreadable:
    def __reduce__(self) -> Any:
        return (int, ("no number",))


def test_an_unreadable_object_raises_on_the_receiver() -> None:
    def body(comm: sky.Comm) -> Any:
        if comm.rank == 0:
            return comm.send(Unreadable(), 1) or comm.recv()
        with pytest.raises(BadInput, match="an object was received that cannot be read here"):
            comm.recv()
        return comm.send("still here", 0)

    assert on_all(2, body) == ["still here", None]


def test_threads_send_and_receive_at_once() -> None:
    def body(comm: sky.Comm) -> list[Any]:
        got: list[Any] = [None] * 8

        def exchange(k: int) -> None:
            comm.send((comm.rank, k), 1 - comm.rank, tag=k)
            got[k] = comm.recv(tag=k)

        threads = [threading.Thread(target=exchange, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return got

    assert on_all(2, body) == [[(1, k) for k in range(8)], [(0, k) for k in range(8)]]


def test_a_time_out_names_the_missing_rank_and_the_group_is_usable() -> None:
    def body(comm: sky.Comm) -> Any:
        if comm.rank == 0:
            with pytest.raises(
                Timeout, match=r"in recv\(source=1, tag=any\): rank 1 has sent no such message"
            ) as error:
                comm.recv(1)
            assert error.value.missing == (1,)
            comm.send("go", 1)
            return comm.allreduce(1) + comm.recv(1)
        while comm.iprobe(0) is None:
            time.sleep(0.01)  # polls, because a blocking receive would time out when rank 0 does
        assert comm.recv() == "go"
        total = comm.allreduce(1)
        comm.send(5, 0)
        return total

    assert on_all(2, body, timeout=1.5) == [7, 2]


MESSAGES = """
other = (comm.rank + 1) % comm.size
before = (comm.rank - 1) % comm.size
work = comm.irecv(before, tag=1)
comm.send(np.arange(5) * comm.rank, other, tag=1)
say(work.wait().sum() == 10 * before)
big = np.full(2_000_000, float(comm.rank))
say((comm.sendrecv(big, other, source=before) == before).all())
comm.send({"from": comm.rank}, other)
say(comm.recv(before) == {"from": before})
comm.barrier()
if comm.rank == 0:
    say(sorted(comm.recv() for _ in range(comm.size - 1)) == list(range(1, comm.size)))
else:
    comm.send(comm.rank, 0)
    say(True)
"""


@pytest.mark.parametrize("shared_memory", ["1", "0"])
def test_between_processes(processes: Processes, shared_memory: str) -> None:
    each = dict.fromkeys(range(3), shared_memory)
    for out, err in processes.lines(3, MESSAGES, SKYPHOS_SHARED_MEMORY=each):
        assert out.split() == ["True"] * 4, err


@needs_mpi
def test_over_mpi() -> None:
    program = (
        "import sys, numpy as np, skyphos as sky\n"
        "comm = sky.init()\n"
        "def say(word): sys.stdout.write('True\\n' if word else 'False\\n'); sys.stdout.flush()\n"
    )
    done = run(3, program + MESSAGES)
    assert done.returncode == 0 and done.stdout.split() == ["True"] * 12, done.stderr


def test_replicas_receive_the_same_and_must_name_the_sender(processes: Processes) -> None:
    code = MESSAGES.split("comm.barrier()", maxsplit=1)[0] + (
        "for call in (comm.recv, comm.probe, comm.iprobe):\n"
        "    try:\n"
        "        call()\n"
        "    except sky.SkyphosError as error:\n"
        "        say('name the sender' in str(error))\n"
        "comm.barrier()\n"
    )
    for out, err in processes.lines(4, code, options="replication=2, share_hosts=True"):
        assert out.split() == ["True"] * 6, err


KILLED = """
import os, signal
if comm.rank == 0:
    comm.send("last words", 1)
    comm.recv(1), comm.recv(2)
    os.kill(os.getpid(), signal.SIGKILL)
if comm.rank == 1:
    comm.probe(0)
comm.send("ready", 0)
for call in (lambda: comm.recv(0, 7), lambda: comm.recv(tag=7), lambda: comm.send(np.zeros(2_000_000), 0),
             lambda: comm.probe(0, 9)):
    try:
        say(call())
    except sky.PeerLost as error:
        say("lost", error.rank)
if comm.rank == 1:
    say(comm.recv(0))
    comm.send("still here", 2)
else:
    say(comm.recv(1))
"""


def test_a_killed_peer_raises_on_ranks_that_need_it(processes: Processes) -> None:
    said = processes.lines(3, KILLED)
    assert said[1][0].splitlines() == ["lost 0"] * 4 + ["last words"], said[1]
    assert said[2][0].splitlines() == ["lost 0"] * 4 + ["still here"], said[2]


# Rank 2 dies before rank 0 sends to it, while rank 0 waits for rank 1, or after rank 1 has answered.
SENDS_TO_THE_LOST = """
import os, signal, time
when, big = sys.argv[1] if len(sys.argv) > 1 else os.environ["WHEN"], np.ones(3_000_000)
if comm.rank == 2:
    if when == "while":
        comm.probe(0)
    if when == "after":
        comm.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)
if comm.rank == 1:
    if when != "while":
        comm.send("from 1", 0)
    if when == "after":
        comm.send("go", 2)
    comm.recv(0)
    if when == "while":
        comm.send("from 1", 0)
else:
    if when == "before":
        try:
            comm.recv(2)
        except sky.PeerLost:
            pass
        comm.probe(1)
    started = time.monotonic()
    try:
        comm.sendrecv(big, 2, source=1)
    except sky.PeerLost as error:
        say(error.rank, time.monotonic() - started < 10)
        comm.send("go on", 1)
        say(error.result or comm.recv(1))
"""


@pytest.mark.parametrize("shared_memory", ["1", "0"])
@pytest.mark.parametrize("when", ["before", "while", "after"])
def test_a_sendrecv_to_a_lost_rank_raises_and_loses_no_message(
    processes: Processes, when: str, shared_memory: str
) -> None:
    each, whens = dict.fromkeys(range(3), shared_memory), dict.fromkeys(range(3), when)
    (out, err), *_ = processes.lines(3, SENDS_TO_THE_LOST, SKYPHOS_SHARED_MEMORY=each, WHEN=whens)
    assert out.splitlines() == ["2 True", "from 1"], err


INTERRUPTED = """
import os, signal, threading
tag3 = 3
if comm.rank == 0:
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    x = np.zeros(3_000_000)
    for call in (lambda: comm.recv(1), lambda: comm.send(x, 1, tag=1), lambda: comm.sendrecv(x, 1, tag3, 1, tag3)):
        try:
            call()
        except KeyboardInterrupt:
            say("interrupted")
            x[:] = 1.0
            threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    comm.send("go", 1, tag=2)
    say(comm.recv(1), comm.allreduce(1))
else:
    say(comm.recv(0, 2))
    for tag in (1, tag3):
        try:
            say(comm.recv(0, tag))
        except sky.SkyphosError as error:
            say(error)
    comm.send("late", 0)
    say(comm.allreduce(1))
"""


@pytest.mark.parametrize("shared_memory", ["1", "0"])
def test_an_interrupted_send_or_receive_affects_only_its_message(processes: Processes, shared_memory: str) -> None:
    each = dict.fromkeys(range(2), shared_memory)
    (zero, err), (one, err_one) = processes.lines(2, INTERRUPTED, SKYPHOS_SHARED_MEMORY=each)
    assert zero.splitlines() == ["interrupted", "interrupted", "interrupted", "late 2"], err
    told = "rank 0 left the call: interrupted"
    assert one.splitlines() == ["go", told, told, "2"], err_one


def test_pickles_are_refused_between_hosts_that_have_proved_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Distrustful:
        def __init__(self, native: Any) -> None:
            self._native = native

        trusted = False

        def __getattr__(self, name: str) -> Any:
            return getattr(self._native, name)

    (comm,) = sky.local(1)
    with comm:
        comm.send({1, 2}, 0)
        native = comm._native
        for name in ("send", "fail_send", "recv"):
            there = getattr(sky._skyphos, name)
            monkeypatch.setattr(sky._skyphos, name, lambda _, *rest, there=there: there(native, *rest))
        comm._native = Distrustful(native)  # type: ignore[assignment]
        with pytest.raises(BadInput, match="received a pickle, which runs code, in a group without a token"):
            comm.recv()
        with pytest.raises(BadInput, match="set would be sent as a pickle, which runs code where it is read"):
            comm.send({1, 2}, 0)
        with pytest.raises(BadInput, match="set would be sent as a pickle"):
            comm.recv()
        comm.send([1.0, 2.0], 0)
        assert comm.recv() == [1.0, 2.0]


def test_a_closed_group_neither_sends_nor_receives() -> None:
    (comm,) = sky.local(1)
    comm.close()
    for call in (lambda: comm.send(1, 0), comm.recv, comm.probe, comm.iprobe):
        with pytest.raises(SkyphosError, match="this Comm is closed"):
            call()


def test_waiting_for_a_message_of_a_rank_that_has_left_raises() -> None:
    """It raises at once, although no earlier call has checked that rank."""
    gone = threading.Event()

    def body(comm: sky.Comm) -> None:
        if comm.rank == 0:
            comm.close()
            gone.set()
            return
        gone.wait(30)
        # iprobe does not raise for a rank that has left in order, so a loop that takes all messages just ends.
        assert comm.iprobe() is None and comm.iprobe(0) is None
        calls = (lambda: comm.send(1, 0), lambda: comm.recv(0), comm.probe)
        for call in calls:
            with pytest.raises(PeerLost, match="closed its Comm"):
                call()

    on_all(2, body)


def test_messages_of_a_rank_that_has_left_are_not_lost() -> None:
    def body(comm: sky.Comm) -> Any:
        with comm:
            if comm.rank == 0:
                return comm.send("bye", 1)
            with pytest.raises(PeerLost, match=r"closed its Comm; this rank was in recv\(source=0, tag=3\)"):
                comm.recv(0, tag=3)
            return comm.recv()

    assert on_all(2, body) == [None, "bye"]
