"""Groups for tests: threads of this process, and real processes over loopback."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import skyphos as sky
from skyphos.planning.profile_file import Measured
from skyphos.probe import probe

# Background jobs of a shell ignore SIGINT, and their child processes inherit that. Tests start processes and interrupt
# them, so SIGINT gets its handler back.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def on_all(size: int, body: Callable[[sky.Comm], Any], timeout: float = 30.0) -> list[Any]:
    """What ``body`` returns for each rank of an in-process group."""
    comms = sky.local(size, timeout=timeout)
    try:
        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(body, comms))
    finally:
        for comm in comms:
            comm.close()


class Processes:
    """Starts ranks as real processes that run a piece of Python with ``comm`` and ``np`` at hand."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[str]] = []
        self.last: dict[int, tuple[str, dict[str, str]]] = {}

    def lines(self, size: int, code: str, options: str | None = "", **changes: dict[int, str]) -> list[tuple[str, str]]:
        """Output and errors of the ranks of a group; arguments as of :meth:`start`."""
        return [rank.communicate(timeout=60) for rank in self.start(size, code, options=options, **changes)]

    def start(
        self,
        size: int,
        code: str,
        ranks: list[int] | None = None,
        timeout: float = 30.0,
        options: str | None = "",
        **changes: dict[int, str],
    ) -> list[subprocess.Popen[str]]:
        """Start processes for ``ranks`` (default: all).

        ``options`` are further arguments of `init`; None: the code calls `init` itself. ``changes`` maps an environment
        variable to its values by position in ``ranks``.
        """
        listener = socket.create_server(("127.0.0.1", 0))
        token = secrets.token_hex(8)
        program = (
            "import sys, numpy as np, skyphos as sky\n"
            + ("" if options is None else f"comm = sky.init(timeout={timeout}, {options})\n")
            + "def say(*words): print(*words, flush=True)\n"
            + code
        )
        started = []
        for place, rank in enumerate(range(size) if ranks is None else ranks):
            env = os.environ | {
                "SKYPHOS_RANK": str(rank),
                "SKYPHOS_WORLD_SIZE": str(size),
                "SKYPHOS_RENDEZVOUS": f"127.0.0.1:{listener.getsockname()[1]}",
                "SKYPHOS_TOKEN": token,
            }
            fds = []
            if rank == 0:
                env["SKYPHOS_LISTEN_FD"] = str(listener.fileno())
                fds = [listener.fileno()]
            for name, by_place in changes.items():
                if place in by_place:
                    env[name] = by_place[place]
            started.append(self._run(program, env, fds))
            env.pop("SKYPHOS_LISTEN_FD", None)
            self.last[rank] = (program, env)
        listener.close()
        return started

    def restart(self, rank: int, **more: str) -> subprocess.Popen[str]:
        """Restart a rank of the last group at the same rendezvous, with further variables."""
        program, env = self.last[rank]
        return self._run(program, env | more, [])

    def _run(self, program: str, env: dict[str, str], fds: list[int]) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", program]
        process = subprocess.Popen(command, env=env, pass_fds=fds, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.all.append(process)
        return process

    def stop(self) -> None:
        for process in self.all:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture(scope="session", autouse=True)
def no_profile_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ignore the user's own profile, which would change the choices of `auto`."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))
    tls = ("SKYPHOS_TLS_AUTHORITY", "SKYPHOS_TLS_CERTIFICATE", "SKYPHOS_TLS_KEY")
    for name in ("SKYPHOS_PROFILE", "SKYPHOS_ADAPT", *tls):
        os.environ.pop(name, None)


@pytest.fixture(scope="session")
def probed(no_profile_of_the_user: None) -> Measured:
    """The result of a short probe of four ranks in this process, the same on each rank."""
    all_found = on_all(4, lambda comm: probe(comm, seconds=0.5))
    assert len({one.to_json() for one in all_found}) == 1
    measured: Measured = all_found[0]
    return measured


@pytest.fixture
def processes() -> Iterator[Processes]:
    group = Processes()
    yield group
    group.stop()
