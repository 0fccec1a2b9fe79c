"""Two builds of Skyphos on the same benchmarks, alternating: median times, and ratios of neighbouring runs.

    python bench/compare.py --before /path/to/tree --after . loopback_small small_calls startup
    python bench/compare.py --before /path/to/tree --after . --rounds 6 --json ratios.json

A tree is a project folder with the native library in its ``python/skyphos``. Both builds run this folder's benchmarks,
so only the package differs; with ``--own-bench`` each runs the ``bench/`` of its tree, for benchmarks that use names
which only one of the builds has. Each round runs each benchmark once with each build, in alternating order. Every line
of the form ``NAME  TIME ms`` (or s, µs) that a benchmark prints is compared, and each row of a table with a heading
such as ``median, ms``. Rust examples such as ``kernel_rates`` are not run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from common import median_ratio

HERE = Path(__file__).resolve().parent

#: Arguments of the benchmarks: each runs as ``python bench/NAME.py ARGUMENTS``.
COMMANDS: dict[str, list[str]] = {
    "rmat_pagerank": ["rmat_pagerank.py"],
    "loopback_small": ["loopback_small.py"],
    "small_calls": ["small_calls.py"],
    "call_latency": ["call_latency.py", "--rounds", "1"],
    "startup": ["startup.py"],
    "mpi": ["mpi.py"],
    "topk_allreduce": ["topk_allreduce.py"],
    "broadcast": ["broadcast.py", "--only", "chain"],
    "dsop": ["dsop", "-n", "4000", "--repetitions", "1"],
    "torch_embedding": ["torch_embedding.py", "--place", "host"],
    "little_overlap": ["lab", "little_overlap", "--placements", "1"],
    "much_overlap": ["lab", "much_overlap", "--placements", "1"],
}

#: ``NAME   TIME UNIT`` at the start of a line, as the benchmarks' reports print it. Tables may leave out the unit.
FIGURE = re.compile(r"^[ │]*(?P<name>\S.*?)\s*(?:\s{2,}|│)\s*(?P<value>[\d,]+\.?\d*)(?:\s*(?P<unit>ms|µs|s)\b)?")
#: A table's line of headings; its first heading with a unit counts.
HEADING = re.compile(r"^┃.*?, (?P<unit>ms|µs|s) ")
UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}


def figures(text: str) -> dict[str, float]:
    """Seconds by name, from a benchmark's output; repeated names are numbered."""
    found: dict[str, float] = {}
    table_unit = None
    for line in text.splitlines():
        if line.startswith("┃"):
            match = HEADING.match(line)
            table_unit = match and match["unit"]
        match = FIGURE.match(line)
        unit = match and (match["unit"] or (table_unit if line.startswith("│") else None))
        if match is None or unit is None:
            continue
        name, count = match["name"], 2
        while name in found:
            name, count = f"{match['name']} ({count})", count + 1
        found[name] = float(match["value"].replace(",", "")) * UNITS[unit]
    return found


def run(tree: Path, name: str, bench: Path) -> dict[str, float]:
    """Figures of one run of the folder ``bench``'s benchmark ``name``, with a tree's package."""
    env = os.environ | {"PYTHONPATH": str(tree / "python"), "COLUMNS": "160"}
    command = [sys.executable, str(bench / COMMANDS[name][0]), *COMMANDS[name][1:]]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed with the package of {tree}: status {done.returncode}")
    found = figures(done.stdout)
    if not found:
        raise SystemExit(f"{name} printed no figure that is understood:\n{done.stdout}")
    return found


def compare(
    name: str, before: Path, after: Path, rounds: int, own_bench: bool
) -> dict[str, tuple[float, float, float]]:
    """Median seconds before and after, and the median ratio of neighbouring runs, by figure."""
    runs: dict[Path, list[dict[str, float]]] = {before: [], after: []}
    for turn in range(rounds):
        for tree in (before, after) if turn % 2 == 0 else (after, before):
            runs[tree].append(run(tree, name, tree / "bench" if own_bench else HERE))
    shared = [figure for figure in runs[after][0] if all(figure in one for one in runs[before] + runs[after])]
    found = {}
    for figure in shared:
        old, new = ([one[figure] for one in runs[tree]] for tree in (before, after))
        found[figure] = (median(old), median(new), median_ratio(new, old))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="BENCHMARK", help=", ".join(COMMANDS))
    parser.add_argument("--before", type=Path, required=True, metavar="TREE")
    parser.add_argument("--after", type=Path, default=HERE.parent, metavar="TREE")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--own-bench", action="store_true", help="each tree runs its own bench/")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    names = options.names or list(COMMANDS)
    if unknown := sorted(set(names) - set(COMMANDS)):
        parser.error(f"unknown benchmark {unknown[0]}: use some of {', '.join(COMMANDS)}")
    before, after = options.before.resolve(), options.after.resolve()
    table = Table(title=f"{before} and {after}, {options.rounds} rounds")
    for column in ("benchmark", "figure", "before, ms", "after, ms", "after / before"):
        table.add_column(column, justify="left" if column in ("benchmark", "figure") else "right")
    kept = {}
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        kept[name] = compare(name, before, after, options.rounds, options.own_bench)
        for figure, (old, new, ratio) in kept[name].items():
            table.add_row(name, figure, f"{1e3 * old:,.4g}", f"{1e3 * new:,.4g}", f"{ratio:.3f}")
        if options.json is not None:
            options.json.write_text(json.dumps(kept, indent=1))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
