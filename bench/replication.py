"""Cost of replicas and of losing some: reductions on shaped links, with hosts killed or cut off.

    sudo .venv/bin/python bench/replication.py                     all of it, some minutes
    sudo .venv/bin/python bench/replication.py --lose cut --hosts 3

Hosts are network namespaces (`bench/lab/cluster.py`), a process each. Every process reduces with one plan repeatedly
and compares the bits with those of the first call. During a call some hosts are lost, no two replicas of a rank.
Reported are medians over rounds of (1) the affected call and the later ones, relative to the calls before; (2) calls
with two replicas of each rank, relative to calls of as many ranks without replicas.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from lab.cluster import Cluster
from replicas import Group, slowest

#: Calls before the loss and after it.
BEFORE, AFTER = 12, 12


def group(cluster: Cluster, options: argparse.Namespace, size: int, replication: int) -> Group:
    """Start a group on the first ``size`` hosts; its processes make the calls."""
    words = ["--entries", str(options.entries), "--n", str(options.n), "--calls", str(BEFORE + AFTER + 1)]
    return Group(cluster, size, replication, words)


def spread(size: int, hosts: int, draw: random.Random) -> list[int]:
    """Draw ``hosts`` processes, no two of one rank, and not process 0, which reports the progress of calls."""
    ranks = draw.sample(range(size // 2), hosts)
    return [rank + size // 2 * (1 if rank == 0 else draw.randrange(2)) for rank in ranks]


def disturbed(cluster: Cluster, options: argparse.Namespace, how: str, hosts: int, seed: int) -> tuple[float, float]:
    """Times of the affected call and of later ones, relative to earlier ones."""
    draw = random.Random(seed)
    processes = group(cluster, options, 8, 2)
    lost = spread(8, hosts, draw)
    try:
        processes.wait_for(BEFORE - 1)
        usual = median(json.loads(line)["seconds"] for line in processes.seen[2:])
        time.sleep(draw.random() * usual * 0.8)
        hit = time.time()
        for host in lost:
            if how == "cut":
                cluster.cut(host)
            else:
                processes.processes[host].kill()
        calls = processes.results(lost, already_dead=how == "kill")
    finally:
        if how == "cut":
            for host in lost:
                cluster.heal(host)
        processes.kill()
    seconds = slowest(calls)
    struck = max(k for k in range(len(seconds)) if min(one[k].began for one in calls) <= hit)
    before = median(seconds[2:struck])
    return seconds[struck] / before, median(seconds[struck + 1 :]) / before


def undisturbed(cluster: Cluster, options: argparse.Namespace, size: int, replication: int) -> float:
    """Seconds of a call, the median."""
    processes = group(cluster, options, size, replication)
    try:
        processes.wait_for(0)
        return median(slowest(processes.results([], already_dead=True))[2:])
    finally:
        processes.kill()


def touch_memory(gigabytes: int = 6) -> None:
    """Use memory once: a page that a virtual machine has never used costs 9 µs, twenty times as much as later."""
    np.empty(gigabytes << 30, dtype=np.uint8)[::4096] = 1


def main() -> None:
    """Read the options, make the cluster, measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rate", default="250mbit")
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--n", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lose", choices=["kill", "cut"], action="append")
    parser.add_argument("--hosts", type=int, choices=[1, 2, 3], action="append")
    options = parser.parse_args()
    console, seed = Console(), 0
    touch_memory()
    with Cluster(8, options.rate, "128k") as cluster:
        table = Table("lost", "hosts", "affected call", "later calls", title=f"8 hosts, 2 replicas, {options.rate}")
        ratios = []
        for _ in range(options.rounds):
            one = undisturbed(cluster, options, 4, 1)
            two = undisturbed(cluster, options, 8, 2)
            ratios.append(two / one)
            console.print(f"4 ranks: {one * 1e3:.1f} ms, with two replicas {two * 1e3:.1f} ms: ratio {two / one:.2f}")
        for how in options.lose or ["kill", "cut"]:
            for hosts in options.hosts or [1, 2, 3]:
                found = []
                for _ in range(options.rounds):
                    seed += 1
                    found.append(disturbed(cluster, options, how, hosts, seed))
                    console.print(f"{how} {hosts}: affected call {found[-1][0]:.2f}, later {found[-1][1]:.2f}")
                hit, later = ([pair[k] for pair in found] for k in (0, 1))
                worst = [f"{median(each):.2f} (worst {max(each):.2f})" for each in (hit, later)]
                table.add_row(how, str(hosts), *worst)
        console.print(table)
        if ratios:
            console.print(f"two replicas relative to one, 4 ranks: {median(ratios):.2f} (worst {max(ratios):.2f})")


if __name__ == "__main__":
    main()
