"""Runs a benchmark again as the ranks of a cluster of namespaces, and gathers the lines of JSON that they print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from lab.cluster import Cluster


def rows_of_ranks(script: str, hosts: int, tasks: int, rate: str, port: int) -> list[Any]:
    """Start this program with ``--rank``, ``tasks`` times on each host; what all have printed."""
    with Cluster(hosts, rate, "128k") as cluster:
        size, ranks = hosts * tasks, []
        for rank in range(size):
            env = cluster.environment(rank, size, port, "benchmark") | {"SKYPHOS_PROFILE": "none"}
            env |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            command = cluster.command(rank // tasks, [sys.executable, script, *sys.argv[1:], "--rank"])
            ranks.append(subprocess.Popen(command, env=os.environ | env, stdout=subprocess.PIPE, text=True))
        said = [process.communicate(timeout=900)[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise SystemExit("a rank failed")
    return [json.loads(line) for out in said for line in out.splitlines()]
