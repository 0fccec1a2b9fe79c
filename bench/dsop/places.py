"""Places where contenders run, and how to start Skyphos and the paper's variants over MPI there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.cluster import Cluster, Loopback
from lab.conductor import MPICH_IN_A_CLUSTER, mpiexec_of

HERE = Path(__file__).resolve().parent

#: The paper's names; its figures have the first five.
VARIANTS = (
    "allreduce",
    "allgather",
    "allreduce-ring",
    "g-rabenseifner-dsop",
    "allgather-async",
    "bruck-async",
    "allreduce-butterfly",
    "allreduce-ring-pipelined",
    "allreduce-butterfly-pipelined",
    "g-rabenseifner-pipelined",
)
OURS = ("auto", "allgather", "rabenseifner", "ring", "allreduce", "butterfly")

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "SKYPHOS_THREADS": "1", "SKYPHOS_PROFILE": "none"}
#: With more ranks than cores MPICH's allreduce in shared memory spins for minutes; this selects the one by messages.
_MPICH_HERE = {"MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM": "mpir"}
_OPENMPI_HERE = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


@dataclass(frozen=True)
class Case:
    """A sum: N by M, and each rank's pairs."""

    n: int
    m: int
    pairs: int


@dataclass(frozen=True)
class MPI:
    """An MPI library: the folder of its programs, and the variants compiled with it."""

    bin: Path
    program: Path
    is_openmpi: bool

    @classmethod
    def compiled(cls, folder: Path, to: Path) -> MPI:
        """Compile the variants with the ``mpicc`` of a folder."""
        program = to / "variants"
        flags = ["-O3", "-march=native", "-o", str(program), str(HERE / "variants.c"), "-lm"]
        subprocess.run([str(folder / "mpicc"), *flags], check=True)
        return cls(folder, program, (folder / "ompi_info").exists())


def mpi_here() -> Path:
    """Folder of the environment's own MPI library."""
    beside = Path(sys.executable).parent
    found = beside if (beside / "mpicc").exists() else None
    if found is None and (path := shutil.which("mpicc")):
        found = Path(path).parent
    if found is None:
        raise SystemExit("there is no mpicc: `make lab` installs MPICH")
    return found


Seconds = list[float]


def variant(place: Cluster | Loopback, mpi: MPI, name: str, case: Case, iterations: int) -> Seconds:
    """Seconds of each iteration of one of the paper's variants, without the first."""
    words = [str(mpi.program), name, str(case.n), str(case.m), str(case.pairs), str(iterations + 1)]
    environment = os.environ | _ONE_THREAD
    if isinstance(place, Cluster):
        if mpi.is_openmpi:
            raise SystemExit("in the lab the variants run over MPICH")
        command = mpiexec_of([place.command(host, words) for host in range(place.hosts)])
        nets = {name: place.interface for name in ("UCX_NET_DEVICES", "FI_TCP_IFACE")}
        environment |= MPICH_IN_A_CLUSTER | nets
    else:
        command = [str(mpi.bin / "mpiexec"), "-n", str(place.hosts), *words]
        environment |= _OPENMPI_HERE if mpi.is_openmpi else _MPICH_HERE
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=3600, check=False)
    if done.returncode:
        raise SystemExit(f"{name} of {case} failed: {done.returncode}")
    return [float(line) for line in done.stdout.split()][1:]


def ours(
    place: Cluster | Loopback, names: list[str], cases: list[Case], iterations: int, progress: Callable[[str], None]
) -> dict[str, dict[Case, Seconds]]:
    """Seconds of each iteration of Skyphos's algorithms, all in one group; reports the choice of `auto`."""
    program = [sys.executable, str(HERE / "ours.py"), json.dumps([vars(case) for case in cases])]
    program += [",".join(names), str(iterations)]
    with TemporaryDirectory() as folder:
        environment = _ONE_THREAD | {"BENCH_ROWS": folder}
        if isinstance(place, Cluster):
            commands = [place.command(host, program) for host in range(place.hosts)]
            environments = [place.environment(h, place.hosts, 29960, "dsop") | environment for h in range(place.hosts)]
        else:
            commands = [[sys.executable, "-m", "skyphos.cli", "run", "-n", str(place.hosts), *program[1:]]]
            environments = [os.environ | environment]
        ranks = [subprocess.Popen(words, env=env) for words, env in zip(commands, environments, strict=True)]
        if any([process.wait(timeout=7200) for process in ranks]):
            raise SystemExit("a rank of ours failed")
        rows = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("rank-*"))]
    found: dict[str, dict[Case, Seconds]] = {name: {} for name in names}
    for row in zip(*rows, strict=True):
        name, case = row[0]["name"], Case(**row[0]["case"])
        # The slowest rank counts.
        found[name][case] = [max(times) for times in zip(*(one["seconds"] for one in row), strict=True)]
        if name == "auto":
            progress(f"{case.n} by {case.m}, {case.pairs} pairs: auto chose {row[0]['chosen']}")
    return found
