"""What replicas cost, and what the death of some costs: reductions on shaped links, some hosts killed or cut.

    sudo .venv/bin/python bench/replication.py                     all of it, some minutes
    sudo .venv/bin/python bench/replication.py --lose cut --hosts 3

Hosts are network namespaces (`bench/lab/cluster.py`), a process each. Every process reduces with one plan again and
again and compares the bits with those of the first call. In the middle of a call some hosts are lost, no two replicas
of a rank. Told are medians over rounds: the call that was hit and the later ones over the calls before, and, for the
same number of ranks, calls with two replicas of each over calls with one.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from lab.cluster import Cluster

_port = 29600

#: Calls before the loss and after it.
BEFORE, AFTER = 12, 12


@dataclass
class Call:
    """One reduction on a process: when it began, and how long it took."""

    began: float
    seconds: float


def body(replication: int, entries: int, n: int) -> None:
    """A process's program: one line of JSON for each call."""
    import numpy as np

    import skyphos as sky

    comm = sky.init(replication=replication, timeout=120)
    indices = np.random.default_rng(comm.rank).choice(n, entries, replace=False)
    values = np.random.default_rng(comm.rank + 100).random(entries, dtype=np.float32)
    plan = comm.configure(indices, indices, n=n)
    first = plan.reduce(values)
    for call in range(BEFORE + AFTER + 1):
        began = time.time()
        got = plan.reduce(values)
        seconds = time.time() - began
        right = bool((got.view(np.uint32) == first.view(np.uint32)).all())
        print(json.dumps({"call": call, "began": began, "seconds": seconds, "right": right}), flush=True)
    lost = sum(one.lost is not None for one in comm.health())
    print(json.dumps({"end": True, "lost": lost}), flush=True)


class Group:
    """Processes on the first hosts of a cluster."""

    def __init__(self, cluster: Cluster, options: argparse.Namespace, size: int, replication: int) -> None:
        global _port  # noqa: PLW0603 -- a port for each group, since one may still be closing
        _port += 1
        self.processes: list[subprocess.Popen[str]] = []
        self.seen: list[str] = []
        for host in range(size):
            env = cluster.environment(host, size, _port, "replicas") | {"SKYPHOS_PROFILE": "none"}
            words = ["--body", str(replication), "--entries", str(options.entries), "--n", str(options.n)]
            command = cluster.command(host, [sys.executable, str(Path(__file__).resolve()), *words])
            self.processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))

    def wait_for(self, call: int) -> None:
        """Until process 0 has done a call. Its output is small and stays in the pipe for the others."""
        stdout = self.processes[0].stdout
        assert stdout is not None
        for line in stdout:
            self.seen.append(line)
            if json.loads(line).get("call") == call:
                return
        raise RuntimeError("process 0 ended early")

    def results(self, lost: list[int], *, killed: bool) -> list[list[Call]]:
        """Each surviving process's calls; refuses a wrong one."""
        for host in lost:
            if not killed:
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
            all_calls.append([Call(row["began"], row["seconds"]) for row in rows[:-1]])
        return all_calls

    def kill(self) -> None:
        """End what is left."""
        for process in self.processes:
            process.kill()
            process.wait()


def slowest(calls: list[list[Call]]) -> list[float]:
    """Seconds of each call: from its first process's begin to its last one's end."""
    return [max(c.began + c.seconds for c in each) - max(c.began for c in each) for each in zip(*calls, strict=True)]


def spread(size: int, hosts: int, draw: random.Random) -> list[int]:
    """So many processes, no two of one rank, and not the first, from which others hear where the call is."""
    ranks = draw.sample(range(size // 2), hosts)
    return [rank + size // 2 * (1 if rank == 0 else draw.randrange(2)) for rank in ranks]


def disturbed(cluster: Cluster, options: argparse.Namespace, how: str, hosts: int, seed: int) -> tuple[float, float]:
    """The call that was hit, and later ones, over those before."""
    draw = random.Random(seed)
    group = Group(cluster, options, 8, 2)
    lost = spread(8, hosts, draw)
    try:
        group.wait_for(BEFORE - 1)
        usual = median(json.loads(line)["seconds"] for line in group.seen[2:])
        time.sleep(draw.random() * usual * 0.8)
        hit = time.time()
        for host in lost:
            if how == "cut":
                cluster.cut(host)
            else:
                group.processes[host].kill()
        calls = group.results(lost, killed=how == "kill")
    finally:
        if how == "cut":
            for host in lost:
                cluster.heal(host)
        group.kill()
    seconds = slowest(calls)
    struck = max(k for k in range(len(seconds)) if min(one[k].began for one in calls) <= hit)
    before = median(seconds[2:struck])
    return seconds[struck] / before, median(seconds[struck + 1 :]) / before


def undisturbed(cluster: Cluster, options: argparse.Namespace, size: int, replication: int) -> float:
    """Seconds of a call, the median."""
    group = Group(cluster, options, size, replication)
    try:
        group.wait_for(0)
        return median(slowest(group.results([], killed=True))[2:])
    finally:
        group.kill()


def main() -> None:
    """Read the options, make the cluster, measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rate", default="250mbit")
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--n", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lose", choices=["kill", "cut"], action="append")
    parser.add_argument("--hosts", type=int, choices=[1, 2, 3], action="append")
    parser.add_argument("--body", type=int)
    options = parser.parse_args()
    if options.body is not None:
        body(options.body, options.entries, options.n)
        return
    console, seed = Console(), 0
    with Cluster(8, options.rate, "128k") as cluster:
        table = Table("lost", "hosts", "hit call", "later calls", title=f"8 hosts, 2 replicas, {options.rate}")
        ratios = []
        for _ in range(options.rounds):
            one = undisturbed(cluster, options, 4, 1)
            two = undisturbed(cluster, options, 8, 2)
            ratios.append(two / one)
            console.print(f"4 ranks: {one * 1e3:.1f} ms, replicated twice {two * 1e3:.1f} ms: {two / one:.2f}")
        for how in options.lose or ["kill", "cut"]:
            for hosts in options.hosts or [1, 2, 3]:
                found = []
                for _ in range(options.rounds):
                    seed += 1
                    found.append(disturbed(cluster, options, how, hosts, seed))
                    console.print(f"{how} {hosts}: hit {found[-1][0]:.2f}, later {found[-1][1]:.2f}")
                hit, later = ([pair[k] for pair in found] for k in (0, 1))
                worst = [f"{median(each):.2f} (worst {max(each):.2f})" for each in (hit, later)]
                table.add_row(how, str(hosts), *worst)
        console.print(table)
        if ratios:
            console.print(f"two replicas over one, 4 ranks: {median(ratios):.2f} (worst {max(ratios):.2f})")


if __name__ == "__main__":
    main()
