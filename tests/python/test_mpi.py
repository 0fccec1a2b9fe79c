"""Groups over MPI: real processes that ``mpiexec`` starts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import skyphos as sky
from mpi_support import LIBRARIES, needs_mpi, run

SUM = """
import sys
import numpy as np
import skyphos as sky

comm = sky.init()
x = sky.SparseVector([comm.rank, 100], np.array([1.0, 2.0]), n=1000)
y = comm.allreduce(x)
assert y.indices.tolist() == [*range(comm.size), 100], y
assert y.to_dense()[100] == 2.0 * comm.size
total = comm.allreduce(np.full(300_000, comm.rank + 1.0))
assert (total == comm.size * (comm.size + 1) / 2).all()
with open(f"{sys.argv[1]}/{comm.rank}", "w") as file:  # because printed lines of several processes may be mixed
    print(comm.transport, comm.size, comm.topology.hosts, file=file)
"""


def alone(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in one process without a launcher; return the result."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SKYPHOS_", "PMI_", "OMPI_"))}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=clean | env, capture_output=True, text=True, timeout=60, check=False)


@needs_mpi
@pytest.mark.parametrize("library", [None, *LIBRARIES], ids=lambda path: path.name if path else "found")
@pytest.mark.parametrize("size", [1, 3])
def test_a_group_under_mpiexec_goes_over_mpi(size: int, library: Path | None, tmp_path: Path) -> None:
    done = run(size, SUM, str(tmp_path), library=library)
    assert done.returncode == 0, done.stderr
    said = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert said == {str(rank): f"mpi {size} {[[*range(size)]]}\n" for rank in range(size)}, done.stderr


@needs_mpi
@pytest.mark.parametrize("first", ["skyphos", "mpi4py"])
def test_mpi4py_in_the_same_process(first: str) -> None:
    pytest.importorskip("mpi4py")
    imports = ["import skyphos as sky; own = sky.init()", "from mpi4py import MPI"]
    script = "\n".join(imports if first == "skyphos" else imports[::-1])
    script += """
import numpy as np
world = MPI.COMM_WORLD
part = world.Split(world.rank % 2, -world.rank)
group = sky.Comm.from_mpi4py(part)
assert (group.rank, group.size, group.transport) == (part.rank, part.size, "mpi")
assert (own.rank, own.size) == (world.rank, world.size)
for k in range(20):
    mine = np.arange(1000.0) * (world.rank + k)
    assert (group.allreduce(mine) == part.allreduce(mine)).all()
    assert (own.allreduce(mine) == world.allreduce(mine)).all()
with open("/proc/self/maps") as maps:
    loaded = {line.split("/", 1)[1] for line in maps if "/libmpi" in line}
assert len(loaded) == 1, loaded
"""
    done = run(4, script)
    assert done.returncode == 0, done.stderr


@needs_mpi
def test_the_librarys_own_allreduce() -> None:
    script = """
import numpy as np
import skyphos as sky
with sky.init() as comm:
    x = np.arange(300_000.0) + comm.rank
    total, how = comm.allreduce(x, algorithm="dense_mpi", explain=True)
    assert how.algorithm == "dense_mpi", how
    assert (total == 3 * np.arange(300_000.0) + 3).all()
    assert (comm.allreduce(x, op="mean", algorithm="dense_mpi") == np.arange(300_000.0) + 1).all()
    try:
        comm.allreduce(x, op="max", algorithm="dense_mpi")
    except sky.BadInput as error:
        assert 'MPI has no operation equal to "max" on float64' in str(error), error
    else:
        raise AssertionError("no error")
"""
    done = run(3, script)
    assert done.returncode == 0, done.stderr


def test_dense_mpi_is_over_mpi_only() -> None:
    with sky.init() as comm, pytest.raises(sky.BadInput, match='it needs transport="mpi", not "local"'):
        comm.allreduce(np.ones(3), algorithm="dense_mpi")


@needs_mpi
def test_arguments_that_are_no_communicators_of_mpi4py() -> None:
    pytest.importorskip("mpi4py")
    script = """
import skyphos as sky
from mpi4py import MPI
for wrong in (3, None, MPI.COMM_NULL, MPI.COMM_WORLD.Get_group()):
    try:
        sky.Comm.from_mpi4py(wrong)
    except sky.BadInput as error:
        print(error)
"""
    done = run(1, script)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4


@needs_mpi
def test_an_error_on_one_rank_reaches_all() -> None:
    script = """
