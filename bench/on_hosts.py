"""Runs a program as ranks on a cluster of namespaces, and gathers the lines of JSON that they print."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from lab.cluster import Cluster


def command_of_rank(script: str) -> list[str]:
    """The command that runs this program as a rank."""
    return [sys.executable, os.path.abspath(script), *sys.argv[1:], "--rank"]


def rows_of_ranks(program: Sequence[str], hosts: int, tasks: int, rate: str, port: int) -> list[Any]:
    """Run the program ``tasks`` times on each host; return the printed rows."""
    with Cluster(hosts, rate, "128k") as cluster:
        size, ranks = hosts * tasks, []
        for rank in range(size):
            env = cluster.environment(rank, size, port, "benchmark") | {"SKYPHOS_PROFILE": "none"}
            env |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": cluster.interface}
            command = cluster.command(rank // tasks, program)
            ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
        outputs = [process.communicate(timeout=900)[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise SystemExit("a rank failed")
    return [json.loads(line) for out in outputs for line in out.splitlines()]


def keyed_options(text: str | None, *, hosts: int, rate: str, rows: int) -> argparse.ArgumentParser:
    """The options of a benchmark that uses :func:`keyed_rows`."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=hosts)
    parser.add_argument("--rate", default=rate)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=rows)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    return parser


def keyed_rows(rank: int, keys: int, rows: int, width: int) -> tuple[Any, Any]:
    """Rows of float32 for keys with P(i) ~ 1/i^1.1: whole numbers, so that sums are exact."""
    rng = np.random.default_rng(rank)
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -1.1
    found = np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(rows))
    return found, rng.integers(0, 4, (rows, width)).astype(np.float32)
