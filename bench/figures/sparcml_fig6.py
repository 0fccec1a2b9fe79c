"""*SparCML*, Fig. 6: speech, error against time, and how training scales: top-k on more hosts beside block momentum.

The example `examples/torch/speech.py` (made-up sounds, an LSTM with attention, its preset for two cores) in the lab's
network namespaces, on hosts of one rank and one core behind links of 100 Mbit/s. This machine has fewer cores than
there are hosts, so the cluster runs in slow motion: where H hosts share C cores, links have C / H of their rate, and
every second counts C / H (time dilation; Gupta et al. 2006). The baseline averages blocks densely (BMUF), on a quarter
of the hosts as in the paper. Needs root, PyTorch and time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from lab.cluster import Cluster
from lab.training import train_on

from .style import COLOURS, MARKERS, Log, new, plain_numbers
from .training import trained

TITLE = "SparCML Fig. 6: speech, top-k beside block momentum"
NEEDS_ROOT = True
MBITS, PORT = 100, 29980
VARIANTS = {"bmuf": ("block momentum", (2,)), "dense": ("dense", (8,)), "topk": ("k = 4 of 512", (1, 2, 4, 8))}


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Curves of each method and number of hosts; seconds are those of hosts with a core each."""
    cores = len(os.sched_getaffinity(0))
    runs: list[dict[str, Any]] = []
    for variant, (_, numbers) in VARIANTS.items():
        for hosts in numbers:
            slower = max(1.0, hosts / cores)
            arguments = ["--preset", "smoke" if quick else "short", "--compress", variant]
            train = partial(_on_hosts, hosts, f"{MBITS / slower:g}mbit", PORT + 2 * len(runs))
            record = trained("speech", arguments, log, train, f"on {hosts} hosts, {cores} cores")
            run = record["curves"]
            run["trained_s"] = [seconds / slower for seconds in run["trained_s"]]
            runs.append({"way": variant, "hosts": hosts, "slower": slower} | run)
    return {"mbits": MBITS, "cores": cores, "parameters": record["parameters"], "runs": runs}


def _on_hosts(hosts: int, rate: str, port: int, example: str, arguments: Sequence[str]) -> dict[str, Any]:
    with Cluster(hosts, rate, "128k") as cluster:
        return train_on(cluster, hosts, port, example, arguments)


def draw(entry: dict[str, Any]) -> Any:
    """Left: the error against time. Right: epochs an hour against hosts."""
    figure, (left, right) = new(2, width=11)
    for number, run in enumerate(entry["runs"]):
        label = f"{VARIANTS[run['way']][0]}, {run['hosts']} host{'s' * (run['hosts'] > 1)}"
        left.plot(
            run["trained_s"],
            run["cross_entropy"],
            MARKERS[number] + "-",
            color=COLOURS[number],
            markersize=4,
            label=f"{label}: {run['cross_entropy'][-1]:.2f}, {run['token_error_rate'][-1]:.1f} % wrong",
        )
    left.set_xlabel("time, s")
    left.set_ylabel("cross entropy of the test sounds")
    left.set_ylim(bottom=0)
    left.legend(fontsize=8)
    for number, (variant, (label, _)) in enumerate(VARIANTS.items()):
        mine = [run for run in entry["runs"] if run["way"] == variant]
        hours = [3600 * run["epoch"][-1] / run["trained_s"][-1] for run in mine]
        right.plot([run["hosts"] for run in mine], hours, MARKERS[number] + "-", color=COLOURS[number], label=label)
    right.set_xscale("log", base=2)
    plain_numbers(right.xaxis, sorted({run["hosts"] for run in entry["runs"]}))
    right.set_ylim(bottom=0)
    right.set_xlabel("hosts")
    right.set_ylabel("epochs an hour")
    right.legend()
    return figure
