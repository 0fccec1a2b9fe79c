"""Memory of a sparse allreduce: a rank's peak, relative to its input and the result.

    .venv/bin/python bench/memory.py                # `Comm.allreduce`, each algorithm
    .venv/bin/python bench/memory.py --torch        # PyTorch's `all_reduce`, ours and Gloo's (`make .venv/.torch`)

Each rank has rows of 64 float32 at random indices below 100,000,000, 50 MB by default (`--megabytes`). Few indices are
common, so the result is as large as all inputs. Each line has a new group. The figure is the peak of resident memory
above that of an idle rank, relative to input + result; the largest of any rank counts. The least possible is 1. Linux
only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

N, WIDTH = 10**8, 64
ALGORITHMS = ["auto", "recursive_doubling", "split_allgather", "butterfly", "ring", "allgather"]
MB = 1e6


def resident(key: str) -> float:
    """A memory value of this process in MB: ``VmRSS`` is the present one, ``VmHWM`` the peak."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{key}:")[1].split()[0]) * 1024 / MB


def indices_of(rank: int, call: int, rows: int) -> np.ndarray:
    """Indices of a rank's rows in a call."""
    drawn = np.random.default_rng([rank, call]).integers(0, N, rows)
    return np.unique(drawn)


def with_arrays(options: argparse.Namespace) -> Any:
    """Join a group. Returns the rank, and a function that makes a call on arrays: MB of its input, result and peak."""
    import skyphos as sky

    comm = sky.init()
    comm.allreduce(np.ones(1))
    rows, idle = int(options.megabytes * MB / (4 * WIDTH)), resident("VmRSS")

    def call(number: int) -> tuple[float, float, float]:
        index = indices_of(comm.rank, number, rows)
        mine = sky.SparseVector(index, np.ones((len(index), WIDTH), np.float32), N)
        comm.barrier()
        forget_peak()
        sums = comm.allreduce(mine, algorithm=options.algorithm)
        return size(mine.indices, mine.values), size(sums.indices, sums.values), resident("VmHWM") - idle

    return comm.rank, call


def with_tensors(options: argparse.Namespace) -> Any:
    """Like :func:`with_arrays`, for PyTorch's COO tensors."""
    import torch
    import torch.distributed as dist

    import skyphos.torch

    skyphos.torch.register()
    warnings.simplefilter("ignore")
    dist.init_process_group(options.algorithm)
    dist.all_reduce(torch.ones(1))
    rows, idle = int(options.megabytes * MB / (4 * WIDTH)), resident("VmRSS")

    def call(number: int) -> tuple[float, float, float]:
        index = torch.from_numpy(indices_of(dist.get_rank(), number, rows))[None]
        mine = torch.sparse_coo_tensor(index, torch.ones(index.shape[1], WIDTH), (N, WIDTH), check_invariants=False)
        own = float(mine._indices().nbytes + mine._values().nbytes)
        dist.barrier()
        forget_peak()
        dist.all_reduce(mine)
        return own / MB, float(mine._indices().nbytes + mine._values().nbytes) / MB, resident("VmHWM") - idle

    return dist.get_rank(), call


def end_group() -> None:
    """Leave the group: otherwise Gloo's threads abort the process at its end."""
    import torch.distributed as dist

    dist.destroy_process_group()


def forget_peak() -> None:
    """Reset ``VmHWM`` to the present memory."""
    Path("/proc/self/clear_refs").write_text("5")


def size(*arrays: np.ndarray) -> float:
    """Size of arrays in MB."""
    return sum(array.nbytes for array in arrays) / MB


def one_rank(options: argparse.Namespace) -> None:
    """Make calls of one algorithm or backend; write their memory to the folder."""
    rank, call = (with_tensors if options.torch else with_arrays)(options)
    took = [call(number) for number in range(options.calls)]
    if options.torch:
        end_group()
    Path(options.folder, str(rank)).write_text(json.dumps(took))


def group(options: argparse.Namespace, algorithm: str) -> list[list[list[float]]]:
    """Memory of the calls of a new group, by rank."""
    with tempfile.TemporaryDirectory() as folder:
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks)]
        launcher = torchrun if options.torch else ["skyphos.cli", "run", "-n", str(options.ranks)]
        own = ["--folder", folder, "--algorithm", algorithm, *sys.argv[1:]]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-m", *launcher, __file__, *own], env=env, check=True)
        return [json.loads(Path(folder, str(rank)).read_text()) for rank in range(options.ranks)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--torch", action="store_true", help="PyTorch's all_reduce, ours and Gloo's")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--megabytes", type=float, default=50, help="size of a rank's input")
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--only", help="one algorithm or backend")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--algorithm", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        return one_rank(options)
    names = ["skyphos", "gloo"] if options.torch else ALGORITHMS
    table = Table(title=f"peak memory of {options.ranks} ranks, relative to input and result")
    for heading in ("", "input MB", "result MB", *(f"call {number + 1}" for number in range(options.calls))):
        table.add_column(heading, justify="left" if not heading else "right")
    for name in [options.only] if options.only else names:
        by_rank = group(options, name)
        own, result, _ = by_rank[0][0]
        by_call = zip(*by_rank, strict=True)
        ratios = [max(peak / (own + result) for own, result, peak in ranks) for ranks in by_call]
        table.add_row(name, f"{own:.0f}", f"{result:.0f}", *(f"{ratio:.2f}" for ratio in ratios))
    Console().print(table)


if __name__ == "__main__":
    main()
