"""Scripts under ``mpiexec``, shared by the tests over MPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
LIB = Path(sys.prefix) / "lib"
LIBRARIES = [path for path in (LIB / "libmpi_abi.so.1", LIB / "libmpi.so.12") if path.exists()]
needs_mpi = pytest.mark.skipif(not (MPIEXEC and LIBRARIES), reason="no mpiexec (pip install mpich)")


def run(
    size: int, script: str, *words: str, library: Path | None = None, seconds: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a script in ``size`` processes under ``mpiexec``; return the result."""
    assert MPIEXEC is not None
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SKYPHOS_", "PMI_"))}
    if library is not None:
        env["SKYPHOS_LIBMPI"] = str(library)
    command = [MPIEXEC, "-n", str(size), sys.executable, "-c", script, *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds, check=False)
