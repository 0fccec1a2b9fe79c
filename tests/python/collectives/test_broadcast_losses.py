"""Broadcasts in which ranks are killed and hosts cut off: every survivor gets the object."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Processes

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))

from lab.cluster import Cluster, unavailable

HEARTBEAT_S = 2.0

# Prints what a rank received; `{how}`: further arguments of `broadcast`.
BODY = """
root = {root}
x = {{"a": np.arange(3_000_000.0), "b": "text"}}
def right(y):
    return "right" if y["b"] == "text" and y["a"].tobytes() == x["a"].tobytes() else "wrong"
comm.barrier()
say("begins")
try:
    y = comm.broadcast(x if comm.rank == root else None, root, {how})
    say("whole", right(y))
except sky.PeerLost as error:
    say("lost", error.rank, "nothing" if error.result is None else right(error.result), error)
"""


def next_words(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


@pytest.mark.parametrize("how", ["algorithm='chain'", "algorithm='scatter_allgather'", "shared_memory=False"])
@pytest.mark.parametrize("after_s", [0.0, 0.002, 0.01, 0.03])
def test_a_broadcast_completes_without_a_killed_rank(processes: Processes, how: str, after_s: float) -> None:
    """The rank may be killed before, during or after its part of the broadcast."""
    options = how if how.startswith("shared") else ""
    group = processes.start(5, BODY.format(root=1, how="" if options else how), options=options)
    for process in group:
        assert next_words(process) == ["begins"]
    time.sleep(after_s)  # the moment of the loss is what the test varies
    group[3].kill()
    for rank in (0, 1, 2, 4):
        said = next_words(group[rank])
        assert said == ["whole", "right"] or said[:3] == ["lost", "3", "right"], said
    for rank in (0, 1, 2, 4):
        assert group[rank].wait(20) == 0


def after_a_kill(processes: Processes, size: int, lost: int, code: str) -> None:
    """Kill rank ``lost``, then run ``code`` on the other ranks, which must print "fine" and exit with 0."""
    group = processes.start(size, 'say("ready"); input()\n' + code)
    for process in group:
        assert next_words(process) == ["ready"]
    group[lost].kill()
    others = [process for rank, process in enumerate(group) if rank != lost]
    for process in others:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in others:
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (0, "fine\n", "")


def test_survivors_get_the_object(processes: Processes) -> None:
    """Survivors may also broadcast again, in this group and in the shrunk one."""
    code = """
for root in (0, 1, 3):
    x = {"a": np.full(100_000, root)}
    y = comm.broadcast(x if comm.rank == root else None, root, on_loss="continue")
    assert (y["a"] == root).all()
    z, how = comm.broadcast(np.full(7, root), root, on_loss="continue", explain=True)
    assert (z == root).all()
try:
    comm.allreduce(np.ones(2))
except sky.PeerLost as error:
    assert error.rank == 2
left = comm.shrink()
assert (left.size, left.broadcast("words", 1)) == (3, "words")
say("fine")
"""
    after_a_kill(processes, 4, 2, code)


@pytest.mark.parametrize("root", [0, 2])
def test_a_root_that_is_lost_early_is_an_error(processes: Processes, root: int) -> None:
    code = f"""
try:
    comm.broadcast(None, {root})
except sky.PeerLost as error:
    assert (error.rank, error.result) == ({root}, None)
    say("fine")
"""
    after_a_kill(processes, 3, root, code)


def test_ranks_without_acknowledgement_are_named(processes: Processes) -> None:
    code = """
import time
comm.barrier()
if comm.rank == 2:
    time.sleep(3)  # alive, and later than ack_timeout, which is under test
try:
    comm.broadcast(np.arange(9.0), 0, ack_timeout=0.5)
    say("no error")
except sky.Timeout as error:
    say(error.missing, error)
except sky.SkyphosError as error:
    say("other", error)
"""
    said = processes.lines(3, code)
    assert said[0][0].startswith("(2,)") and "broadcast" in said[0][0], said
    # All ranks raise an error.
    assert all("no error" not in out and out for out, _ in said), said


HOSTS, EACH = 4, 2
PROGRAM = (
    f"""
import sys, numpy as np, skyphos as sky
comm = sky.init(heartbeat={HEARTBEAT_S}, timeout=60)
def say(*words): print(*words, flush=True)
"""
    + BODY.format(root=0, how="algorithm=sys.argv[1]")
    + "    say(error.address)\n"
)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(HOSTS, "250mbit", "128k") as made:
        yield made


def on_cluster(cluster: Cluster, algorithm: str) -> list[subprocess.Popen[str]]:
    """Two ranks a host; they have begun a broadcast of 24 MB, which takes 0.8 s at least."""
    size, ranks = HOSTS * EACH, []
    for rank in range(size):
        env = cluster.environment(rank, size, 29556, "broadcast")
        command = cluster.command(rank // EACH, [sys.executable, "-c", PROGRAM, algorithm])
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    return ranks


@pytest.mark.skipif(unavailable() is not None, reason=f"no cluster here: {unavailable()}")
@pytest.mark.parametrize("algorithm", ["chain", "binomial"])
@pytest.mark.parametrize("what", ["leader", "mate", "host", "cut"])
def test_a_broadcast_between_hosts_is_healed(cluster: Cluster, algorithm: str, what: str) -> None:
    """Host 1, which forwards the message, loses the rank that receives for it, its other rank, both, or its link."""
    ranks = on_cluster(cluster, algorithm)
    lost = {"leader": [2], "mate": [3], "host": [2, 3], "cut": [2, 3]}[what]
    try:
        for rank in ranks:
            assert next_words(rank) == ["begins"]
        begun_s = time.monotonic()
        time.sleep(0.3)  # the moment of the loss: at the cluster's rate a third has been sent
        if what == "cut":
            cluster.cut(1)
        else:
            for rank in lost:
                ranks[rank].send_signal(signal.SIGKILL)
        for rank in set(range(HOSTS * EACH)) - set(lost):
            said = next_words(ranks[rank])
            assert said[0] == "lost" and int(said[1]) in lost and said[2] == "right", (rank, said)
            assert cluster.address(1) in " ".join(next_words(ranks[rank]))
        took_s = time.monotonic() - begun_s
        # The message may be sent a second time; before that, a cut link must be noticed.
        assert took_s < 2 * 0.8 + 3.0 + (HEARTBEAT_S if what == "cut" else 0), took_s
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
