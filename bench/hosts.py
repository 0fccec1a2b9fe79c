"""Bytes on the network with several ranks per host: 2 hosts of 4, relative to the union of each host's entries.

    sudo .venv/bin/python bench/hosts.py

Hosts are network namespaces (`bench/lab/cluster.py`) whose ranks use shared memory. Bytes are those of the host's
interface per call, including frames and acknowledgements. The lower bound: the compressed bytes of an allreduce
of the hosts' unions among one rank per host. The bar: 1.1 times the lower bound with its framing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from lab.link import FRAMING
from on_hosts import command_of_rank, rows_of_ranks

HOSTS, PER_HOST, N, CALLS = 2, 4, 1 << 22, 12
ALGORITHMS = ("auto", "recursive_doubling", "butterfly", "split_allgather", "ring", "allgather")
DATA = {
    "uniform, 100,000 a rank": "uniform",
    "power law, 300,000 draws a rank": "power",
    "the same on each host": "same",
}


def entries(kind: str, rank: int) -> Any:
    """Indices of a rank; the values are whole numbers, so that sums are exact."""
    rng = np.random.default_rng([rank // PER_HOST if kind == "same" else rank, len(kind)])
    if kind == "power":
        return np.unique((np.minimum(rng.random(300_000) ** -1.25, N) - 1).astype(np.int64))
    return np.unique(rng.integers(0, N, 100_000))


def sent_bytes() -> int:
    """Bytes sent by this host's interfaces except the loopback."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split(":")[1].split()[8]) for line in lines if not line.strip().startswith("lo:"))


def one_rank() -> None:
    """Run a rank: all data and algorithms in turn; the first rank of each host prints the bytes that its host sent."""
    import skyphos as sky

    comm = sky.init(timeout=120)
    first = comm.rank % PER_HOST == 0
    hosts = comm.split(0 if first else None, 0)
    for kind in DATA.values():
        mine = entries(kind, comm.rank)
        x = sky.SparseVector(mine, np.ones(len(mine), np.float32), N)
        start = comm.rank // PER_HOST * PER_HOST
        of_host = [entries(kind, rank) for rank in range(start, start + PER_HOST)]
        want = comm.allreduce(x, algorithm="allgather").to_dense()
        if hosts is not None:
            union = np.unique(np.concatenate(of_host))
            whole = sky.SparseVector(union, np.ones(len(union), np.float32), N)
            how = hosts.allreduce(whole, algorithm="recursive_doubling", explain=True)[1]
            print(json.dumps([kind, "union", how.sent_bytes, len(union)]), flush=True)
        for algorithm in ALGORITHMS:
            options: dict[str, Any] = {"algorithm": algorithm, "explain": True}
            if algorithm == "butterfly":
                options["degrees"] = (PER_HOST, HOSTS)
            # After 24 calls `auto` has completed its trials.
            for _ in range(24 if algorithm == "auto" else 3):
                got, how = comm.allreduce(x, **options)
            comm.barrier()
            before = sent_bytes()
            for _ in range(CALLS):
                got, how = comm.allreduce(x, **options)
            comm.barrier()
            if not (got.to_dense() == want).all():
                raise SystemExit(f"{algorithm}, {kind}: wrong")
            if first:
                ran = f"{how.algorithm} {'×'.join(map(str, how.degrees))}"
                print(json.dumps([kind, algorithm, (sent_bytes() - before) / CALLS, ran]), flush=True)
            comm.barrier()
    comm.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        one_rank()
        return
    rows = rows_of_ranks(command_of_rank(__file__), HOSTS, PER_HOST, options.rate, 29950)
    table = Table(
        title=f"bytes that a host sends, relative to those of its union with framing; {HOSTS} hosts of {PER_HOST} ranks"
    )
    table.add_column("data")
    table.add_column("union with framing, KB", justify="right")
    for algorithm in ALGORITHMS:
        table.add_column(algorithm, justify="right")
    for name, kind in DATA.items():
        least = FRAMING * max(row[2] for row in rows if row[:2] == [kind, "union"])
        cells = []
        for algorithm in ALGORITHMS:
            of_hosts = [row for row in rows if row[:2] == [kind, algorithm]]
            chosen = f" ({of_hosts[0][3]})" if algorithm == "auto" else ""
            cells.append(f"{max(row[2] for row in of_hosts) / least:.2f}{chosen}")
        table.add_row(name, f"{least / 1024:,.0f}", *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
