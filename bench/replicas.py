"""Processes of a replicated group on a shaped cluster: each prints the times of its calls, one line of JSON per call.

Started by `replication.py` and `figures/kylix_table1.py`; as a program it is one of those processes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lab.cluster import Cluster

_port = 29600


@dataclass
class Call:
    """One reduction on a process: its start, its time, and the time of the configuration before it, if any."""

    began: float
    seconds: float
    configure: float = 0.0


class Group:
    """Replicated processes on the first hosts of a cluster; `words`: options of the program below."""

    def __init__(self, cluster: Cluster, size: int, replication: int, words: list[str]) -> None:
        global _port  # noqa: PLW0603 -- a port for each group, since one may still be closing
        _port += 1
        self.processes: list[subprocess.Popen[str]] = []
        self.seen: list[str] = []
        for host in range(size):
            env = cluster.environment(host, size, _port, "replicas") | {"SKYPHOS_PROFILE": "none"}
            program = [sys.executable, str(Path(__file__).resolve()), "--replication", str(replication), *words]
            command = cluster.command(host, program)
            self.processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))

    def wait_for(self, call: int) -> None:
        """Wait until process 0 has completed a call. The output of the others is small and stays in their pipes."""
        stdout = self.processes[0].stdout
        assert stdout is not None
        for line in stdout:
            self.seen.append(line)
            if json.loads(line).get("call") == call:
                return
        raise RuntimeError("process 0 ended early")

    def results(self, lost: list[int], *, already_dead: bool) -> list[list[Call]]:
        """The calls of each surviving process; raises for a wrong result. Lost processes that still run are killed."""
        for host in lost:
            if not already_dead:
                self.processes[host].kill()
        all_calls = []
        for host, process in enumerate(self.processes):
            out, _ = process.communicate(timeout=120)
            if host in lost:
                continue
            rows = [json.loads(line) for line in (self.seen if host == 0 else []) + out.splitlines()]
            if process.returncode or not rows[-1].get("end"):
                raise RuntimeError(f"process {host} failed with {process.returncode}")
            if not all(row["right"] for row in rows[:-1]):
                raise RuntimeError(f"process {host} has a wrong result")
            all_calls.append([Call(row["began"], row["seconds"], row["configure"]) for row in rows[:-1]])
        return all_calls

    def kill(self) -> None:
        """End the remaining processes."""
        for process in self.processes:
            process.kill()
            process.wait()


def slowest(calls: list[list[Call]]) -> list[float]:
    """Seconds of each call: from the start of its last process to the end of the last."""
    return [max(c.began + c.seconds for c in each) - max(c.began for c in each) for each in zip(*calls, strict=True)]


def power_law(rank: int, ranks: int, edges: int, n: int) -> npt.NDArray[np.int64]:
    """The vertices of a rank's share of edges, whose ends are drawn with p(v) ~ v^-0.9 (Kylix, section III)."""
    alpha = 0.9
    uniform = np.random.default_rng(rank).random(2 * edges // ranks)
    drawn = (uniform * (n ** (1 - alpha) - 1) + 1) ** (1 / (1 - alpha))
    return np.unique(np.minimum(drawn.astype(np.int64), n) - 1)


def main() -> None:
    """One process: repeated reductions, each compared bitwise with the first."""
    import skyphos as sky

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--replication", type=int, required=True)
    parser.add_argument("--n", type=int, required=True)
    parser.add_argument("--entries", type=int, help="entries of each rank, at uniform indices")
    parser.add_argument("--edges", type=int, help="edges of all ranks together, drawn from a power law")
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--configure", action="store_true", help="configure before each call")
    options = parser.parse_args()

    comm = sky.init(replication=options.replication, timeout=120)
    if options.edges:
        indices = power_law(comm.rank, comm.size, options.edges, options.n)
    else:
        indices = np.random.default_rng(comm.rank).choice(options.n, options.entries, replace=False)
    values = np.random.default_rng(comm.rank + 100).random(len(indices), dtype=np.float32)
    plan = comm.configure(indices, indices, n=options.n)
    first = plan.reduce(values)
    for call in range(options.calls):
        configured = time.time()
        if options.configure:
            plan = comm.configure(indices, indices, n=options.n)
        began = time.time()
        got = plan.reduce(values)
        seconds = time.time() - began
        right = bool((got.view(np.uint32) == first.view(np.uint32)).all())
        row = {"call": call, "configure": began - configured, "began": began, "seconds": seconds, "right": right}
        print(json.dumps(row), flush=True)
    lost = sum(one.lost is not None for one in comm.health())
    print(json.dumps({"end": True, "lost": lost}), flush=True)


if __name__ == "__main__":
    main()
