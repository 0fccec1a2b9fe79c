#!/usr/bin/env python3
"""Tests whether the fault campaign finds bugs: plants each patch of this folder, and plays until something is wrong.

`make faults-planted` plants all patches, `make faults-planted PLANTED="03 17"` those whose names begin with 03 or 17.
docs/faults.md describes each bug, and says after how many seeds it is found.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PATCHES = Path(__file__).resolve().parent
ROOT = PATCHES.parents[4]
TREE = ROOT / "target" / "planted-tree"
BUILT = ROOT / "target" / "planted"

SEEDS = int(os.environ.get("SEEDS", "10000"))
SEEDS_UNPATCHED = 2000
# Time limit of a campaign, by which a play that never ends is found.
LIMIT_S = float(os.environ.get("MINUTES", "10")) * 60

# How many characters of a message are shown.
MESSAGE_CHARS = 160

TEST = ["cargo", "test", "--quiet", "--package", "skyphos", "--test", "faults"]


@dataclass
class Tried:
    """The outcome of one patch."""

    found: bool
    after: str
    what: str
    undisturbed: str = ""


def git(*words: str, at: Path = ROOT) -> str:
    done = subprocess.run(["git", *words], cwd=at, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def remove_tree() -> None:
    if TREE.exists():
        subprocess.run(["git", "worktree", "remove", "--force", str(TREE)], cwd=ROOT, check=False, capture_output=True)
        shutil.rmtree(TREE, ignore_errors=True)
    git("worktree", "prune")


@contextmanager
def tree() -> Iterator[None]:
    """A worktree with the tracked files as they are now, which is removed afterwards."""
    remove_tree()
    try:
        git("worktree", "add", "--detach", str(TREE), git("stash", "create") or "HEAD")
        yield
    finally:
        remove_tree()


def run(command: list[str], limit_s: float | None = None, **env: str) -> tuple[int | None, str]:
    """Run a command; return its exit status, or None after the time limit, and its output. Its children end with it."""
    env = {**os.environ, "CARGO_TARGET_DIR": str(BUILT), **env}
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        started = subprocess.Popen(
            command, cwd=TREE, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = started.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()
        output.seek(0)
        return status, output.read()


def build() -> str | None:
    """Build the test; return the compiler's errors, or None if there are none."""
    try:
        status, output = run([*TEST, "--no-run"])
    except BaseException:
        # Files that an ended compiler left there have made later builds fail.
        shutil.rmtree(BUILT / "debug" / "incremental", ignore_errors=True)
        raise
    return None if status == 0 else output[-2000:]


def undisturbed() -> str:
    status, _ = run([*TEST, "plays_without_faults"], LIMIT_S)
    return "right" if status == 0 else "wrong"


def campaign(seeds: int) -> Tried:
    """Plays seeds until something is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state.json"
        status, output = run(
            [*TEST, "campaign", "--", "--ignored", "--nocapture"],
            LIMIT_S,
            SKYPHOS_FAULT_SEEDS=str(seeds),
            SKYPHOS_FAULT_FILE=str(file),
            SKYPHOS_FAULT_UNTIL_WRONG="1",
        )
        state = json.loads(file.read_text()) if file.exists() else {}
    tried = int(state.get("tried", 0))
    by_seed = {int(text.split()[1].rstrip(":")): text for text in state.get("tally", {}).get("wrong", [])}
    if by_seed:
        first = min(by_seed)
        what = by_seed[first].splitlines()[0].partition(": ")[2]
        return Tried(True, f"{first + 1} ({len(by_seed)} of {tried})", what)
    if status is None:
        return Tried(True, f"{tried}, then a hang", f"a play did not end within {LIMIT_S:.0f} s")
    if status != 0:
        # A panic outside of the simulated processes ends the test itself.
        panic = re.search(r"panicked at [^\n]*\n([^\n]*)", output)
        what = panic[1] if panic else " ".join(output.split())[-200:]
        return Tried(True, f"{tried}, then an end", what)
    return Tried(False, f"not in {tried}", "")


def plant(patch: Path) -> Tried:
    git("reset", "--quiet", "--hard", at=TREE)
    applied = subprocess.run(["git", "apply", str(patch)], cwd=TREE, check=False, capture_output=True, text=True)
    if applied.returncode != 0:
        return Tried(False, "-", f"does not apply and is to be made again: {applied.stderr.strip()}")
    wrong = build()
    if wrong is not None:
        return Tried(False, "-", f"does not compile and is to be made again:\n{wrong}")
    right = undisturbed()
    tried = campaign(SEEDS)
    tried.undisturbed = right
    return tried


def row(name: str, undisturbed: str, after: str, what: str) -> str:
    what = what if len(what) <= MESSAGE_CHARS else what[: MESSAGE_CHARS - 1] + "…"
    return f"{name:36} {undisturbed:12} {after:24} {what}"


def main() -> int:
    wanted = sys.argv[1:]
    patches = sorted(PATCHES.glob("*.patch"))
    if wanted:
        patches = [patch for patch in patches if any(patch.name.startswith(name) for name in wanted)]
    if not patches:
        print(f"no such patch in {PATCHES}", file=sys.stderr)
        return 2
    missed = []
    with tree():
        print(f"without a bug: {SEEDS_UNPATCHED} seeds", flush=True)
        wrong = build()
        if wrong is not None:
            print(f"the tree does not compile:\n{wrong}", file=sys.stderr)
            return 2
        right, tried = undisturbed(), campaign(SEEDS_UNPATCHED)
        if right != "right" or tried.found:
            print(f"something is wrong without any bug: {right} undisturbed; {tried.what}", file=sys.stderr)
            return 2
        print(row("bug", "undisturbed", "found after seeds", "first message"), flush=True)
        for patch in patches:
            tried = plant(patch)
            print(row(patch.stem, tried.undisturbed, tried.after, tried.what), flush=True)
            if not tried.found:
                missed.append(patch.stem)
                print(tried.what, file=sys.stderr)
    print(f"{len(patches) - len(missed)} of {len(patches)} found")
    if missed:
        print(f"not found: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    # SIGTERM raises SystemExit, so that child processes end and the tree is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
