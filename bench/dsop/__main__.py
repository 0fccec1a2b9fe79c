"""Skyphos's sums of outer products, compared with the variants of *DSOP* (Enderlin et al., section 5) in one run.

    sudo .venv/bin/python bench/dsop                              # 8 hosts at 1 Gbit/s, N = M = 4000, one pair
    .venv/bin/python bench/dsop --place host --mpi DIR            # 8 ranks here; DIR has another mpicc and mpiexec
    sudo .venv/bin/python bench/dsop --regret -n 1000 -n 8000     # `auto` against every algorithm by name
    sudo .venv/bin/python bench/dsop --product                    # one rank's product against NumPy's BLAS

By the paper's rules (section 6.1): iterations begin at a barrier, the first is dropped, the slowest rank
counts, and the median over a group's iterations is one observation; each repetition starts a new group of processes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.console import Console
from rich.table import Table

if not __package__:  # started by its folder's name
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from dsop.places import MPI, OURS, VARIANTS, Case, mpi_here, ours, variant
from dsop.product import product
from lab.cluster import Cluster, Loopback
from lab.record import machine, write

_BARS = {("allreduce", "MPICH's allreduce of the product"): 10.0, ("g-rabenseifner-dsop", "the paper's algorithm"): 3.0}

#: Observations by contender and case.
Found = dict[str, dict[Case, list[float]]]


def observe(
    place: Any, mpi: MPI | None, contenders: tuple[list[str], list[str]], cases: list[Case], options: Any
) -> Found:
    """Run our algorithms and the paper's variants (``contenders``); an observation is the median of a repetition."""
    names, variants = contenders
    found: Found = {}
    note = Console(stderr=True).log

    def add(name: str, case: Case, seconds: list[float]) -> None:
        found.setdefault(name, {}).setdefault(case, []).append(median(seconds))

    for repetition in range(options["repetitions"]):
        if names:
            for name, by_case in ours(place, names, cases, options["iterations"], note).items():
                for case, seconds in by_case.items():
                    add(f"ours: {name}", case, seconds)
        for case in cases:
            for name in variants:
                assert mpi is not None
                note(f"{repetition + 1} of {options['repetitions']}: {name} {case.n} by {case.m}, {case.pairs} pairs")
                add(name, case, variant(place, mpi, name, case, options["iterations"]))
    return found


def show(found: Found, cases: list[Case], base: str) -> None:
    table = Table(title="milliseconds: median of observations (least to most), and how many times as fast as " + base)
    table.add_column("")
    for case in cases:
        table.add_column(f"{case.n} by {case.m}, {case.pairs} pairs", justify="right")
    for name, by_case in found.items():
        row = []
        for case in cases:
            times = by_case[case]
            speedup = f"  {median(found[base][case]) / median(times):.2f}×" if base in found else ""
            row.append(f"{1e3 * median(times):,.1f} ({1e3 * min(times):,.1f} to {1e3 * max(times):,.1f}){speedup}")
        table.add_row(name, *row)
    Console(width=60 + 40 * len(cases)).print(table)


def verdicts(found: Found, cases: list[Case], regret: bool, best_of: bool) -> None:
    """Compare the times of `auto` with their bars; with ``best_of`` only the paper's fastest variant counts."""
    for case in cases:
        where = f"{case.n} by {case.m}, {case.pairs} pair{'s' * (case.pairs > 1)}"
        auto = median(found["ours: auto"][case]) if "ours: auto" in found else None
        if auto is None:
            continue
        for (name, what), bar in _BARS.items():
            if name in found and not best_of:
                speedup = median(found[name][case]) / auto
                print(f"{where}: auto {speedup:.1f} times as fast as {what}, bar {bar:g}")
        theirs = {name: median(by_case[case]) for name, by_case in found.items() if not name.startswith("ours")}
        if best_of and theirs:
            name = min(theirs, key=lambda name: theirs[name])
            print(f"{where}: auto takes {auto / theirs[name]:.2f} times as long as the fastest variant, {name}; bar 1")
        fixed = {
            name: median(by_case[case])
            for name, by_case in found.items()
            if name.startswith("ours") and name != "ours: auto"
        }
        if regret and fixed:
            best = min(fixed, key=lambda name: fixed[name])
            print(f"{where}: auto takes {auto / fixed[best]:.2f} times as long as the best choice, {best}; bar 1.1")


@click.command(help=__doc__)
@click.option("--place", default="1gbit", show_default=True, help='"host", or a rate of the lab\'s links.')
@click.option("--hosts", default=8, show_default=True, help="Hosts of the lab, or ranks here.")
@click.option("-n", "rows", multiple=True, type=int, help="N; M too, unless -m is given.  [default: 4000]")
@click.option("-m", "cols", type=int, help="M.")
@click.option("-r", "pairs", multiple=True, type=int, help="Pairs of a rank.  [default: 1]")
@click.option("--iterations", default=24, show_default=True)
@click.option("--repetitions", default=1, show_default=True)
@click.option("--variants", default="allreduce,allgather,allreduce-ring,g-rabenseifner-dsop", show_default=True)
@click.option("--all-variants", is_flag=True, help="All variants of the paper's section 5.")
@click.option("--ours", "names", default="auto", show_default=True, help="Algorithms.")
@click.option("--regret", is_flag=True, help="All algorithms of Skyphos, and none of the paper's.")
@click.option("--mpi", "folder", type=click.Path(exists=True, path_type=Path), help="A folder with mpicc and mpiexec.")
@click.option("--json", "result", type=click.Path(path_type=Path), help="File for all observations.")
@click.option("--product", "product_only", is_flag=True, help="Measure only the local product.")
def main(**options: Any) -> None:
    if options["product_only"]:
        return product()
    names = list(OURS) if options["regret"] else [name for name in options["names"].split(",") if name]
    variants = [name for name in options["variants"].split(",") if name]
    variants = list(VARIANTS) if options["all_variants"] else [] if options["regret"] else variants
    rows, pairs = options["rows"] or (4000,), options["pairs"] or (1,)
    cases = [Case(n, options["cols"] or n, r) for n in rows for r in pairs]
    here = options["place"] == "host"
    with TemporaryDirectory() as folder:
        mpi = MPI.compiled(options["folder"] or mpi_here(), Path(folder)) if variants else None
        place: Any = Loopback(options["hosts"]) if here else Cluster(options["hosts"], options["place"], "128k")
        with place:
            found = observe(place, mpi, (names, variants), cases, options)
    base = "allreduce" if "allreduce" in found else next(iter(found))
    show(found, cases, base)
    verdicts(found, cases, options["regret"], here)
    if options["result"] is not None:
        flat = [
            {"name": name, "n": case.n, "m": case.m, "pairs": case.pairs, "seconds": seconds}
            for name, by_case in found.items()
            for case, seconds in by_case.items()
        ]
        write(
            options["result"],
            {"machine": machine(), "place": options["place"], "hosts": options["hosts"], "rows": flat},
        )


if __name__ == "__main__":
    main()
