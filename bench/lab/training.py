"""An example of `examples/torch` on the hosts of a cluster, a rank of one thread on each."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .cluster import Cluster

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "torch"


def train_on(cluster: Cluster, hosts: int, port: int, example: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Train; return rank 0's record. Rank 0's host uses ``port`` and the next one."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.json"
        command = [sys.executable, str(_EXAMPLES / f"{example}.py"), *arguments, "--out", str(out)]
        ranks = []
        for rank in range(hosts):
            env = cluster.environment(rank, hosts, port, "benchmark") | {
                "RANK": str(rank),
                "WORLD_SIZE": str(hosts),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": cluster.address(0),
                "MASTER_PORT": str(port + 1),
                "GLOO_SOCKET_IFNAME": cluster.interface,
                "OMP_NUM_THREADS": "1",
                "SKYPHOS_PROFILE": "none",
            }
            quiet = subprocess.DEVNULL if rank else None
            ranks.append(subprocess.Popen(cluster.command(rank, command), env=env, stdout=quiet, stderr=quiet))
        if any([process.wait(timeout=3000) for process in ranks]):
            raise RuntimeError(f"a rank failed: {example}.py {' '.join(arguments)}")
        found: dict[str, Any] = json.loads(out.read_text())
        return found
