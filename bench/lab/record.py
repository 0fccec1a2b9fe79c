"""The results as JSON, with machine and date, in a file that appears complete or not at all."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from skyphos.files.whole_file import replacing

from .run import Result
from .summary import Limits, Line, fairness, headline


def record(result: Result, found: list[Line], bound: Limits) -> dict[str, Any]:
    """All results as plain values; times in seconds."""
    scenario = asdict(result.scenario)
    scenario.pop("folder")
    return {
        "scenario": scenario,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "nnz": result.nnz,
        "union": result.union,
        "received_bytes": result.least_bytes,
        "limits": asdict(bound),
        "figures": [asdict(line) for line in found],
        "times_s": result.times,
        "first_to_last_s": result.spans,
        "began_within_s": result.skews,
        "not_run": result.absent,
        "failed": result.failed,
        "fairness": fairness(result.scenario, found, bound),
        "headline": headline(found, bound),
    }


def write(path: Path, entry: dict[str, Any]) -> None:
    """Write a record to a file."""
    with replacing(str(path)) as file:
        file.write(json.dumps(entry, indent=1).encode() + b"\n")


def machine() -> dict[str, Any]:
    """Description of the machine, and the contenders' versions."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = named[0].split(":", 1)[1].strip() if named else model
    versions = {}
    for package in ("skyphos", "numpy", "mpich", "mpi4py", "torch"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": versions,
    }
