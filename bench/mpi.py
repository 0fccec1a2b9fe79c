"""Skyphos over an MPI library, compared with the library's own calls through mpi4py in one run: small and large dense
allreduces of 2 processes, and a sparse one of 8.

The bars: 8 bytes at most 2.5 times mpi4py's time; 64 MB at most 1/0.9 of it; 131,072 uniform entries of 2^24 a rank
(8 ranks) at most a quarter of MPICH's dense allreduce, and half of gathering and summing. ``tcp`` is the same through
Skyphos's own shared memory.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import skyphos as sky
from common import check, median_ratio, report

N, ENTRIES, RANKS = 1 << 24, 131_072, 8
ROUNDS = {8: 40, 1 << 20: 30, 64 << 20: 12}
CALLS = {8: 2000, 1 << 20: 20, 64 << 20: 1}

Variants = dict[str, Callable[[], Any]]


def rounds(world: Any, variants: Variants, count: int, calls: int) -> dict[str, list[float]]:
    """Seconds per call of the slowest rank; the variants alternate in each round."""
    spent: dict[str, list[float]] = {name: [] for name in variants}
    for round_ in range(count + 1):
        for name, variant in variants.items():
            world.Barrier()
            start = time.perf_counter()
            for _ in range(calls):
                variant()
            took = world.allreduce((time.perf_counter() - start) / calls, op=_mpi().MAX)
            if round_:
                spent[name].append(took)
    return spent


def _mpi() -> Any:
    from mpi4py import MPI

    return MPI


def groups(world: Any) -> dict[str, sky.Comm]:
    """A group over the library, and one of the same processes over TCP, which on one host is shared memory."""
    address = None
    if world.rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
    address = world.bcast(address)
    tcp = sky.init(rank=world.rank, world_size=world.size, rendezvous=address, transport="tcp", threads=1)
    return {"mpi": sky.init(transport="mpi", threads=1), "tcp": tcp}


def dense() -> None:
    world = _mpi().COMM_WORLD
    comms = groups(world)
    for size, count in ROUNDS.items():
        x = np.random.default_rng(world.rank).random(size // 8)
        want = np.empty_like(x)
        world.Allreduce(x, want)
        out = {name: np.empty_like(x) for name in ("mpi4py", *comms)}

        def ours(name: str, x: Any = x, out: Any = out) -> Callable[[], Any]:
            return lambda: comms[name].allreduce(x, out=out[name])

        variants: Variants = {"mpi4py": lambda x=x, out=out: world.Allreduce(x, out["mpi4py"])}
        variants |= {name: ours(name) for name in comms}
        spent = rounds(world, variants, count, CALLS[size])
        for name, got in out.items():
            check(name, got, want)
        if world.rank == 0:
            bar = {8: 2.5, 64 << 20: 1 / 0.9}.get(size, float("inf"))
            title = f"dense allreduce of {size} bytes, {world.size} processes: over MPI, relative to mpi4py's"
            report(title, spent, median_ratio(spent["mpi"], spent["mpi4py"]), bar)
    close(comms)


def sparse() -> None:
    world = _mpi().COMM_WORLD
    comms = groups(world)
    rng = np.random.default_rng(world.rank)
    indices = np.sort(rng.choice(N, ENTRIES, replace=False)).astype(np.int32)
    values = rng.standard_normal(ENTRIES).astype(np.float32)
    x = sky.SparseVector(indices, values, n=N)
    full, out = x.to_dense(), np.empty(N, np.float32)
    results: dict[str, Any] = {}

    def whole() -> None:
        world.Allreduce(full, out)

    def gather() -> None:
        counts = np.empty(world.size, np.int64)
        world.Allgather(np.array([ENTRIES]), counts)
        ends = np.cumsum(counts)
        at, numbers = np.empty(ends[-1], np.int32), np.empty(ends[-1], np.float32)
        world.Allgatherv(indices, [at, counts])
        world.Allgatherv(values, [numbers, counts])
        total = np.zeros(N, np.float32)
        for begin, end in zip(ends - counts, ends, strict=True):
            total[at[begin:end]] += numbers[begin:end]
        results["gather and sum"] = total

    def ours(name: str) -> Callable[[], None]:
        return lambda: results.__setitem__(name, comms[name].allreduce(x))

    variants: Variants = {"mpi4py, dense": whole, "gather and sum": gather, **{name: ours(name) for name in comms}}
    spent = rounds(world, variants, 15, 1)
    check("gather and sum", results["gather and sum"], out, 1e-5)
    for name in comms:
        check(name, results[name].to_dense(), out, 1e-5)
    if world.rank == 0:
        cores = len(os.sched_getaffinity(0))
        title = f"sparse allreduce, {ENTRIES} of 2^24 float32, {world.size} processes on {cores} cores"
        report(f"{title}: over MPI / dense", spent, median_ratio(spent["mpi"], spent["mpi4py, dense"]), 0.25)
        report("  over MPI / gathering and summing", spent, median_ratio(spent["mpi"], spent["gather and sum"]), 0.5)
    close(comms)


def close(comms: dict[str, sky.Comm]) -> None:
    for comm in comms.values():
        comm.close()


def in_rust(mpiexec: Path) -> None:
    """Print the time of an allreduce of the same 8 bytes without Python."""
    root = Path(__file__).parent.parent
    subprocess.run(
        ["cargo", "build", "--quiet", "--release", "-p", "skyphos", "--example", "mpi_call"], cwd=root, check=True
    )
    env = os.environ | {"SKYPHOS_LIBMPI": str(mpiexec.parent.parent / "lib" / "libmpi.so.12")}
    command = [mpiexec, "-n", "2", root / "target/release/examples/mpi_call"]
    runs = [float(subprocess.run(command, env=env, check=True, capture_output=True).stdout) for _ in range(5)]
    took = f"{1e6 * median(runs):.2f} us (median of 5 runs, each the best of 9 rounds)"
    print(f"dense allreduce of 8 bytes over MPI, 2 processes, in Rust: {took}")


def main() -> None:
    if len(sys.argv) > 1:
        {"dense": dense, "sparse": sparse}[sys.argv[1]]()
        return
    mpiexec = Path(sys.executable).parent / "mpiexec"
    if not mpiexec.exists():
        print("skipped: no mpiexec beside this Python (pip install mpich mpi4py)")
        return
    in_rust(mpiexec)
    env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    for part, ranks in (("dense", 2), ("sparse", RANKS)):
        subprocess.run([mpiexec, "-n", str(ranks), sys.executable, __file__, part], env=env, check=True)


if __name__ == "__main__":
    main()
