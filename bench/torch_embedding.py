"""Gradients of a sparse embedding in PyTorch: Skyphos and Gloo with the same `all_reduce` of the same COO tensors.

    sudo .venv/bin/python bench/torch_embedding.py                  # 8 hosts at 1 Gbit/s; the bar: 4 times as fast
    .venv/bin/python bench/torch_embedding.py --place host          # 8 ranks of one host; the bar: 5 times as fast

An embedding of 1,000,000 rows of 64 float32, of which each rank's batch touches 4,096 different ones, drawn with
P(i) ~ 1/i^1.1 (`--rows uniform`: uniform). Needs PyTorch (`make .venv/.torch`). A time is that of the slowest rank
for one of several consecutive calls, as in a training job: a single call would also suffer from the state of caches and
scheduler that the other backend left. The backends alternate, and the sums are compared. The floor is the data that a
rank must receive, the others' part of the sum, at the link's rate.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from datetime import timedelta
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from common import zipf_distinct
from on_hosts import command_of_rank, rows_of_ranks

#: Warm-up calls, in which `auto` makes its tries.
WARM = 24
#: Consecutive calls that are timed together.
IN_A_ROW = 4
RANKS, N, WIDTH, TOUCHED, PORT = 8, 1_000_000, 64, 4096, 29940
#: Bytes a second of links.
RATES = {"1gbit": 125e6, "250mbit": 31.25e6, "100mbit": 12.5e6}
BACKENDS = ("skyphos", "gloo")


def gradient(rank: int, rows: str) -> Any:
    """A gradient as a backward pass makes it."""
    import torch

    rng = np.random.default_rng(rank)
    places = rng.choice(N, TOUCHED, replace=False) if rows == "uniform" else zipf_distinct(rng, N, TOUCHED, 1.1)
    values = rng.integers(-8, 8, (TOUCHED, WIDTH)).astype(np.float32)
    return torch.sparse_coo_tensor(
        torch.from_numpy(places)[None], torch.from_numpy(values), (N, WIDTH), check_invariants=False
    )


def one_rank(options: argparse.Namespace) -> None:
    """Run a rank: both backends in turn."""
    import torch
    import torch.distributed as dist

    import skyphos.torch

    skyphos.torch.register()
    torch.set_num_threads(1)
    rank, size = int(os.environ["SKYPHOS_RANK"]), int(os.environ["SKYPHOS_WORLD_SIZE"])
    host = os.environ["SKYPHOS_RENDEZVOUS"].rpartition(":")[0]
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(PORT + 1))
    wait = timedelta(seconds=300)
    dist.init_process_group("gloo", init_method=f"tcp://{host}:{PORT + 1}", rank=rank, world_size=size, timeout=wait)
    groups = {"gloo": dist.group.WORLD, "skyphos": dist.new_group(backend="skyphos")}
    mine = gradient(rank, options.rows)
    seconds: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    for round_ in range(options.rounds + WARM // IN_A_ROW):
        found = {}
        for backend in BACKENDS:
            tensors = [mine.clone() for _ in range(IN_A_ROW)]
            dist.barrier(group=groups[backend])
            start = time.perf_counter()
            for tensor in tensors:
                dist.all_reduce(tensor, group=groups[backend])
            took = (time.perf_counter() - start) / IN_A_ROW
            if round_ >= WARM // IN_A_ROW:
                seconds[backend].append(took)
            found[backend] = tensors[-1].coalesce()
        ours, theirs = found["skyphos"], found["gloo"]
        same = torch.equal(ours.indices(), theirs.indices()) and torch.equal(ours.values(), theirs.values())
        if not same:
            raise SystemExit(f"rank {rank}: other sums")
    print(json.dumps([seconds, ours._nnz()]), flush=True)
    dist.destroy_process_group()


def on_one_host() -> list[Any]:
    """The lines of ranks that share this host."""
    common = {"SKYPHOS_WORLD_SIZE": str(RANKS), "SKYPHOS_RENDEZVOUS": f"127.0.0.1:{PORT}", "OMP_NUM_THREADS": "1"}
    common |= {"LOCAL_WORLD_SIZE": str(RANKS), "WORLD_SIZE": str(RANKS), "SKYPHOS_PROFILE": "none"}
    ranks = [
        subprocess.Popen(
            command_of_rank(__file__),
            env=os.environ | common | {"SKYPHOS_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    said = [process.communicate(timeout=900)[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise SystemExit("a rank failed")
    return [json.loads(line) for out in said for line in out.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--place", choices=["lab", "host"], default="lab")
    parser.add_argument("--rate", choices=list(RATES), default="1gbit")
    parser.add_argument("--rows", choices=["power", "uniform"], default="power")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return one_rank(options)
    lab = options.place == "lab"
    rows = rows_of_ranks(command_of_rank(__file__), RANKS, 1, options.rate, PORT) if lab else on_one_host()
    slowest = {b: [max(each) for each in zip(*(row[0][b] for row in rows), strict=True)] for b in BACKENDS}
    ratios = [theirs / ours for ours, theirs in zip(slowest["skyphos"], slowest["gloo"], strict=True)]
    bar = 4 if lab else 5
    where = f"8 hosts at {options.rate}" if lab else "8 ranks of one host"
    table = Table(title=f"all_reduce of a sparse gradient, {where}: {rows[0][1]:,} of 1,000,000 rows of 64 in the sum")
    for column in ("backend", "median, ms", "fastest", "slowest"):
        table.add_column(column, justify="left" if column == "backend" else "right")
    for backend in BACKENDS:
        times = slowest[backend]
        cells = (f"{1e3 * seconds:,.1f}" for seconds in (median(times), min(times), max(times)))
        table.add_row(backend, *cells)
    Console().print(table)
    if lab:
        floor = rows[0][1] * (RANKS - 1) / RANKS * (WIDTH * 4) / RATES[options.rate]
        print(f"floor of the link: {1e3 * floor:.1f} ms")
    print(f"Gloo takes {median(ratios):.2f} times as long (bar {bar}: {'met' if median(ratios) >= bar else 'NOT MET'})")


if __name__ == "__main__":
    main()
