"""Groups with replicas: processes that are killed or stopped, data that differ, and settings."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import skyphos as sky
from conftest import Processes
from skyphos.errors import BadInput, SkyphosError

TWICE = "replication=2, share_hosts=True"

#: Each process makes ``calls`` reductions, and checks each result.
LOOP = """
calls = 400
mine = np.arange(comm.rank, 40_000, comm.size // 2 + 1)
plan = comm.configure(mine, np.arange(0, 40_000, 3), n=40_000, missing="identity")
values = np.random.default_rng(comm.rank).random(len(mine))
want = plan.reduce(values)
say("ready", comm.rank, comm.size, comm.replica, comm.replication)
try:
    for call in range(calls):
        got = plan.reduce(values)
        assert got.tobytes() == want.tobytes(), call
        total = comm.allreduce(np.full(3, comm.rank))
        assert (total == sum(range(comm.size))).all()
        if call == 20:
            say("running")
    say("done", [one.process for one in comm.health() if one.lost == "ended"])
except sky.PeerLost as error:
    say("lost", error.rank, error)
"""


def on_processes(size: int, replication: int, body: Callable[[sky.Comm], Any]) -> list[Any]:
    def run(comm: sky.Comm) -> Any:
        with comm:
            return body(comm)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, sky.local(size, replication=replication, timeout=30)))


def next_words(process: Any) -> list[str]:
    return process.stdout.readline().split()


def test_ranks_and_replicas() -> None:
    def body(comm: sky.Comm) -> tuple[int, ...]:
        assert not comm.adapts and (comm.size, comm.replication) == (3, 2)
        assert "replica" in repr(comm)
        one = comm.health()[comm.rank + 3 * comm.replica]
        assert one.alive and (one.rank, one.replica) == (comm.rank, comm.replica)
        return comm.rank, comm.replica, int(comm.allreduce(np.array([comm.rank + 1]))[0])

    got = on_processes(7, 2, body)
    assert got == [(rank % 3, rank // 3, 6) for rank in range(7)], "the seventh stands by for rank 0"


def test_a_killed_replica_does_not_disturb_the_calls(processes: Processes) -> None:
    group = processes.start(8, LOOP, options=TWICE)
    said = [next_words(process) for process in group]
    assert said == [["ready", str(k % 4), "4", str(k // 4), "2"] for k in range(8)]
    assert [next_words(process) for process in group] == [["running"]] * 8
    for killed in (1, 6, 3):
        group[killed].send_signal(signal.SIGKILL)
    for k in (0, 2, 4, 5, 7):
        out, err = group[k].communicate(timeout=60)
        assert out.split() == ["done", "[1,", "3,", "6]"], (k, out, err)


def test_a_rank_whose_last_replica_is_killed_is_named(processes: Processes) -> None:
    group = processes.start(4, LOOP.replace("calls = 400", "calls = 10**9"), options=TWICE)
    for _ in range(2):
        assert all(next_words(process) for process in group)
    start = time.monotonic()
    for killed in (1, 3):
        group[killed].send_signal(signal.SIGKILL)
    for k in (0, 2):
        out, err = group[k].communicate(timeout=30)
        assert out.startswith("lost 1 ") and "process 1" in out and "process 3" in out, (out, err)
    assert time.monotonic() - start < 10


def test_a_stopped_replica_does_not_delay_the_calls(processes: Processes) -> None:
    """The stopped replica is not declared dead: when it continues, it gets every result."""
    group = processes.start(4, LOOP, options=TWICE)
    for _ in range(2):
        assert all(next_words(process) for process in group)
    group[3].send_signal(signal.SIGSTOP)
    for k in (0, 1, 2):
        out = next_words(group[k])
        assert out == ["done", "[]"], out
    group[3].send_signal(signal.SIGCONT)
    assert next_words(group[3])[0] == "done"


def test_replicas_with_other_data_are_found() -> None:
    def body(comm: sky.Comm) -> str:
        x = np.full(30_000, 1.0 + (comm.rank == 1 and comm.replica == 1))
        with pytest.raises(SkyphosError) as raised:
            for _ in range(20):
                comm.allreduce(x)
        with suppress(SkyphosError):
            comm.close()  # which may find another chunk that differs
        return str(raised.value)

    for text in on_processes(4, 2, body):
        assert "processes" in text and "same data" in text, text


@pytest.mark.parametrize("size", [2, 4])
def test_other_data_in_the_last_call_is_found_when_the_group_closes(size: int) -> None:
    def body(comm: sky.Comm) -> tuple[int, str]:
        rank = comm.rank
        try:
            with comm:
                comm.allreduce(np.array([float(rank == 0 and comm.replica == 1)]))
        except SkyphosError as error:
            return rank, str(error)
        return rank, ""

    texts = on_processes(size, 2, body)
    # Processes of other ranks may have closed before the loss reaches them.
    assert all(text for rank, text in texts if rank == 0), texts
    assert any(f"processes 0 and {size // 2}, put different data into call" in text for _, text in texts), texts


def test_an_error_in_a_group_is_not_hidden_by_errors_of_closing_it() -> None:
    def body(comm: sky.Comm) -> None:
        # If the sibling's checksum has arrived by then, the call itself raises.
        with pytest.raises(ZeroDivisionError), comm:
            with suppress(SkyphosError):
                comm.allreduce(np.array([float(comm.replica)]))
            raise ZeroDivisionError

    on_processes(2, 2, body)


def test_invalid_replication(processes: Processes) -> None:
    for replication in (0, 3, True, 1.5, "2"):
        with pytest.raises(BadInput, match="replication"):
            sky.local(2, replication=replication)  # type: ignore[arg-type]
    code = """
try:
    sky.init(replication=2)
except sky.BadInput as error:
    say(error)
"""
    for out, err in processes.lines(4, code, options=None):
        assert "replicas of rank 0" in out and "at most 2 processes" in out, (out, err)


def test_the_profile_of_process_0_counts_and_its_errors_reach_all(processes: Processes) -> None:
    code = """
rank = int(os.environ["SKYPHOS_RANK"])
try:
    with sky.init(replication=2, share_hosts=True, profile=profile_of(rank)) as comm:
        say(comm.profile.rate)
except sky.BadInput as error:
    say(error)
"""
    profiles = "import os\nfrom skyphos.planning import Profile\n"
    profiles += "def profile_of(rank): return Profile.network(1e7 * (5 - rank))\n"
    for out, err in processes.lines(4, profiles + code, options=None):
        assert out == "50000000.0\n", (out, err)
    nowhere = "import os\ndef profile_of(rank): return None if rank else '/nowhere'\n"
    for out, err in processes.lines(4, nowhere + code, options=None):
        assert "/nowhere" in out, (out, err)


#: Sums of large arrays: many times more bytes than the other processes buffer for a stopped one.
LARGE = """
from pathlib import Path

def peak_mb():  # since the program started: getrusage also counts the time before
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) >> 10

