"""Record of a run as a JSON file, replaced whole after each epoch, and a progress bar on rank 0."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from group import Place
from options import Run
from skyphos.files.whole_file import replacing

__all__ = ["Display", "Record"]


class Record:
    """A run as plain values: rank 0 writes it after each epoch, so that an interrupted run has a record too."""

    def __init__(self, name: str, headline: tuple[str, ...], run: Run, place: Place, parameters: int) -> None:
        config = asdict(run)
        self._path = str(config.pop("out") or "") if place.rank == 0 else ""
        self._begin = time.perf_counter()
        self.entry: dict[str, Any] = {
            "example": name,
            "headline": list(headline),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "ranks": place.size,
            "config": config,
            "parameters": parameters,
            "machine": {
                "processor": platform.processor() or platform.machine(),
                "cores": os.cpu_count(),
                "threads_per_rank": torch.get_num_threads(),
                "torch": torch.__version__,
            },
            "epochs": [],
        }

    def add(self, epoch: dict[str, Any]) -> None:
        """Record an epoch and its end time."""
        epoch["elapsed_s"] = time.perf_counter() - self._begin
        self.entry["epochs"].append(epoch)
        self._write()

    def end(self, all_equal: bool) -> None:
        """Record whether all ranks have the same parameters at the end."""
        self.entry["ranks_equal"] = all_equal
        self._write()

    def _write(self) -> None:
        if self._path:
            with replacing(self._path) as file:
                file.write(json.dumps(self.entry, indent=1).encode())


class Display:
    """A progress bar for the steps of an epoch, if there is a terminal, and a line for each epoch."""

    def __init__(self, record: Record, *, quiet: bool) -> None:
        self._record, self._quiet = record, quiet
        self._console = Console(quiet=quiet, highlight=False, soft_wrap=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        hidden = quiet or not self._console.is_terminal
        self._bar = Progress(*columns, console=self._console, transient=True, disable=hidden)
        self._task = self._bar.add_task("", total=None)
        self._bar.start()
        entry, config = record.entry, record.entry["config"]
        ranks = f"{entry['ranks']} rank{'s' * (entry['ranks'] > 1)}"
        self._console.print(
            f"{entry['example']}: {entry['parameters']:,} parameters, {ranks}, {config['compress']} over "
            f"{config['backend']}, preset {config['preset']}"
        )

    def step(self, epoch: int, steps: int) -> None:
        """Advance by one step."""
        epochs = self._record.entry["config"]["settings"]["epochs"]
        self._bar.update(self._task, description=f"epoch {epoch + 1} of {epochs}", total=steps, advance=1)

    def epoch(self, entry: Mapping[str, Any]) -> None:
        """Print a line for the epoch, and reset the bar."""
        self._bar.reset(self._task)
        headline = ", ".join(f"{name} {entry[name]:.4g}" for name in self._record.entry["headline"] if name in entry)
        parts = ", ".join(f"{name} {value:.1f}" for name, value in entry["seconds"].items())
        took, headline = f"{entry['train_s']:.1f} s ({parts})", headline or "not evaluated"
        self._console.print(f"epoch {entry['epoch']:3}  loss {entry['train_loss']:.4f}  {headline}  {took}")

    def end(self) -> None:
        """Print whether all ranks have the same parameters."""
        self._bar.stop()
        same = self._record.entry["ranks_equal"]
        self._console.print("all ranks have the same parameters" if same else "RANKS DIFFER in their parameters")
