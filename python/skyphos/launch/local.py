"""Local launcher: starts the ranks of a group on this machine (``skyphos run`` and others).

:func:`run_local` opens the socket on which rank 0 will listen, on a port that the kernel picks, and passes the open
socket on: no other program can take the port meanwhile, and no rank can connect too early. Each job has a random token,
passed in the environment, without which nothing joins the group.

For the machines of a host file see :mod:`.hosts`.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ..errors import BadInput
from ..inputs.settings import real, whole
from . import failures
from .streams import fill_gaps
from .supervise import Report, Supervisor

__all__ = ["HostRanks", "command_line", "cores", "rank_environment", "run_local", "start_ranks"]

# Variables of a rank. The launcher may be a rank of a group itself, and must not pass its own on to the new group.
_OURS = (
    "SKYPHOS_RANK",
    "SKYPHOS_WORLD_SIZE",
    "SKYPHOS_RENDEZVOUS",
    "SKYPHOS_TOKEN",
    "SKYPHOS_LOCAL_RANK",
    "SKYPHOS_LOCAL_WORLD_SIZE",
    "SKYPHOS_LISTEN_FD",
    "SKYPHOS_TAKEN",
    failures.VARIABLE,
)


@dataclass(frozen=True)
class HostRanks:
    """The ranks of one group that run on one host.

    Attributes
    ----------
    world_size : int
        Ranks in the group.
    first_rank, count : int
        Ranks ``first_rank`` to ``first_rank + count - 1`` run here.
    rendezvous : str
        ``host:port`` at which rank 0 listens.
    token : str
        The group's secret.
    """

    world_size: int
    first_rank: int
    count: int
    rendezvous: str
    token: str


def run_local(
    command: Sequence[str],
    n: int,
    *,
    prefix: bool = True,
    env: Mapping[str, str] | None = None,
    grace_s: float = 5.0,
    keep_going: bool = False,
    report: Report = "",
) -> int:
    """Run a command as a group of local processes, and return when all have ended.

    Parameters
    ----------
    command : sequence of str
        Program and arguments, as from :func:`command_line`.
    n : int
        Number of ranks.
    prefix : bool
        Whether to put ``[rank]`` before each line of output. Without it the processes write to the
        launcher's own stdout and stderr, and can see whether those are a terminal.
    env : mapping, optional
        Environment of the processes; default the launcher's. ``SKYPHOS_*`` is set for each rank;
        ``OMP_NUM_THREADS`` if it is not set, see :func:`rank_environment`.
    grace_s : float
        Seconds from SIGTERM to SIGKILL when the group has to end.
    keep_going : bool
        Whether the others go on when a process fails: for groups with replicas, and programs that shrink theirs.
    report : {"", "killed", "failed"}
        Ranks whose exit is reported on stderr, as in :class:`.Supervisor`.

    Returns
    -------
    int
        0 if every rank returned 0; else the code of the first rank that failed, 128 + signal if a signal
        ended it or the launcher. When one rank fails the others are ended. With ``keep_going`` it is the
        :func:`.group_status`: 0 if some returned 0 and all others were killed.

    Raises
    ------
    BadInput
        If ``n`` is not positive or the command cannot be run.

    Notes
    -----
    Call it from the main thread: it handles signals until it returns. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and
    SIGUSR2 are passed on to every rank. Rank 0 reads the launcher's stdin, unless that is a terminal.

    Examples
    --------
    >>> import sys
    >>> from skyphos.launch import run_local
    >>> run_local([sys.executable, "-c", "raise SystemExit(3)"], 2, prefix=False)
    3
    """
    n, grace_s = whole(n, "n", -(2**63), 2**16), real(grace_s, "grace_s", 0.0)
    if n < 1:
        raise BadInput(f"a group has at least one rank, not {n}")
    fill_gaps()  # before the socket, which must not become stdin
    # The queue has room for every rank, because all of them connect at the same moment.
    with (
        socket.create_server(("127.0.0.1", 0), backlog=max(128, n)) as listener,
        Supervisor(grace_s, keep_going=keep_going, report=report) as group,
    ):
        rendezvous = f"127.0.0.1:{listener.getsockname()[1]}"
        share = HostRanks(n, 0, n, rendezvous, secrets.token_hex(16))
        start_ranks(group, command, share, os.environ if env is None else env, listener=listener, prefix=prefix)
        listener.close()
        return group.run()


def start_ranks(
    group: Supervisor,
    command: Sequence[str],
    share: HostRanks,
    env: Mapping[str, str],
    *,
    listener: socket.socket | None,
    prefix: bool,
) -> None:
    """Start one host's ranks in a supervisor; rank 0 inherits the listening socket."""
    for local_rank in range(share.count):
        rank = share.first_rank + local_rank
        variables = rank_environment(share, local_rank, env)
        if prefix:
            # Python buffers 8 KB when stdout is a pipe; lines should appear when they are printed.
            variables.setdefault("PYTHONUNBUFFERED", "1")
            variables[failures.VARIABLE] = group.failure_word
        # Rank 0 may read the files that a shell opened for <(command).
        pass_fds = _open_descriptors(command) if rank == 0 else ()
        if rank == 0 and listener is not None and share.world_size > 1:
            variables["SKYPHOS_LISTEN_FD"] = str(listener.fileno())
            pass_fds = (*pass_fds, listener.fileno())
        # The kernel stops a background process group that reads a terminal, so a terminal is not passed.
        reads_stdin = rank == 0 and listener is not None and _has_input()
        group.start(
            command,
            variables,
            label=f"[{rank}] " if prefix else "",
            who=f"rank {rank} on {socket.gethostname()}",
            pipes=prefix,
            stdin=None if reads_stdin else subprocess.DEVNULL,
            pass_fds=pass_fds,
            mark=("SKYPHOS_TOKEN", "SKYPHOS_RANK"),
        )


