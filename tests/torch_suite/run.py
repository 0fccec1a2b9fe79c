"""PyTorch's generic distributed suite with Skyphos, beside Gloo: ``make test-torch-suite``.

Fails if a test that passes with Gloo does not with Skyphos, unless it is one of :data:`EXCEPTIONS`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent

#: Tests that pass with Gloo and need not with Skyphos, and why.
EXCEPTIONS = {
    "test_ddp_logging_data_cpu": "PyTorch itself calls all backends made in Python 'custom' there",
}


def start(backend: str, ranks: int, pattern: str, chosen_as: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start the tests with one backend and size. The suite skips those that do not suit the backend `chosen_as`."""
    name = f"{backend}-{ranks}-{chosen_as}"
    environment = dict(
        os.environ,
        BACKEND=backend,
        CHOSEN_AS=chosen_as,
        WORLD_SIZE=str(ranks),
        OMP_NUM_THREADS="1",
        PYTHONPATH=os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
        # Seconds for one test; PyTorch's default is 300.
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT="120",
    )
    with open(folder / f"{name}.log", "wb") as log:
        command = [sys.executable, str(HERE / "suite.py"), str(folder / f"{name}.jsonl"), pattern]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def outcomes(file: Path) -> dict[str, dict[str, str]]:
    """How each test ended."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {found["test"]: found for found in map(json.loads, lines)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[3, 4], help="sizes of the group (3 and 4)")
    parser.add_argument("-k", dest="pattern", default="", help="only tests whose name has this")
    parser.add_argument("--log", type=Path, help="folder for what the tests print; else a temporary one")
    given = parser.parse_args()
    folder = given.log or Path(tempfile.mkdtemp(prefix="torch-suite-"))
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.jsonl"):
        old.unlink()
    bad = 0
    for ranks in given.ranks:
        begun = time.monotonic()
        running = [start(backend, ranks, given.pattern, "gloo", folder) for backend in ("gloo", "skyphos")]
        for process in running:
            process.wait()
        # With Gloo's name the suite skips the tests of all_to_all, so they run with MPI's.
        start("skyphos", ranks, given.pattern or "all_to_all", "mpi", folder).wait()
        bad += compare(folder, ranks, time.monotonic() - begun)
    print(f"What the tests printed is in {folder}")
    return 1 if bad else 0


def compare(folder: Path, ranks: int, seconds: float) -> int:
    """Print how Skyphos did beside Gloo. Returns the number of tests that failed and should have
    passed, or 1 if none passed with Gloo."""
    gloo, ours = (outcomes(folder / f"{backend}-{ranks}-gloo.jsonl") for backend in ("gloo", "skyphos"))
    more = outcomes(folder / f"skyphos-{ranks}-mpi.jsonl")
    for name, found in more.items():
        if ours.get(name, found)["outcome"] == "skipped":
            ours[name] = found
    passed = {name for name, found in gloo.items() if found["outcome"] == "passed"}
    missed = sorted(name for name in passed if ours.get(name, {}).get("outcome") != "passed")
    also = sum(found["outcome"] == "passed" and name not in passed for name, found in ours.items())
    failed = sorted(name for name, found in ours.items() if found["outcome"] == "failed" and name not in passed)
    bad = [name for name in missed if name not in EXCEPTIONS]
    print(
        f"{ranks} ranks, {seconds:.0f} s: {len(passed)} tests pass with Gloo, {len(passed) - len(missed)} of them with "
        f"Skyphos, and {also} that Gloo does not run or pass"
    )
    for name in missed:
        found = ours.get(name, {"outcome": "did not run", "why": "the suite ended before it"})
        errors = [line for line in found["why"].splitlines() if "Error" in line] or [found["why"]]
        reason = EXCEPTIONS.get(name) or errors[-1]
        print(f"  {'exception' if name in EXCEPTIONS else 'FAILED'}: {name}: {found['outcome']}: {reason}")
    for name in failed:
        print(f"  fails with both: {name}")
    if not passed:
        print("  FAILED: no test passed with Gloo")
    return len(bad) + (not passed)


if __name__ == "__main__":
    sys.exit(main())
