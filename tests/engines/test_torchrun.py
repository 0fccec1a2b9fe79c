"""Groups under torchrun: through its store, again after a restart, several in one process."""

from __future__ import annotations

import importlib.util
import itertools
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import skyphos as sky
from skyphos.launch import Bootstrap, torchrun
from skyphos.launch.torch_store import listen

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "engines" / "allreduce.py")
RIGHT = "the sum of 4 ranks over tcp is right"

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="no torch (pip install 'skyphos[torchrun]')"
)

# In the first attempt a rank is killed while all are in a call; in the second all is well.
KILLED = """
import os, sys, time
import numpy as np
import skyphos as sky

flag = sys.argv[1]
first = not os.path.exists(flag)
comm, other = sky.init(timeout=60), sky.init(timeout=60)
for group in (comm, other):
    assert (group.allreduce(np.ones(3)) == 4).all()
os.write(1, f"{'first' if first else 'second'} {comm.rank} {os.environ['TORCHELASTIC_RESTART_COUNT']}\\n".encode())
if first:
    try:
        comm.barrier()
        if comm.rank == 1:
            open(flag, "w").close()
            os.kill(os.getpid(), 9)
        while True:
            other.allreduce(np.ones(3))
    except sky.PeerLost as lost:
        os.write(1, f"lost {lost.rank}\\n".encode())
        # torchrun, which polls every 0.1 s, ends this rank. If it failed itself, its node would count another restart.
        time.sleep(60)
"""

BESIDE = """
import sys
import numpy as np
import skyphos as sky
import torch, torch.distributed as dist

if sys.argv[1] == "torch":
    dist.init_process_group("gloo")
comm = sky.init(timeout=60)
if sys.argv[1] == "skyphos":
    dist.init_process_group("gloo")
t = torch.ones(3)
dist.all_reduce(t)
assert t.tolist() == [2, 2, 2] and (comm.allreduce(np.ones(3)) == 2).all()
dist.destroy_process_group()
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *words]


def environment(**more: str) -> dict[str, str]:
    foreign = ("SKYPHOS_", "SLURM_", "PMI_", "OMPI_", "MASTER_", "TORCHELASTIC_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return clean | {"OMP_NUM_THREADS": "1"} | more


def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a job under torchrun; return its result."""
    return subprocess.run(
        command(*words), env=environment(**more), capture_output=True, text=True, timeout=120, check=False
    )


@needs_torch
@pytest.mark.parametrize("share", ["0", "1"], ids=["agent holds the port", "port is free"])
def test_a_group(share: str) -> None:
    words = ["--standalone", "--nproc-per-node", "4", EXAMPLE]
    done = run(*words, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=share)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(RIGHT) and len(done.stdout.splitlines()) == 1, done.stdout


@needs_torch
def test_restart_of_a_killed_rank_with_two_groups(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(KILLED)
    words = ["--nproc-per-node", "4", "--max-restarts", "1", str(tmp_path / "job.py"), str(tmp_path / "flag")]
    done = run(*words)
    assert done.returncode == 0, done.stderr
    expected = {f"{attempt} {rank} {count}" for count, attempt in enumerate(("first", "second")) for rank in range(4)}
    # Ranks that torchrun ends immediately cannot print their loss.
    assert set(done.stdout.splitlines()) - {"lost 1"} == expected


@needs_torch
def test_nodes_that_count_restarts_differently(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(KILLED)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [
        *(
            "--nnodes",
            "2",
            "--nproc-per-node",
            "2",
            "--max-restarts",
            "1",
            "--rdzv-backend",
            "c10d",
            "--rdzv-id",
            "job",
        ),
        *("--rdzv-endpoint", f"localhost:{port}", str(tmp_path / "job.py"), str(tmp_path / "flag")),
    ]
    pipe = subprocess.PIPE
    nodes = [
        subprocess.Popen(command(*words), env=environment(), stdout=pipe, stderr=pipe, text=True) for _ in range(2)
    ]
    try:
        said = [node.communicate(timeout=120) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], said
    second = [line.split() for out, _ in said for line in out.splitlines() if line.startswith("second")]
    assert sorted(rank for _, rank, _ in second) == ["0", "1", "2", "3"], said
    # What this test is for: the node whose rank was killed counts a restart, the other does not.
    assert {count for _, _, count in second} == {"0", "1"}, said


@needs_torch
@pytest.mark.parametrize("first", ["torch", "skyphos"])
def test_a_torch_group_in_the_same_process(first: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(BESIDE)
    done = run("--standalone", "--nproc-per-node", "2", str(tmp_path / "job.py"), first)
    assert done.returncode == 0, done.stderr


def test_importing_skyphos_imports_no_torch() -> None:
    script = "import sys, skyphos as sky; sky.init(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], env=environment(), check=True)


def test_without_torch_the_place_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Bootstrap(1, 2, "127.0.0.1:7001", launcher="torchrun")
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert torchrun.meet(place, 1.0) is place


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store like torchrun's, at MASTER_PORT."""
    distributed = pytest.importorskip("torch.distributed")
    server = distributed.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=30))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    monkeypatch.delenv("SKYPHOS_RENDEZVOUS", raising=False)
    return server


def place_of(rank: int, **changes: Any) -> Bootstrap:
    return Bootstrap(rank, 2, "127.0.0.1:7001", local_rank=rank, local_size=2, launcher="torchrun", **changes)


def test_the_address_of_a_dead_rank_0_is_ignored(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchrun, "_groups", itertools.repeat(0))  # both ranks are in this process
    with socket.create_server(("127.0.0.1", 0)) as gone:
        store.set("skyphos/job/0", f"127.0.0.1:{gone.getsockname()[1]} old")
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(torchrun.meet, place_of(1), 30.0)
        with pytest.raises(TimeoutError):
            reader.result(0.5)
        first = torchrun.meet(place_of(0), 30.0)
        second = reader.result(30)
    assert first.listen_fd is not None and first.token is not None
    assert (second.rendezvous, second.token) == (first.rendezvous, first.token)
    os.close(first.listen_fd)


@pytest.mark.parametrize(("master", "ours"), [("198.51.100.7", False), (socket.gethostname(), True)])
def test_rank_0_is_where_others_reach_it(master: str, ours: bool) -> None:
    try:
        listener, address = listen(master, 7000, one_host=False)
    except OSError as error:
        pytest.skip(f"no network here: {error}")
    with listener:
        assert listener.getsockname()[0] == "0.0.0.0"
        host, _, port = address.rpartition(":")
        assert int(port) == listener.getsockname()[1]
        assert (host == master) == ours


def test_a_rank_0_that_does_not_come_is_named(store: Any) -> None:
    with pytest.raises(sky.Timeout, match=r"rank 0 did not come .* it has not said where it is") as caught:
        torchrun.meet(place_of(1), 1.0)
    assert caught.value.missing == (0,)


def test_an_unreachable_store_raises(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(sky.Timeout, match=r"torchrun's store at 127\.0\.0\.1:1 cannot be reached"):
        torchrun.meet(place_of(1), 1.0)


def test_the_users_token_stays(store: Any) -> None:
    place = torchrun.meet(place_of(0, token="own"), 5.0)
    assert place.listen_fd is not None and place.token == "own"
    os.close(place.listen_fd)