import numpy as np
import skyphos as sky
with sky.init(timeout=20) as comm:
    try:
        comm.allreduce(np.ones(10 if comm.rank else 11))
    except sky.Mismatch as error:
        print(error)
    print(comm.allreduce(np.ones(2)))
"""
    done = run(3, script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ranks disagree: rank") == 3, done.stdout
    assert done.stdout.count("[3. 3.]") == 3


@needs_mpi
@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 9)", "raise SystemExit(4)", "1 / 0"])
def test_a_lost_process_ends_the_job(end: str) -> None:
    script = f"""
import os
import numpy as np
import skyphos as sky
comm = sky.init(timeout=30)
comm.barrier()
if comm.rank == 1:
    {end}
for _ in range(1000):
    comm.allreduce(np.ones(1000))
"""
    start = time.monotonic()
    done = run(3, script)
    assert done.returncode != 0
    assert time.monotonic() - start < 30
    assert "time-out" not in done.stderr


def test_another_launcher_than_the_librarys_is_explained() -> None:
    if not LIBRARIES:
        pytest.skip("no MPI library (pip install mpich)")
    script = "import skyphos as sky; sky.init()"
    for library in LIBRARIES:
        done = alone(script, OMPI_COMM_WORLD_SIZE="8", OMPI_COMM_WORLD_RANK="3", SKYPHOS_LIBMPI=str(library))
        assert "8 processes were started, but MPI says that this one is alone" in done.stderr, done.stderr
        assert library.name in done.stderr and "mpiexec" in done.stderr


@pytest.mark.parametrize(
    ("library", "named"),
    [("/nowhere/libmpi.so", "cannot be opened"), ("libc.so.6", "no MPI_Initialized"), (__file__, "cannot be opened")],
)
def test_invalid_mpi_libraries(library: str, named: str) -> None:
    done = alone('import skyphos as sky; sky.init(transport="mpi")', SKYPHOS_LIBMPI=library)
    assert "BadInput" in done.stderr and library in done.stderr and named in done.stderr, done.stderr


def test_options_that_mpi_lacks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(sky.BadInput, match="replication survives lost processes"):
        sky.init(transport="mpi", replication=2)
    with pytest.raises(sky.BadInput, match="rank= and world_size= are for TCP"):
        sky.init(transport="mpi", rank=0, world_size=1)
    with pytest.raises(sky.BadInput, match="does not encrypt"):
        sky.init(transport="mpi", tls=sky.TLS(tmp_path / "a", tmp_path / "b", tmp_path / "c"))
    with pytest.raises(sky.BadInput, match='"tcp" or "mpi"'):
        sky.init(transport="infiniband")


FINALIZED = """
from mpi4py import MPI
import skyphos as sky

comm = sky.Comm.from_mpi4py(MPI.COMM_WORLD)
comm.allreduce(1)
MPI.Finalize()
for call in (lambda: comm.allreduce(1), comm.barrier, lambda: comm.send(1, 1 - comm.rank)):
    try:
        call()
    except sky.PeerLost as error:
        print("finalised" if "MPI was finalised while this Comm was open: close it before" in str(error) else error)
comm.close()
"""


@needs_mpi
def test_calls_of_a_comm_after_mpi_was_finalised_raise() -> None:
    done = run(2, FINALIZED)
    assert done.returncode == 0 and done.stdout.count("finalised") == 6, (done.stdout, done.stderr)


FINALIZED_UNDER_WAY = """
import numpy as np
from mpi4py import MPI
import skyphos as sky

comm = sky.Comm.from_mpi4py(MPI.COMM_WORLD)
calls = [comm.allreduce(np.ones(n), async_op=True) for n in (1, 1000, 1_000_000)] if comm.rank != LATE else []
calls.append(comm.irecv(source=1 - comm.rank))
MPI.Finalize()
for call in calls:
    try:
        call.wait()
        print("done")
    except sky.PeerLost as error:
        print("finalised" if "MPI was finalised while this Comm was open: close it before" in str(error) else error)
comm.close()
"""


@needs_mpi
@pytest.mark.parametrize("late", [0, 5], ids=["one rank alone in calls", "both in calls"])
def test_calls_under_way_when_mpi_is_finalised_raise(late: int) -> None:
    for _ in range(5):
        done = run(2, FINALIZED_UNDER_WAY.replace("LATE", str(late)))
        ended = done.stdout.count("finalised") + done.stdout.count("done")
        assert done.returncode == 0 and ended == (8 if late else 5), (done.stdout, done.stderr)
        assert done.stdout.count("finalised") >= 2, "no rank sends what both try to receive"
