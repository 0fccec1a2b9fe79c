"""Runs of `examples/torch` for figures. Completed runs are stored, so an interrupted figure continues after them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from skyphos.files.whole_file import replacing

from .style import Log

ROOT = Path(__file__).resolve().parents[2]
#: Stored runs are not trained again; remove them after a change of the training.
KEPT = ROOT / "docs" / "figures" / "training"
#: Folder of runs with --quick, ignored by git.
TRIED = ROOT / "bench" / "lab" / "results" / "training"
#: The paper's number of ranks on CIFAR-10.
RANKS = 8


def trained(
    example: str,
    arguments: Sequence[str],
    log: Log,
    train: Callable[[str, Sequence[str]], dict[str, Any]] | None = None,
    place: str = "",
) -> dict[str, Any]:
    """The stored record of a run, which is made first if it is not stored.

    ``train`` makes it (default: :data:`RANKS` processes on this machine). ``place`` says where, for the log and the
    file's name only.
    """
    command = " ".join([example, *arguments, place]).strip()
    folder = TRIED if "smoke" in arguments else KEPT
    out = folder / (re.sub(r"[^a-z0-9.]+", "-", command) + ".json")
    if not out.exists():
        log(command)
        record = (train or on_ranks)(example, arguments)
        if not record["ranks_equal"]:
            raise RuntimeError(f"{command}: the ranks ended with different parameters")
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(str(out)) as file:
            file.write((json.dumps(_kept(record), indent=1) + "\n").encode())
    kept: dict[str, Any] = json.loads(out.read_text())
    last = kept["curves"]
    log(f"{command}: " + ", ".join(f"{name} {last[name][-1]:.2f}" for name in kept["headline"]))
    return kept


def on_ranks(example: str, arguments: Sequence[str], ranks: int = RANKS) -> dict[str, Any]:
    """Train with single-threaded processes on this machine, which share its cores."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.json"
        script = [str(ROOT / "examples" / "torch" / f"{example}.py"), *arguments, "--out", str(out)]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run([*launcher, *script], env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{example}.py {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
        record: dict[str, Any] = json.loads(out.read_text())
        return record


def _kept(record: dict[str, Any]) -> dict[str, Any]:
    """The settings and curves of a run's record, without its long parts."""
    names = ("example", "headline", "date", "ranks", "config", "parameters", "machine")
    steps = sum(epoch["steps"] for epoch in record["epochs"])
    return {name: record[name] for name in names} | {"steps": steps, "curves": curves(record)}


def curves(record: dict[str, Any]) -> dict[str, Any]:
    """The metrics of a run's record after each evaluated epoch, and the seconds until then."""
    names = ["train_loss", *record["headline"]]
    evaluated = [at for at, epoch in enumerate(record["epochs"]) if names[-1] in epoch]
    found: dict[str, Any] = {name: [round(record["epochs"][at][name], 5) for at in evaluated] for name in names}
    found["epoch"] = [at + 1 for at in evaluated]
    seconds = np.cumsum([epoch["train_s"] for epoch in record["epochs"]]).round(2)
    found["trained_s"] = seconds[evaluated].tolist()
    return found


def paired_interval(differences: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean of paired differences (Student's t)."""
    mean, half = float(np.mean(differences)), 0.0
    if len(differences) > 1:
        deviation = float(np.std(differences, ddof=1)) / len(differences) ** 0.5
        half = float(stats.t.ppf(0.975, len(differences) - 1)) * deviation
    return mean - half, mean + half
