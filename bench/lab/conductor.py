"""Conductor: starts one process per host, and sends them commands for each iteration of a contender.

One group of processes serves all contenders of a placement, each with its connections open, so that iterations of
different contenders are adjacent in time and see the same noise.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from .cluster import Cluster, Loopback
from .link import size_bytes
from .protocol import Failure, Job

_BENCH = Path(__file__).resolve().parent.parent
_START_S = 120.0
# Seconds between the message with the start time of a call and that time.
_NOTICE_S = 0.005

# MPICH in a cluster: every rank is a host of its own (no shared memory between them), and uses TCP over the link.
MPICH_IN_A_CLUSTER = {
    "MPIR_CVAR_NOLOCAL": "1",
    "UCX_TLS": "tcp,self",
    "FI_PROVIDER": "tcp",
}
# MPICH on one machine: after some calls it switches to an allreduce in which ranks busy-wait. With more ranks than
# cores that takes minutes for 64 MB instead of 0.1 s.
_MPICH_HERE = {"MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM": "mpir"}
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "SKYPHOS_THREADS": "1"}


class GroupFailed(RuntimeError):
    """A rank failed, ended or did not answer in time; the group cannot be used any more."""


@dataclass(frozen=True)
class Timing:
    """Times of one iteration: the longest of any rank; from the first start to the last end, and to the last start."""

    longest_s: float
    span_s: float
    skew_s: float


class Group:
    """The processes of one placement: a context manager that ends all of them."""

    def __init__(
        self, hosts: Cluster | Loopback, placement: Sequence[int], jobs: Sequence[Job], mpi: bool, log: Path
    ) -> None:
        self.hosts, self.placement, self.jobs, self.mpi, self.log = hosts, placement, jobs, mpi, log
        self.started: list[subprocess.Popen[bytes]] = []
        self.ranks: dict[int, Connection[Any, Any]] = {}
        self.pids: list[int] = []
        self.output: IO[bytes] | None = None

    def __enter__(self) -> Group:
        self.output = self.log.open("ab")
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            with contextlib.suppress(GroupFailed):
                self.request("close", limit_s=20.0)
            for process in self.started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10.0)
        self._end()

    def request(self, *word: Any, limit_s: float) -> list[Any]:
        """Send a command to all ranks and return their answers by rank."""
        self._send(dict.fromkeys(self.ranks, word))
        return self._answers(limit_s)

    def iterate(self, contender: str, limit_s: float, drain_s: float, check: bool = True) -> Timing:
        """Run one iteration of a contender, and check its answer."""
        self.request("prepare", contender, limit_s=limit_s)
        if drain_s:
            self.request("drain", limit_s=limit_s)
        start_s = time.monotonic() + max(drain_s, _NOTICE_S)
        answers = self.request("run", contender, start_s, check, limit_s=limit_s)
        for rank, (*_times, fault) in enumerate(answers):
            if fault is not None:
                raise GroupFailed(f"wrong answer on rank {rank}: {fault}")
        begun, ended, _ = zip(*answers, strict=True)
        return Timing(
            longest_s=max(end - begin for begin, end in zip(begun, ended, strict=True)),
            span_s=max(ended) - min(begun),
            skew_s=max(begun) - min(begun),
        )

    def _start(self) -> None:
        path = self.log.with_suffix(".socket")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen(len(self.placement))
            server.settimeout(0.2)
            self._spawn(str(path))
            deadline = time.monotonic() + _START_S
            while len(self.ranks) < len(self.placement):
                try:
                    line, _ = server.accept()
                except TimeoutError:
                    if time.monotonic() > deadline or any(p.poll() for p in self.started):
                        raise GroupFailed(f"the ranks did not start{self._tail()}") from None
                    continue
                connection: Connection[Any, Any] = Connection(line.detach())
                rank, pid = connection.recv()
                self.ranks[rank] = connection
                self.pids.append(pid)
        path.unlink()
        self.ranks = dict(sorted(self.ranks.items()))
        self._send({rank: self.jobs[rank] for rank in self.ranks})
        self._answers(_START_S)

    def _spawn(self, path: str) -> None:
        command = [sys.executable, "-m", "lab.rank", path]
        ranks = [self.hosts.command(host, [*command, str(rank)]) for rank, host in enumerate(self.placement)]
        environment = (
            os.environ | _ONE_THREAD | {"PYTHONPATH": _python_path(), "GLOO_SOCKET_IFNAME": self.hosts.interface}
        )
        if self.mpi:
            environment |= _MPICH_HERE
            if isinstance(self.hosts, Cluster):
                environment |= MPICH_IN_A_CLUSTER | {
                    name: self.hosts.interface for name in ("UCX_NET_DEVICES", "FI_TCP_IFACE")
                }
            ranks = [mpiexec_of(ranks)]
        for arguments in ranks:
            self.started.append(
                subprocess.Popen(
                    arguments,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=self.output,
                    stderr=self.output,
                    start_new_session=True,  # Ctrl-C must reach only the conductor, which ends the ranks
                )
            )

    def _send(self, words: dict[int, Any]) -> None:
        for rank, word in words.items():
            try:
                self.ranks[rank].send(word)
            except OSError:
                raise GroupFailed(f"rank {rank} ended{self._tail()}") from None

    def _answers(self, limit_s: float) -> list[Any]:
        deadline = time.monotonic() + limit_s
        waiting = {connection: rank for rank, connection in self.ranks.items()}
        found: dict[int, Any] = {}
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise GroupFailed(f"no answer in {limit_s:g} s from ranks {sorted(waiting.values())}")
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = waiting.pop(connection)
                try:
                    found[rank] = connection.recv()
                except (EOFError, OSError):
                    raise GroupFailed(f"rank {rank} ended{self._tail()}") from None
                if isinstance(found[rank], Failure):
                    raise GroupFailed(f"rank {rank}: {found[rank].text}")
        return [found[rank] for rank in self.ranks]

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-8:] if self.log.exists() else []
        return "".join(f"\n    {line}" for line in lines)

    def _end(self) -> None:
        for connection in self.ranks.values():
            connection.close()
        for process in self.started:
            if process.poll() is None:
                process.terminate()
        for pid in self.pids:
            if _is_rank(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self.started:
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self.output is not None:
            self.output.close()


def drain_seconds(burst: str, rate: float | None) -> float:
    """Seconds to keep the links busy before a call: twice the time that empties the bucket, and some for waking up."""
    return 0.0 if rate is None else 2 * size_bytes(burst) * 8 / rate + 0.003


def mpiexec() -> str | None:
    """MPICH's launcher: the one beside this Python, or the one on the path."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def mpiexec_of(ranks: Sequence[Sequence[str]]) -> list[str]:
    """One command that starts each of ``ranks`` as one MPI process, in this order."""
    launcher = mpiexec()
    if launcher is None:
        raise GroupFailed("there is no mpiexec: `make lab` installs MPICH")
    command = [launcher]
    for place, arguments in enumerate(ranks):
        command += [":"] * bool(place) + ["-n", "1", *arguments]
    return command


def _python_path() -> str:
    """PYTHONPATH for the ranks, beginning with this package."""
    return os.pathsep.join(filter(None, [str(_BENCH), os.environ.get("PYTHONPATH")]))


def _is_rank(pid: int) -> bool:
    """True if the process id still belongs to a rank: ids are reused."""
    try:
        return b"lab.rank" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
