"""Runs of `examples/torch` for figures. Each is kept when it has ended: a figure that was cut short goes on there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from .style import Tell

ROOT = Path(__file__).resolve().parents[2]
#: Git leaves it alone. What is there is not trained again: remove it after a change of what is trained.
KEPT = ROOT / "bench" / "lab" / "results" / "training"


#: As many as the paper has on CIFAR-10.
RANKS = 8


def trained(example: str, arguments: Sequence[str], tell: Tell) -> dict[str, Any]:
    """The record of a run: by :data:`RANKS` processes of one thread on this machine, which share its cores."""
    said = " ".join([f"{example}.py", *arguments])
    out = KEPT / (re.sub(r"[^a-z0-9]+", "-", f"{said} {RANKS}") + ".json")
    if not out.exists() or "ranks_equal" not in json.loads(out.read_text()):
        tell(f"{said}, {RANKS} ranks")
        out.parent.mkdir(parents=True, exist_ok=True)
        script = [str(ROOT / "examples" / "torch" / f"{example}.py"), *arguments, "--out", str(out)]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run([*launcher, *script], env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{said} failed:\n{done.stderr[-2000:]}")
    record: dict[str, Any] = json.loads(out.read_text())
    if not record["ranks_equal"]:
        raise RuntimeError(f"{said}: the ranks ended with different parameters")
    last = record["epochs"][-1]
    tell(f"{said}: " + ", ".join(f"{name} {last[name]:.2f}" for name in record["headline"]))
    return record


def curves(record: dict[str, Any]) -> dict[str, Any]:
    """What a figure keeps of a run: its numbers after epochs that were evaluated, and seconds until then."""
    names = ["train_loss", *record["headline"]]
    there = [at for at, epoch in enumerate(record["epochs"]) if names[-1] in epoch]
    found: dict[str, Any] = {name: [round(record["epochs"][at][name], 5) for at in there] for name in names}
    found["epoch"] = [at + 1 for at in there]
    seconds = np.cumsum([epoch["train_s"] for epoch in record["epochs"]]).round(2)
    found["trained_s"] = seconds[there].tolist()
    return found


def paired_interval(differences: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean of paired differences (Student's t)."""
    mean, half = float(np.mean(differences)), 0.0
    if len(differences) > 1:
        deviation = float(np.std(differences, ddof=1)) / len(differences) ** 0.5
        half = float(stats.t.ppf(0.975, len(differences) - 1)) * deviation
    return mean - half, mean + half
