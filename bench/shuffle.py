"""Shuffle of keyed rows, 8 map tasks a host, with and without local reduction, in one run.

    sudo .venv/bin/python bench/shuffle.py                           # 4 hosts of 8 tasks at 1 Gbit/s
    sudo .venv/bin/python bench/shuffle.py --rows 100000 --width 4

Hosts are network namespaces (`bench/lab/cluster.py`); each map task is a rank, and has `--rows` rows of `--width`
float32, with keys drawn from `--keys` ones with P(i) ~ 1/i^1.1. A time is from the first task's first batch to the
last rank's result. Bytes are those of the host's interface per call. The fewest possible: each key of a host that
another host owns is sent once, with its row; the set of keys takes log2 of the number of such sets, in bits; all of it
in full frames.
Bars: 5 times as fast with local reduction as without, and at most 1.1 times the fewest bytes.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hosts import sent_bytes
from lab.link import FRAMING
from on_hosts import command_of_rank, keyed_options, keyed_rows, rows_of_ranks

TASKS = 8
VARIANTS: dict[str, Any] = {"in the host": True, "in each task": "process", "none": False}


def one_rank(options: argparse.Namespace) -> None:
    """Run a rank: all settings alternately, several times."""
    import skyphos as sky

    comm = sky.init(timeout=300)
    keys, rows = keyed_rows(comm.rank, options.keys, options.rows, options.width)
    first, told = comm.rank % TASKS == 0, {}
    for round_ in range(options.rounds + 1):
        for name, variant in VARIANTS.items():
            comm.barrier()
            before = sent_bytes()
            comm.barrier()
            begin = time.monotonic()
            owned, sums = comm.shuffle(keys, rows, local_reduction=variant)
            end = time.monotonic()
            comm.barrier()
            order = np.argsort(owned)
            mine = (owned[order].tobytes(), sums[order].tobytes())
            if told.setdefault("right", mine) != mine:
                raise SystemExit(f"{name}: other sums")
            if round_:
                print(json.dumps([name, round_, begin, end, sent_bytes() - before if first else 0]), flush=True)
            del owned, sums
    whole = comm.allreduce(rows.sum(axis=0, dtype=np.float64))
    mine_sum = np.frombuffer(told["right"][1], np.float32).reshape(-1, options.width).sum(axis=0, dtype=np.float64)
    if not (comm.allreduce(mine_sum) == whole).all():
        raise SystemExit("rows are lost")
    # Keys that must leave this host: those that none of its ranks owns.
    here = comm.split(comm.rank // TASKS)
    has = np.zeros(options.keys, np.uint8)
    has[keys] = 1
    has = here.allreduce(has, op="max")
    owns = np.zeros(options.keys, np.uint8)
    owns[np.frombuffer(told["right"][0], np.int64)] = 1
    leaving = int(((has > 0) & (here.allreduce(owns, op="max") == 0)).sum())
    if first:
        print(json.dumps(["leaving", leaving]), flush=True)
    here.close()
    comm.close()


def fewest(leaving: int, options: argparse.Namespace) -> float:
    """Bytes that a host must send, in full frames."""
    n = options.keys
    subset_bits = (math.lgamma(n + 1) - math.lgamma(leaving + 1) - math.lgamma(n - leaving + 1)) / math.log(2)
    return FRAMING * (leaving * options.width * 4 + subset_bits / 8)


def main() -> None:
    parser = keyed_options(__doc__, hosts=4, rate="1gbit", rows=500_000)
    options = parser.parse_args()
    if options.rank:
        return one_rank(options)
    rows = rows_of_ranks(command_of_rank(__file__), options.hosts, TASKS, options.rate, 29950)
    least = max(fewest(row[1], options) for row in rows if row[0] == "leaving")
    what = f"{options.hosts} hosts of {TASKS} map tasks at {options.rate}, {options.rows:,} rows of {options.width}"
    data = f"float32 a task, keys ~ 1/i^1.1 of {options.keys:,}"
    table = Table(title=f"{what} {data}; fewest bytes of a host {least:,.0f}")
    for column in ("merged before sending", "ms", "from", "to", "bytes of a host", "/ fewest bytes"):
        table.add_column(column, justify="left" if column == "merged before sending" else "right")
    took: dict[str, float] = {}
    for name in VARIANTS:
        spans, sizes = [], []
        for round_ in range(1, options.rounds + 1):
            of_ranks = [row for row in rows if row[:2] == [name, round_]]
            spans.append(max(row[3] for row in of_ranks) - min(row[2] for row in of_ranks))
            sizes.append(max(row[4] for row in of_ranks))
        took[name] = median(spans)
        span = [f"{1e3 * one:,.0f}" for one in (median(spans), min(spans), max(spans))]
        table.add_row(name, *span, f"{median(sizes):,.0f}", f"{median(sizes) / least:.3f}")
    Console().print(table)
    print(
        f"merging in the host: {took['none'] / took['in the host']:.2f} times as fast as no merging (bar 5), ", end=""
    )
    print(f"{took['in each task'] / took['in the host']:.2f} times as fast as merging in each task")
    return None


if __name__ == "__main__":
    main()
