"""An iteration of map-reduce by shuffle, gather and broadcast, and by one sparse allreduce, in one run.

    sudo .venv/bin/python bench/iteration.py                        # 8 hosts at 250 Mbit/s
    sudo .venv/bin/python bench/iteration.py --rate 1gbit --tasks 4

Hosts are network namespaces (`bench/lab/cluster.py`) with `--tasks` ranks each. A rank has rows of `--width` float32,
whose keys are drawn from `--keys` keys with P(i) ~ 1/i^1.1. The next state is the sum of the rows of each key, as in
k-means. A time is that of a whole iteration on the slowest rank, including map.
"""

from __future__ import annotations

import argparse
import json
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from on_hosts import command_of_rank, keyed_options, keyed_rows, rows_of_ranks

VARIANTS = ("shuffle", "allreduce")


def one_rank(options: argparse.Namespace) -> None:
    """Run a rank: both methods alternately, several times."""
    import skyphos as sky
    from skyphos.mapreduce import MapReduce

    with sky.init(timeout=300) as comm:
        keys, rows = keyed_rows(comm.rank, options.keys, options.rows, options.width)

        def combine(found: Any, sums: Any) -> Any:
            state = np.zeros((options.keys, options.width), np.float32)
            state[found] = sums
            return state

        right = None
        for round_ in range(options.rounds + 1):
            for variant in VARIANTS:
                job = MapReduce(
                    comm,
                    map=lambda _, state: (keys, rows),
                    reduce="sum",
                    combine=combine,
                    partitions=[0],
                    collective=variant,
                )
                comm.barrier()
                # The first iteration also assigns partitions, and the last is followed by a broadcast: use the second.
                state = job.iterate(np.zeros(1, np.float32), iterations=3)
                right = state if right is None else right
                if not (state == right).all():
                    raise SystemExit(f"{variant}: the sums differ from the first run's")
                iteration = job.iterations[1]
                if round_:
                    print(json.dumps([variant, round_, iteration.total, iteration.seconds]), flush=True)


def main() -> None:
    parser = keyed_options(__doc__, hosts=8, rate="250mbit", rows=200_000)
    parser.add_argument("--tasks", type=int, default=1)
    options = parser.parse_args()
    if options.rank:
        return one_rank(options)
    rows = rows_of_ranks(command_of_rank(__file__), options.hosts, options.tasks, options.rate, 29960)
    what = f"{options.hosts} hosts of {options.tasks} ranks at {options.rate}, {options.rows:,} rows of {options.width}"
    table = Table(title=f"{what} float32 a rank, keys ~ 1/i^1.1 of {options.keys:,}")
    for column in ("an iteration by", "ms", "from", "to", "its stages on the slowest rank, ms"):
        table.add_column(column, justify="right" if column in ("ms", "from", "to") else "left")
    took = {}
    for variant in VARIANTS:
        rounds = [[row for row in rows if row[:2] == [variant, k]] for k in range(1, options.rounds + 1)]
        slowest = [max(of_ranks, key=lambda row: row[2]) for of_ranks in rounds]
        took[variant] = median(row[2] for row in slowest)
        typical = min(slowest, key=lambda row: abs(row[2] - took[variant]))
        spans = [f"{1e3 * one:,.0f}" for one in (took[variant], *(f(row[2] for row in slowest) for f in (min, max)))]
        table.add_row(variant, *spans, ", ".join(f"{stage} {1e3 * each:,.0f}" for stage, each in typical[3].items()))
    Console().print(table)
    print(f"one allreduce: {took['shuffle'] / took['allreduce']:.2f} times as fast as the shuffle")
    return None


if __name__ == "__main__":
    main()
