"""Launcher over ssh: starts the ranks of a group on the machines of a host file.

On each host ssh starts one *agent*, ``python -m skyphos.launch.hosts``, which starts that host's ranks as
:func:`.launch.run_local` does. Launcher and agent exchange lines of JSON over ssh's stdin and stdout. So neither the
token nor the user's arguments are on a command line, where other users could read them and a shell would expand them:

- the launcher sends the first host's agent its job; that agent opens the socket for rank 0 and answers with its
  address, and only then do the other agents get their jobs;
- an agent reports that it has started its ranks, and the exit of each; the launcher decides what follows for the
  others;
- the launcher sends ``{"signal": 15}`` to pass a signal on;
- when the connection ends, because the launcher or the network failed, the agent kills its ranks.

Hosts named ``localhost`` get an agent without ssh. Skyphos must be installed at the same path on all hosts,
and ssh must not ask for anything.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, BinaryIO, cast

from ..errors import BadInput
from ..inputs.settings import real, whole
from .exit_status import Exit
from .failures import Failure
from .hostfile import parse_hostfile
from .local import HostRanks, start_ranks
from .supervise import Child, Report, Supervisor

__all__ = ["SSH", "parse_hostfile", "place_ranks", "run_hosts"]

# Variables of the launcher that are sent to the hosts; ``-x`` adds others.
_FORWARDED = re.compile(
    r"SKYPHOS_(DEBUG|PROFILE|ADAPT|TOPOLOGY|THREADS|SHARED_MEMORY|LIBMPI|TLS_\w+)"
    r"|PYTHONPATH|OMP_\w+|MKL_\w+|OPENBLAS_\w+"
)
_LISTENS = b"skyphos-listens "
# Begins an agent's report in its ranks' output. A random word of the job follows, so that no rank prints it by chance.
_REPORT_PREFIX = b"skyphos-tells-"
_LOCAL = ("localhost", "127.0.0.1", "::1")
# Default ssh command. BatchMode: ssh's questions would be asked on the stdin that carries messages to the agent.
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20")


def place_ranks(hosts: Sequence[tuple[str, int]], n: int | None) -> list[tuple[str, int, int]]:
    """Fill hosts with ranks in order.

    Parameters
    ----------
    hosts : sequence of (str, int)
        Hosts and their slots.
    n : int or None
        Ranks in all; None: one for each slot.

    Returns
    -------
    list of (str, int, int)
        Host, first rank, number of ranks; hosts that get none are left out.

    Raises
    ------
    BadInput
        If there are not enough slots.

    Examples
    --------
    >>> from skyphos.launch.hosts import place_ranks
    >>> place_ranks([("a", 4), ("b", 4)], 6)
    [('a', 0, 4), ('b', 4, 2)]
    """
    slots = sum(slots for _, slots in hosts)
    n = slots if n is None else whole(n, "n", -(2**63), 2**63)
    if not 1 <= n <= slots:
        raise BadInput(f"{n} ranks, but the host file has slots for 1 to {slots}")
    placed, first = [], 0
    for host, slots in hosts:
        count = min(slots, n - first)
        if count > 0:
            placed.append((host, first, count))
            first += count
    return placed


def run_hosts(
    command: Sequence[str],
    hosts: Sequence[tuple[str, int]],
    n: int | None = None,
    *,
    env: Mapping[str, str] | None = None,
    export: Mapping[str, str] | None = None,
    ssh: Sequence[str] = SSH,
    prefix: bool = True,
    python: str | None = None,
    grace_s: float = 5.0,
    keep_going: bool = False,
    report: Report = "",
) -> int:
    """Run a command as a group over several hosts, and stay until it ends.

    Parameters
    ----------
    command : sequence of str
        Program and arguments, the same on every host; runs in the launcher's working directory.
    hosts : sequence of (str, int)
        From :func:`parse_hostfile`. The other hosts must reach the first one by the name given here.
    n : int, optional
        Ranks in all; default one for each slot.
    env : mapping, optional
        The launcher's environment; default ``os.environ``.
    export : mapping, optional
        Variables to set on the hosts, in addition to those that are copied from ``env``: ``SKYPHOS_*`` (except those
        of a single rank), ``PYTHONPATH``, ``OMP_*``, ``MKL_*`` and ``OPENBLAS_*``.
    prefix : bool
        Whether to put ``[rank]`` before each line of output.
    ssh : sequence of str
        The ssh command and its options.
    python : str, optional
        Python on the hosts; default this one's path.
    grace_s : float
        Seconds from SIGTERM to SIGKILL.
    keep_going : bool
    report : {"", "killed", "failed"}
        As in :func:`~skyphos.launch.run_local`. The ranks of an unreachable host count as killed; if no rank had
        started there, the group ends even with ``keep_going``.

    Returns
    -------
    int
        As :func:`~skyphos.launch.run_local`; 255 if ssh itself failed.

    Raises
    ------
    BadInput
        If there are not enough slots or ssh cannot be run.
    """
    env, grace_s = os.environ if env is None else env, real(grace_s, "grace_s", 0.0)
    placed = place_ranks(hosts, n)
    job: dict[str, Any] = {
        "command": list(command),
        "cwd": os.getcwd(),
        "env": {k: v for k, v in env.items() if _FORWARDED.fullmatch(k)} | dict(export or {}),
        "token": secrets.token_hex(16),
        "word": secrets.token_hex(8),
        "world_size": sum(count for _, _, count in placed),
        "prefix": prefix,
        "grace_s": grace_s,
    }
    with _Agents(job, placed, ssh, python or sys.executable, env, keep_going=keep_going, report=report) as agents:
        agents.start_next()
        return agents.run()


class _Agents(Supervisor):
    """The launcher's end: one child per host, which is ssh or, on this host, the agent itself."""

    def __init__(
        self,
        job: dict[str, Any],
        placed: Sequence[tuple[str, int, int]],
        ssh: Sequence[str],
        python: str,
        env: Mapping[str, str],
        *,
        keep_going: bool,
        report: Report,
    ) -> None:
        # Agents kill their ranks after the grace. An agent that has not ended after twice the grace is unreachable.
        super().__init__(2 * job["grace_s"] + 1, keep_going=keep_going, report=report)
        self._word = _REPORT_PREFIX + job["word"].encode() + b" "
        self._began: set[str] = set()
        # Per host with an agent: its ranks whose exit has not been reported.
        self._running: dict[str, set[int]] = {}
        self._job, self._env = job, env
        self._waiting = list(placed)
        self._agent = [python, "-m", "skyphos.launch.hosts"]
        self._ssh = list(ssh)
        self._rendezvous: str | None = None

    def start_next(self) -> None:
        """Start the agent of the next host and send it its part of the job."""
        host, first, count = self._waiting.pop(0)
        local = host in _LOCAL
        argv = self._agent if local else [*self._ssh, host, "exec " + shlex.join(self._agent)]
        child = self.start(argv, self._env, stdin=subprocess.PIPE, who=host)
        self._running[host] = set(range(first, first + count))
        part = {"first_rank": first, "count": count, "rendezvous": self._rendezvous}
        if self._rendezvous is None:
            # Local ranks can use the loopback only if no rank is on another host.
            alone = local and all(other in _LOCAL for other, _, _ in self._waiting)
            part["host"] = "127.0.0.1" if alone else socket.gethostname() if local else host.rpartition("@")[2]
        self._send(child, self._job | part)

    def deliver(self, child: Child, to: int, lines: bytes) -> None:
        """Pass on output without the agents' reports. The first agent's address starts the other agents."""
        if self._rendezvous is None and _LISTENS in lines:
            before, _, rest = lines.partition(_LISTENS)
            answer, _, after = rest.partition(b"\n")
            self._rendezvous = answer.decode()
            lines = before + after
            while self._waiting:
                self.start_next()
        while self._word in lines:
            before, _, rest = lines.partition(self._word)
            message, _, lines = rest.partition(b"\n")
            super().deliver(child, to, before)
            self._hear(child.who, json.loads(message))
        super().deliver(child, to, lines)

    def _hear(self, host: str, message: dict[str, Any]) -> None:
        self._began.add(host)
        if "ended" in message:
            rank, code = message["ended"]
            self._running[host].discard(rank)
            self.note(Exit(f"rank {rank} on {host}", code))
        if "failed" in message:
            rank, label, failure = message["failed"]
            self.note_failure(f"rank {rank} on {host}", label, Failure.of_json(failure))

    def any_left(self) -> bool:
        return any(self._running.values())

    def child_ended(self, child: Child) -> None:
        gone = sorted(self._running.pop(child.who))
        if gone:
            ranks = f"rank {gone[0]}" if len(gone) == 1 else f"ranks {', '.join(map(str, gone))}"
            began = child.who in self._began
            self.note(Exit(f"{ranks} on {child.who}", child.process.returncode or 1, lost=True), ends_all=not began)

    def signal_child(self, child: Child, number: int) -> None:
        if number == signal.SIGKILL:
            super().signal_child(child, number)  # ends ssh; the agent sees end of file on stdin and kills its ranks
        else:
            self._send(child, {"signal": int(number)})

    def _send(self, child: Child, message: dict[str, Any]) -> None:
        stdin = cast(BinaryIO, child.process.stdin)
        try:
            stdin.write(json.dumps(message).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: the loop will see that


class _Host(Supervisor):
    """The agent's end: this host's ranks, and messages from and to the launcher."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job["grace_s"], keep_going=True)  # until the launcher says otherwise
        self._word = _REPORT_PREFIX + job["word"].encode() + b" "
        self._first_rank: int = job["first_rank"]

    def listen_to_launcher(self, rest: bytes) -> None:
        self._heard = rest
        self.watch(0, self._hear)

    def report_to_launcher(self, message: dict[str, Any]) -> None:
        self._write(self._stdout, self._word + json.dumps(message).encode() + b"\n")

    def child_ended(self, child: Child) -> None:
        super().child_ended(child)
        rank = self._first_rank + self.children.index(child)
        self.report_to_launcher({"ended": [rank, child.process.returncode]})

    def failure_reported(self, child: Child, failure: Failure) -> None:
        rank = self._first_rank + self.children.index(child)
        self.report_to_launcher({"failed": [rank, child.label, json.dumps(asdict(failure))]})

    def _hear(self, fd: int) -> bool:
        data = os.read(fd, 1 << 16)
        if not data:
            self.unwatch(fd)
            self.end_all(signal.SIGKILL)
            return False
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            number = json.loads(line)["signal"]
            if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                self.end_all(number)
                continue
            for child in self.alive():
                self.signal_child(child, number)
        return False


def _agent_main() -> int:
    """Run one host's part of a job, which comes as the first line of stdin."""
    line = b""
    while not line.endswith(b"\n"):  # byte by byte: what follows the line belongs to the loop
        byte = os.read(0, 1)
        if not byte:
            return 1
        line += byte
    job = json.loads(line)
    os.chdir(job["cwd"])
    listener = None
    rendezvous = job["rendezvous"]
    if rendezvous is None:
        loopback = job["host"] == "127.0.0.1"
        is_v6 = ":" in job["host"]
        listener = socket.create_server(
            ("127.0.0.1" if loopback else "", 0),
            family=socket.AF_INET6 if is_v6 else socket.AF_INET,
            backlog=max(128, job["world_size"]),
        )
        port = listener.getsockname()[1]
        rendezvous = f"[{job['host']}]:{port}" if is_v6 else f"{job['host']}:{port}"
        sys.stdout.buffer.write(_LISTENS + rendezvous.encode() + b"\n")
        sys.stdout.buffer.flush()
    share = HostRanks(job["world_size"], job["first_rank"], job["count"], rendezvous, job["token"])
    with _Host(job) as group:
        group.listen_to_launcher(b"")
        start_ranks(group, job["command"], share, {**os.environ, **job["env"]}, listener=listener, prefix=job["prefix"])
        group.report_to_launcher({"began": share.count})
        if listener is not None:
            listener.close()
        return group.run()


if __name__ == "__main__":
    try:
        sys.exit(_agent_main())
    except BadInput as error:
        sys.exit(f"{socket.gethostname()}: {error}")
