"""The backend beyond single collectives: ``torch.compile``, PyTorch's debug level, memory, monitored barriers,
time-outs, and the end of a process.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import skyphos as sky  # noqa: E402
import skyphos.torch as st  # noqa: E402
from torch_ranks import Ranks  # noqa: E402


def compiled() -> None:
    """Compiled code that calls collectives, directly and through DDP."""
    rank, size = dist.get_rank(), dist.get_world_size()

    @torch.compile(backend="eager")
    def reduced(x: Any) -> Any:
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        gathered = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(gathered, x)
        return sum(gathered) + 1

    assert reduced(torch.full((3,), float(rank))).tolist() == [size * sum(range(size)) + 1] * 3

    def trained(wrap: Callable[[Any], Any]) -> Any:
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(6, 70), nn.Tanh(), nn.Linear(70, 5))
        model = DistributedDataParallel(net)
        model.register_comm_hook(st.TopK(k=512, levels=1), st.topk_hook)
        model = wrap(model)
        for step in range(3):
            net.zero_grad()
            model(torch.full((4, 6), float(rank + step))).pow(2).sum().backward()
        return [one.grad for one in net.parameters()]

    plain, traced = trained(lambda model: model), trained(lambda model: torch.compile(model, backend="eager"))
    for ours, theirs in zip(traced, plain, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_torch_compile(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(compiled)


def under_debug_level() -> None:
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    rank, size = dist.get_rank(), dist.get_world_size()
    for group in (None, dist.new_group(), dist.new_group(backend="gloo")):
        x = torch.full((3,), float(rank))
        dist.all_reduce(x, group=group)
        assert x.tolist() == [sum(range(size))] * 3
        dist.barrier(group=group)
    dist.monitored_barrier()
    x = torch.full((3,), float(rank))
    work = dist.isend(x, (rank + 1) % size)
    received = torch.empty(3)
    dist.recv(received, (rank - 1) % size)
    work.wait()
    assert received.tolist() == [float((rank - 1) % size)] * 3
    model = DistributedDataParallel(nn.Linear(30, 40))
    model.register_comm_hook(st.TopK(k=4, levels=1), st.topk_hook)
    model(torch.ones(2, 30)).sum().backward()
    assert torch.isfinite(model.module.weight.grad).all()


def test_debug_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    group = Ranks(2)
    try:
        group.run(under_debug_level)
    finally:
        group.close()


def megabytes(key: str) -> float:
    return int(Path("/proc/self/status").read_text().split(key + ":")[1].split()[0]) / 1000


def peak_memory_ratio() -> float:
    """Peak memory of a sparse allreduce, relative to input and result: 50 MB a rank, without common rows."""
    dist.all_reduce(torch.ones(1))
    idle = megabytes("VmRSS")
    rows = torch.arange(dist.get_rank(), 390_000, 2) * 256
    mine = torch.sparse_coo_tensor(rows[None], torch.ones(len(rows), 64), (10**8, 64), check_invariants=False)
    own = mine._values().nbytes
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")
    dist.all_reduce(mine)
    peak = megabytes("VmHWM") - idle
    assert mine._nnz() == 390_000 and bool((mine._values() == 1).all())
    return peak / ((own + mine._values().nbytes) / 1e6)


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
def test_memory_of_a_sparse_allreduce() -> None:
    group = Ranks(2)  # new processes, because memory that earlier tests freed would hide a peak
    try:
        assert all(1 < ratio < 1.75 for ratio in group.run(peak_memory_ratio)), "input and result"
    finally:
        group.close()


def comes_late() -> None:
    """The last rank makes the call when the others have timed out; then all repeat it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group()
    store = dist.distributed_c10d._get_default_store()
    soon, late = timedelta(seconds=3), size - 1
    dist.monitored_barrier(group)
    if rank == late:
        store.wait([f"gave up {other}" for other in range(late)])
    with pytest.raises(sky.errors.Timeout) as caught:
        dist.monitored_barrier(group, timeout=soon)
    expected = "from rank 0: it does not answer" if rank == late else f"Rank {late} failed to pass monitoredBarrier"
    assert expected in str(caught.value) and caught.value.missing == ((0,) if rank == late else (late,))
    store.set(f"gave up {rank}", "")
    dist.monitored_barrier(group, timeout=timedelta(seconds=60))


