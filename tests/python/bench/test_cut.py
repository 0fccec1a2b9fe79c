"""Hosts that vanish behind a cut link, and processes that are merely stopped, in a cluster of network namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))

from lab.cluster import Cluster, unavailable

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=f"no cluster here: {unavailable()}")

HOSTS, HEARTBEAT_S = 3, 2.0

PROGRAM = f"""
import sys, time, numpy as np, skyphos as sky
comm = sky.init(heartbeat={HEARTBEAT_S}, timeout=60)
def say(*words): print(*words, flush=True)
x = np.ones(200_000 if "bulk" in sys.argv else 10)
calls = 0
say("ready")
try:
    while True:
        y = comm.allreduce(x)
        assert (y == comm.size).all()
        calls += 1
        if calls == 3:
            say("running")
            if "idle" in sys.argv and comm.rank == 2:
                time.sleep(40)  # the others wait, and no frames are in flight
except sky.PeerLost as error:
    say("lost", time.time(), error.rank, error)
    if "shrink" in sys.argv:
        try:
            comm = comm.shrink()
            say("left", comm.size, comm.allreduce(np.ones(1))[0])
        except sky.PeerLost as error:
            say("out", error)
"""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(HOSTS, "250mbit", "128k") as made:
        yield made


def start(cluster: Cluster, how: str) -> list[subprocess.Popen[str]]:
    """One rank a host."""
    ranks = []
    for host in range(HOSTS):
        env = cluster.environment(host, HOSTS, 29555, "cut")
        command = cluster.command(host, [sys.executable, "-c", PROGRAM, *how.split()])
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    return ranks


def line(stream: IO[str] | None, word: str) -> str:
    """The next line, which must begin with ``word``."""
    assert stream is not None
    said = stream.readline()
    assert said.startswith(word), said
    return said


def end(ranks: list[subprocess.Popen[str]]) -> None:
    for rank in ranks:
        rank.kill()
        rank.communicate()


@pytest.mark.parametrize("how", ["bulk", "small", "idle"])
def test_a_host_behind_a_cut_link_is_lost_within_the_heartbeat(cluster: Cluster, how: str) -> None:
    """The other hosts lose it, with and without frames in flight; the host that is cut off loses them as well."""
    ranks = start(cluster, how)
    try:
        for rank in ranks:
            line(rank.stdout, "ready")
            line(rank.stdout, "running")
        cluster.cut(2)
        cut_s = time.time()
        for rank in ranks[:2]:
            words = line(rank.stdout, "lost").split(maxsplit=3)
            assert words[2] == "2" and float(words[1]) - cut_s <= HEARTBEAT_S + 1, words
            assert cluster.address(2) in words[3] and "allreduce" in words[3], words
        if how != "idle":
            assert line(ranks[2].stdout, "lost").split()[2] in ("0", "1")
    finally:
        end(ranks)


def test_a_stopped_process_is_not_lost(cluster: Cluster) -> None:
    """The kernel answers for a stopped process, with data waiting on both sides."""
    ranks = start(cluster, "bulk")
    try:
        for rank in ranks:
            line(rank.stdout, "ready")
            line(rank.stdout, "running")
        pid = ranks[2].pid  # `ip netns exec` becomes the program
        os.kill(pid, signal.SIGSTOP)
        time.sleep(3 * HEARTBEAT_S)  # by then a lost process would have been noticed
        assert all(rank.poll() is None for rank in ranks)
        os.kill(pid, signal.SIGCONT)
        cluster.cut(2)
        assert line(ranks[0].stdout, "lost").split()[2] == "2"
    finally:
        end(ranks)


def test_only_the_larger_part_of_a_group_continues(cluster: Cluster) -> None:
    """A host behind a cut link may still run: it must not go on alone, and the other two hosts do go on."""
    ranks = start(cluster, "bulk shrink")
    try:
        for rank in ranks:
            line(rank.stdout, "ready")
            line(rank.stdout, "running")
        cluster.cut(0)
        for rank in ranks[1:]:
            line(rank.stdout, "lost")
            assert line(rank.stdout, "left").split() == ["left", "2", "2.0"]
        line(ranks[0].stdout, "lost")
        assert "too few" in line(ranks[0].stdout, "out")
    finally:
        end(ranks)
