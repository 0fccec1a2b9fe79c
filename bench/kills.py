"""Real processes killed and cut off at random times in all collectives: no hang and no wrong result.

    sudo .venv/bin/python bench/kills.py                 500 losses, some 9 minutes
    sudo .venv/bin/python bench/kills.py --losses 50

Processes on hosts of their own (network namespaces) make random calls from a seed, and compare each result with NumPy's
(`checked_calls.py`). One process at a time, or two at once, are killed (SIGKILL), or their links are cut. Each survivor
must notice it in time (a second after a kill, the heartbeat and a second after a cut), and all survivors continue in a
smaller group (`Comm.shrink`) until two are left; then the next group starts.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress

from lab.cluster import Cluster

HOSTS, HEARTBEAT_S = 8, 2.0

#: Seconds within which a kill and a cut must be noticed, and within which all must be in the smaller group.
KILLED_S, CUT_S, HANG_S = 1.0, HEARTBEAT_S + 1.0, 60.0


@dataclass
class Tally:
    """Counts and times of the losses so far."""

    losses: Counter[str] = field(default_factory=Counter)
    noticed: dict[str, list[float]] = field(default_factory=lambda: {"kill": [], "cut": []})
    calls: int = 0
    wrong: list[str] = field(default_factory=list)


class GroupProcesses:
    """The processes of one group, and their messages."""

    def __init__(self, cluster: Cluster, port: int, seed: int) -> None:
        self.cluster, self.reports = cluster, queue.Queue[tuple[int, dict[str, Any]]]()
        self.alive = set(range(HOSTS))
        self.cut: set[int] = set()
        self.processes = []
        for host in range(HOSTS):
            env = cluster.environment(host, HOSTS, port, "kills") | {"SKYPHOS_PROFILE": "none"}
            words = [
                str(Path(__file__).with_name("checked_calls.py").resolve()),
                str(seed),
                str(HEARTBEAT_S),
                str(HANG_S),
            ]
            command = cluster.command(host, [sys.executable, *words])
            process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
            self.processes.append(process)
            threading.Thread(target=self._read, args=(host, process), daemon=True).start()

    def _read(self, host: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.reports.put((host, json.loads(line)))
        self.reports.put((host, {"what": "gone", "code": process.wait()}))

    def wait(self, size: int, tally: Tally, since: tuple[str, float] | None) -> None:
        """Wait until all living processes are in a group of ``size``."""
        missing, deadline = set(self.alive), time.time() + HANG_S
        while missing:
            try:
                host, report = self.reports.get(timeout=max(deadline - time.time(), 0.01))
            except queue.Empty:
                tally.wrong.append(f"hosts {sorted(missing)} of {sorted(self.alive)} hang")
                raise RuntimeError(tally.wrong[-1]) from None
            if host not in self.alive:
                continue
            what = report["what"]
            if what == "wrong":
                tally.wrong.append(f"host {host}: {report['name']} has a wrong result")
            elif what == "lost" and since is not None:
                tally.noticed[since[0]].append(report["at"] - since[1])
            elif what == "group" and report["size"] == size:
                missing.discard(host)
            elif what in ("gone", "out") and size > 2:
                tally.wrong.append(f"host {host}: {report}")
                raise RuntimeError(tally.wrong[-1])
            elif what == "end":
                tally.calls += report["steps"]
                missing.discard(host)

    def lose(self, how: str, hosts: list[int], apart_s: float) -> None:
        """Kill the processes of some hosts, or cut their links."""
        for number, host in enumerate(hosts):
            if number:
                time.sleep(apart_s)
            self.alive.discard(host)
            if how == "cut":
                self.cluster.cut(host)
                self.cut.add(host)
            else:
                self.processes[host].kill()

    def end(self) -> None:
        """End all processes, and restore the links."""
        for process in self.processes:
            process.kill()
            process.wait()
        for host in self.cut:
            self.cluster.heal(host)


def one_group(group: GroupProcesses, draw: random.Random, max_losses: int, tally: Tally) -> None:
    """Lose processes until two are left."""
    group.wait(HOSTS, tally, None)
    while len(group.alive) > 2 and sum(tally.losses.values()) < max_losses:
        time.sleep(10 ** draw.uniform(-2.5, -0.3))
        how = "cut" if draw.random() < 0.25 else "kill"
        left = len(group.alive)
        # `shrink` needs a majority: more survivors than processes lost now and cut off before, which still run.
        count = 2 if draw.random() < 0.3 and left - 2 > 2 + len(group.cut) else 1
        if how == "cut" and 2 * (left - count) <= left:
            how = "kill"
        hosts = draw.sample(sorted(group.alive), count)
        began = time.time()
        group.lose(how, hosts, draw.choice((0.0, 0.002, 0.02)))
        tally.losses[how] += count
        group.wait(len(group.alive), tally, (how, began))


def main() -> None:
    """Read the options, lose processes, and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--losses", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    console, tally, draw, number = Console(), Tally(), random.Random(options.seed), 0
    with Cluster(HOSTS, "1gbit", "256k") as cluster, Progress(console=console) as progress:
        task = progress.add_task("losses", total=options.losses)
        while sum(tally.losses.values()) < options.losses and not tally.wrong:
            number += 1
            group = GroupProcesses(cluster, 29700 + number, options.seed * 100_000 + number)
            try:
                one_group(group, draw, options.losses, tally)
            except RuntimeError as error:
                console.print(f"group {number}: {error}")
            finally:
                group.end()
            progress.update(task, completed=sum(tally.losses.values()))
    for how, limit in (("kill", KILLED_S), ("cut", CUT_S)):
        times = sorted(tally.noticed[how]) or [0.0]
        late = sum(each > limit for each in times)
        console.print(
            f"{how}: {tally.losses[how]}; noticed after {median(times):.3f} s, the last after {times[-1]:.3f} s "
            f"({late} of {len(times)} after more than {limit:.0f} s)"
        )
    console.print(f"{number} groups, {len(tally.wrong)} wrong results or hangs")
    for what in tally.wrong:
        console.print(what)
    sys.exit(bool(tally.wrong))


if __name__ == "__main__":
    main()