@pytest.mark.parametrize("size", [2, 4])
def test_barrier_says_who_is_missing(ranks: Callable[[int], Ranks], size: int) -> None:
    ranks(size).run(comes_late)


def takes_its_time(what: str) -> None:
    """A wait times out before the last rank makes the call; the call continues, and ends when that rank makes it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    late = size - 1
    x = torch.full((3000,), float(rank))
    calls: dict[str, Callable[[], Any]] = {
        "dense": lambda: dist.all_reduce(x, async_op=True),
        "sparse": lambda: dist.all_reduce(x, async_op=True),
        "message": lambda: dist.isend(x, 0) if rank == late else dist.irecv(x, late),
    }
    if what == "sparse":
        x = torch.sparse_coo_tensor([[rank, 7]], [1.0, 2.0], (9,), dtype=torch.float32)
    if rank == late:
        store.wait([f"{what}: {other} has waited" for other in range(late)])
        calls[what]().wait()
    elif what != "message" or rank == 0:
        work, begin = calls[what](), time.monotonic()
        with pytest.raises(sky.errors.Timeout):
            work.wait(timedelta(seconds=0.2))
        assert 0.2 <= time.monotonic() - begin < 30 and not work.get_future().done()
        store.set(f"{what}: {rank} has waited", "")
        work.wait()
    else:
        store.set(f"{what}: {rank} has waited", "")
    if what == "sparse":
        want = torch.tensor([1.0] * size + [0.0] * (9 - size))
        want[7] = 2.0 * size
        assert torch.equal(x.to_dense(), want)
    elif what == "dense" or rank == 0:
        assert torch.equal(x, torch.full((3000,), float(sum(range(size)) if what == "dense" else late)))


@pytest.mark.parametrize("what", ["dense", "sparse", "message"])
@pytest.mark.parametrize("size", [2, 3])
def test_wait_with_a_time_out(ranks: Callable[[int], Ranks], size: int, what: str) -> None:
    ranks(size).run(takes_its_time, what)


def by_device() -> None:
    """CPU tensors use this backend, the only one that averages sparse ones; hooks accept such a group."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.full((3,), float(rank))
    dist.all_reduce(x)
    assert x.tolist() == [sum(range(size))] * 3
    sparse = torch.sparse_coo_tensor([[rank]], [1.0], (size,))
    dist.all_reduce(sparse, dist.ReduceOp.AVG)
    assert sparse.to_dense().tolist() == [1 / size] * size
    with pytest.raises(sky.errors.BadInput, match="have no bits"):
        dist.all_reduce(x, dist.ReduceOp.BAND)
    model = DistributedDataParallel(nn.Linear(3, 5, bias=False))
    model.register_comm_hook(st.TopK(k=4, levels=1), st.topk_hook)
    model(torch.full((1, 3), float(rank))).sum().backward()
    assert torch.equal(model.module.weight.grad, torch.full((5, 3), sum(range(size)) / size))


def test_a_backend_by_device() -> None:
    group = Ranks(2, "cpu:skyphos,cuda:gloo")
    try:
        group.run(by_device)
    finally:
        group.close()


# -- The end of a process.

EXITS_AT_WORK = """
import sys
import torch
from skyphos.torch.backend.ordered_worker import OrderedWorker, Promise

sys.setswitchinterval(1e-6)
workers = [OrderedWorker(f"worker {number}") for number in range(8)]
pairs = [(torch.zeros(1000), torch.ones(1000)) for _ in workers]
for worker, (target, source) in zip(workers, pairs, strict=True):
    for _ in range(1000):
        worker.submit(lambda target=target, source=source: [target.copy_(source) for _ in range(100)], Promise())
"""


def test_an_old_pytorch_is_refused() -> None:
    """PyTorch before 2.14 has no backends made in Python, and would end in a TypeError of its own."""
    script = "import torch; torch.__version__ = type(torch.__version__)('2.13.1'); import skyphos.torch"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("ImportError: skyphos.torch needs PyTorch 2.14 or newer, and this is 2.13.1"), ended.stderr


def test_a_process_that_exits_while_workers_run() -> None:
    """C++ once aborted such a process (status 134), when the interpreter stopped a thread in an operation of torch."""
    for _ in range(3):
        ended = subprocess.run(
            [sys.executable, "-c", EXITS_AT_WORK], capture_output=True, text=True, timeout=60, check=False
        )
        assert ended.returncode == 0, ended.stderr