mine = np.full(1_000_000, comm.rank + 1.0)
say("ready")
try:
    for call in range(120):
        assert (comm.allreduce(mine) == 3.0).all()
    say("done", peak_mb())
except sky.PeerLost as error:
    say("lost", error)
"""


def test_the_calls_continue_without_a_stopped_replica(processes: Processes) -> None:
    group = processes.start(4, LARGE, options=TWICE)
    assert [next_words(process) for process in group] == [["ready"]] * 4
    group[3].send_signal(signal.SIGSTOP)
    for k in (0, 1, 2):
        out, err = group[k].communicate(timeout=100)
        assert not err and out.startswith("done"), (k, out, err)
        assert int(out.split()[-1]) < 1000, "MB"
    group[3].send_signal(signal.SIGCONT)
    out, _ = group[3].communicate(timeout=60)
    assert out.startswith("lost"), out


def test_ranks_must_agree_on_replication(processes: Processes) -> None:
    code = """
import os
try:
    sky.init(timeout=20, replication=int(os.environ["EACH"]), share_hosts=True)
except sky.Mismatch as error:
    say(error)
"""
    each = {"EACH": {rank: "4" if rank == 0 else "2" for rank in range(4)}}
    for out, err in processes.lines(4, code, options=None, **each):
        assert not err and "init(replication=4, share_hosts=True)" in out and "init(replication=2" in out, (out, err)


def test_sparse_allreduces_of_all_kinds_again_and_again() -> None:
    def body(comm: sky.Comm) -> None:
        for call in range(30):
            x = sky.SparseVector([3, 500 + comm.rank], np.array([1.0, 2.0]), n=100_000)
            total = comm.allreduce(x, explain=True)[0] if call % 3 else comm.allreduce(x, expected_nnz=3)
            assert total.indices.tolist() == [3, 500, 501], call

    on_processes(4, 2, body)
