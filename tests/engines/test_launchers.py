"""The example of docs/engines.md under the launchers that need nothing installed, and under mpiexec."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "engines" / "allreduce.py")
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
FOREIGN = ("SKYPHOS_", "SLURM_", "PMI_", "OMPI_", "MASTER_", "TORCHELASTIC_")


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}


def said_by(*command: str) -> str:
    """What a launcher prints."""
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_skyphos_run() -> None:
    said = said_by(sys.executable, "-m", "skyphos.cli", "run", "-n", "4", EXAMPLE)
    assert said == "[0] the sum of 4 ranks over tcp is right: 5 of 1000001 entries\n"


@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec (pip install mpich)")
def test_mpiexec() -> None:
    assert MPIEXEC is not None
    said = said_by(MPIEXEC, "-n", "4", sys.executable, EXAMPLE)
    assert said == "the sum of 4 ranks over mpi is right: 5 of 1000001 entries\n"


def test_alone() -> None:
    assert said_by(sys.executable, EXAMPLE).startswith("the sum of 1 ranks over local is right")


@pytest.mark.parametrize("names", ["torch", "skyphos"])
def test_plain_variables(names: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    ranks = []
    for rank in range(3):
        if names == "torch":
            own = {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        else:
            own = {"RANK": str(rank), "WORLD_SIZE": "3", "RENDEZVOUS": f"127.0.0.1:{port}", "TOKEN": "secret"}
            own = {f"SKYPHOS_{name}": value for name, value in own.items()}
        command, pipe = [sys.executable, EXAMPLE], subprocess.PIPE
        ranks.append(subprocess.Popen(command, env=environment() | own, stdout=pipe, stderr=pipe, text=True))
    said = [rank.communicate(timeout=60) for rank in ranks]
    assert [out for out, _ in said] == ["the sum of 3 ranks over tcp is right: 4 of 1000001 entries\n", "", ""], said