def rank_environment(share: HostRanks, local_rank: int, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of one rank.

    ``OMP_NUM_THREADS``, if not set, becomes this host's cores divided by its ranks: else NumPy's matrix products
    would start as many threads in every rank as there are cores.

    Examples
    --------
    >>> from skyphos.launch import HostRanks, rank_environment
    >>> env = rank_environment(HostRanks(4, 2, 2, "10.0.0.1:7000", "secret"), 1, {"OMP_NUM_THREADS": "3"})
    >>> env["SKYPHOS_RANK"], env["SKYPHOS_LOCAL_RANK"], env["OMP_NUM_THREADS"]
    ('3', '1', '3')
    """
    variables = {name: value for name, value in env.items() if name not in _OURS}
    variables.setdefault("OMP_NUM_THREADS", str(max(1, cores() // share.count)))
    variables.update(
        SKYPHOS_RANK=str(share.first_rank + local_rank),
        SKYPHOS_WORLD_SIZE=str(share.world_size),
        SKYPHOS_RENDEZVOUS=share.rendezvous,
        SKYPHOS_TOKEN=share.token,
        SKYPHOS_LOCAL_RANK=str(local_rank),
        SKYPHOS_LOCAL_WORLD_SIZE=str(share.count),
    )
    return variables


def command_line(
    target: str, arguments: Sequence[str] = (), *, module: bool = False, python: str | None = None
) -> list[str]:
    """Return the command that runs a target: a Python file, a module, or a program.

    Parameters
    ----------
    target : str
        A file that ends in ``.py``, run by this Python; else a program, by path or from ``PATH``.
    arguments : sequence of str
        Its arguments.
    module : bool
        The target is a module: ``python -m target``.
    python : str, optional
        The Python that runs files and modules; default this one.

    Raises
    ------
    BadInput
        If there is no such file or program.

    Examples
    --------
    >>> from skyphos.launch import command_line
    >>> command_line("timeit", ["-n1"], module=True)[1:]
    ['-m', 'timeit', '-n1']
    """
    python = python or sys.executable
    if module:
        return [python, "-m", target, *arguments]
    if target.endswith(".py"):
        if not os.path.isfile(target):
            raise BadInput(f"{target}: no such file")
        return [python, target, *arguments]
    # Also find programs of this Python's environment, whose folder may not be on PATH.
    folders = [os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)]
    program = shutil.which(target, path=os.pathsep.join(folders))
    if program is None:
        raise BadInput(f"{target}: no such program (a Python file must end in .py; a module needs -m)")
    return [program, *arguments]


def _open_descriptors(command: Sequence[str]) -> tuple[int, ...]:
    """The descriptors that arguments name, such as ``/dev/fd/63``, and that are open."""
    found = []
    for argument in command:
        named = re.search(r"(?:^|=)/(?:dev|proc/self)/fd/(\d{1,9})$", argument)
        if named is not None and int(named[1]) > 2:
            with suppress(OSError):
                os.fstat(int(named[1]))
                found.append(int(named[1]))
    return tuple(dict.fromkeys(found))


def _has_input() -> bool:
    """Whether stdin is open and is not a terminal."""
    return sys.stdin is not None and not sys.stdin.closed and not sys.stdin.isatty()


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
