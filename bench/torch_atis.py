"""Training on a cluster: an epoch of examples/torch/atis.py, dense over Gloo and over Skyphos, outer products, top-k.

    sudo .venv/bin/python bench/torch_atis.py                       # 8 hosts at 100 Mbit/s
    sudo .venv/bin/python bench/torch_atis.py --rate 250mbit

The bars: at 100 Mbit/s an epoch of dense over Gloo takes 5 times as long as one of top-k; at 250 Mbit/s its
communication takes 10 times as long.

The paper's network (SparCML, section 8.3: 20 M parameters, 80 MB, k = 2 of 512, batches of 560 words) on hosts with one
rank each, network namespaces that share the cores of this machine (`bench/lab/cluster.py`). Each method runs some
steps, one method after the other; an epoch is 102 steps. Communication is the time in hooks and of waiting after the
backward pass. Needs the data of the example (`../shared/data`), PyTorch and Pillow (`make .venv/.torch`).
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lab.cluster import Cluster
from lab.training import train_on

PORT, STEPS_OF_EPOCH = 29930, 102
VARIANTS = {
    "dense, Gloo": ["--backend", "gloo", "--compress", "dense"],
    "dense, ours": ["--compress", "dense"],
    "outer products": ["--compress", "dense", "--outer-products"],
    "top-k": ["--compress", "topk"],
}
#: Bytes a second of links.
RATES = {"1gbit": 125e6, "250mbit": 31.25e6, "100mbit": 12.5e6}


def run(cluster: Cluster, hosts: int, number: int, arguments: list[str], limit: int) -> dict[str, Any]:
    """Run one method; return rank 0's record of the last epoch."""
    common = ["--preset", "full", "--epochs", "2", "--limit", str(limit)]
    return train_on(cluster, hosts, PORT + 2 * number, "atis", [*common, *arguments])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--rate", choices=list(RATES), default="100mbit")
    parser.add_argument("--limit", type=int, default=200, help="Sentences of an epoch.")
    parser.add_argument("--variants", nargs="*", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--json", type=Path, help="File for the records.")
    options = parser.parse_args()
    records: dict[str, dict[str, Any]] = {}
    with Cluster(options.hosts, options.rate, "128k") as cluster:
        for number, variant in enumerate(options.variants):
            print(f"{variant} …", flush=True)
            records[variant] = run(cluster, options.hosts, number, VARIANTS[variant], options.limit)
    if options.json:
        options.json.write_text(json.dumps(records, indent=1))
    parameters = next(iter(records.values()))["parameters"]
    size = 4 * parameters
    bound = 2 * (options.hosts - 1) / options.hosts * size / RATES[options.rate]
    table = Table(
        title=f"ATIS, {parameters:,} parameters, {options.hosts} hosts at {options.rate}: an epoch of {STEPS_OF_EPOCH} "
        f"steps; a dense step's bound on the link {bound:.2f} s"
    )
    for column in ("method", "epoch, s", "a step, s", "computing", "communication", "MB sent a step", "received"):
        table.add_column(column, justify="left" if column == "method" else "right")
    step_s, communication_s = {}, {}
    for variant, record in records.items():
        last = record["epochs"][-1]
        steps, parts = last["steps"], last["seconds"]
        step_s[variant] = last["train_s"] / steps
        communication_s[variant] = (parts["hook"] + parts["wait"]) / steps
        carried = [last.get(f"machine_{what}_bytes") for what in ("sent", "received")]
        table.add_row(
            variant,
            f"{step_s[variant] * STEPS_OF_EPOCH:,.0f}",
            f"{step_s[variant]:.2f}",
            f"{parts['compute'] / steps:.2f}",
            f"{communication_s[variant]:.2f}",
            *("" if count is None else f"{count / steps / 1e6:.2f}" for count in carried),
        )
    Console(width=120).print(table)
    if {"dense, Gloo", "top-k"} <= set(records):
        steps_ratio, communication_ratio = (each["dense, Gloo"] / each["top-k"] for each in (step_s, communication_s))
        print(f"dense over Gloo takes {steps_ratio:.1f} times as long as top-k, ", end="")
        print(f"its communication {communication_ratio:.1f} times as long")


if __name__ == "__main__":
    if os.geteuid() != 0:
        raise SystemExit("network namespaces need root: sudo .venv/bin/python bench/torch_atis.py")
    main()
