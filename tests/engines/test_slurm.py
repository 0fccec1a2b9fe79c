"""Groups under Slurm: a real cluster of one node."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import slurm_node

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "engines" / "allreduce.py")
RIGHT = "the sum of 4 ranks over tcp is right"

pytestmark = pytest.mark.skipif(
    bool(slurm_node.missing()),
    reason=f"Slurm is not installed: no {', '.join(slurm_node.missing())} "
    "(apt-get install slurmctld slurmd slurm-client munge)",
)

# Each group makes a file, and waits until all groups have made theirs, so that all run at once.
TOGETHER = """
import os, sys, time
import numpy as np
import skyphos as sky

folder, name, groups = sys.argv[1], sys.argv[2], int(sys.argv[3])
with sky.init(timeout=60) as comm:
    if comm.rank == 0:
        open(f"{folder}/{name}", "w").close()
    deadline = time.monotonic() + 60
    while len(os.listdir(folder)) < groups:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    total = comm.allreduce(np.full(5, comm.rank + 1.0))
    assert (total == comm.size * (comm.size + 1) / 2).all()
    if comm.rank == 0:
        print(f"{name} has {comm.size}")
"""

KILLED = """
import os
import numpy as np
import skyphos as sky

comm = sky.init(timeout=60)
try:
    comm.barrier()
    if comm.rank == 2:
        os.kill(os.getpid(), 9)
    while True:
        comm.allreduce(np.ones(10))
except sky.PeerLost as lost:
    os.write(1, f"rank {comm.rank} lost {lost.rank}\\n".encode())
    raise SystemExit(1)
"""

MANY_GROUPS = """
import numpy as np
import skyphos as sky

kept = [sky.init(timeout=60) for _ in range(3)]
for _ in range(10):
    with sky.init(timeout=60) as comm:
        assert comm.allreduce(np.ones(1)) == comm.size
assert all(comm.allreduce(np.ones(1)) == comm.size for comm in kept)
if comm.rank == 0:
    print("all right")
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm_node.Cluster]:
    with slurm_node.cluster() as here:
        yield here


def test_srun_without_a_process_manager(cluster: slurm_node.Cluster) -> None:
    done = cluster.run("srun", "-n", "4", "--mpi=none", sys.executable, EXAMPLE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(RIGHT), done
    assert len(done.stdout.splitlines()) == 1


def test_srun_with_its_process_manager(cluster: slurm_node.Cluster) -> None:
    done = cluster.run("srun", "-n", "4", "--mpi=pmi2", sys.executable, EXAMPLE)
    assert done.returncode == 0, done.stderr
    # Over MPI if a library is installed.
    assert done.stdout.startswith("the sum of 4 ranks over"), done


def test_jobs_on_one_node_at_once(cluster: slurm_node.Cluster, tmp_path: Path) -> None:
    started = [
        cluster.start("srun", "-n", "2", sys.executable, "-c", TOGETHER, str(tmp_path), f"job{job}", "3")
        for job in range(3)
    ]
    said = [job.communicate(timeout=90) for job in started]
    assert [job.returncode for job in started] == [0, 0, 0], said
    assert [out for out, _ in said] == [f"job{job} has 2\n" for job in range(3)]


def test_a_batch_script_with_two_steps_at_once(cluster: slurm_node.Cluster, tmp_path: Path) -> None:
    (tmp_path / "together.py").write_text(TOGETHER)
    folder = tmp_path / "groups"
    folder.mkdir()
    step = f"srun -n 2 --exact {sys.executable} {tmp_path}/together.py {folder}"
    script = tmp_path / "job.sh"
    script.write_text(
        f"#!/bin/sh\n#SBATCH --ntasks=4 --output={tmp_path}/out\n"
        # The script itself is one process, though Slurm's variables say four tasks.
        f"{sys.executable} -c 'import skyphos as sky; print(\"alone\", sky.init().size)'\n"
        f"{step} a 2 & one=$!\n{step} b 2 & other=$!\nwait $one && wait $other\n"
    )
    done = cluster.run("sbatch", "--wait", str(script))
    said = (tmp_path / "out").read_text()
    assert done.returncode == 0, said
    assert sorted(said.splitlines()) == ["a has 2", "alone 1", "b has 2"]


def test_the_batch_script_of_the_guide(cluster: slurm_node.Cluster, tmp_path: Path) -> None:
    root = Path(EXAMPLE).parents[2]
    options = [f"--chdir={root}", f"--output={tmp_path}/out"]
    path = f"{Path(sys.executable).parent}:{cluster.env['PATH']}"
    done = cluster.run("sbatch", "--wait", *options, str(root / "examples" / "engines" / "slurm.sh"), PATH=path)
    said = (tmp_path / "out").read_text()
    assert done.returncode == 0 and said.startswith(RIGHT), said


def test_a_killed_rank_is_named_and_the_job_ends(cluster: slurm_node.Cluster) -> None:
    before = set(cluster.processes())
    done = cluster.run("srun", "-n", "4", sys.executable, "-c", KILLED)
    assert done.returncode == 128 + 9, done
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} lost 2" for rank in (0, 1, 3)], done.stderr
    cluster.wait_until_idle()
    assert not [line for line in cluster.processes(before).values() if "skyphos" in line]


def test_groups_one_after_another_in_one_step(cluster: slurm_node.Cluster) -> None:
    done = cluster.run("srun", "-n", "4", sys.executable, "-c", MANY_GROUPS)
    assert (done.returncode, done.stdout) == (0, "all right\n"), done.stderr


def test_mpi_without_a_process_manager_is_explained(cluster: slurm_node.Cluster) -> None:
    pytest.importorskip("mpi4py", reason="no MPI library (pip install mpich mpi4py)")
    script = "import skyphos as sky\ntry: sky.init(transport='mpi', timeout=20)\nexcept sky.SkyphosError as e: print(e)"
    done = cluster.run("srun", "-n", "2", "--mpi=none", sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2, done
    assert all("2" in line and "mpi" in line.lower() for line in done.stdout.splitlines()), done
