"""`python bench/regret`: the sweep, its table and summary. `bench/README.md` explains them.

`--stored` measures nothing, and prints the stored results. Each place's table is stored beside its times.
"""

from __future__ import annotations

import io
import json
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.table import Table

if not __package__:  # started by its folder's name
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from lab.cluster import NoCluster, unavailable
from lab.record import machine, write
from regret.cases import DENSITIES, KINDS, RANKS, SIZES, Case, cases
from regret.score import Score, score, summary
from regret.sweep import Measured, Settings, sweep

_RESULTS = Path(__file__).resolve().parent / "results"


@click.command()
@click.option("--place", "places", multiple=True, help='"host", or a rate of links.  [default: 250mbit and host]')
@click.option("--ranks", multiple=True, type=click.Choice([str(p) for p in RANKS]), help="Sizes of groups.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="How indices are drawn.")
@click.option("--log2n", multiple=True, type=click.Choice([str(n.bit_length() - 1) for n in SIZES]), help="Log2 of n.")
@click.option("--density", multiple=True, type=click.Choice([f"{d:g}" for d in DENSITIES]), help="Densities.")
@click.option("--seconds", default=6.0, show_default=True, help="Time for the iterations of a case.")
@click.option("--stored", is_flag=True, help="Print the stored results, without measuring.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), default=_RESULTS, help="Folder of results.")
def main(
    places: tuple[str, ...],
    *,
    ranks: tuple[str, ...],
    kinds: tuple[str, ...],
    log2n: tuple[str, ...],
    density: tuple[str, ...],
    seconds: float,
    stored: bool,
    output: Path,
) -> None:
    """Measure `auto` against every fixed choice."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))
    console = Console(width=None if sys.stdout.isatty() else 150)
    places = places or ("250mbit", "host")
    if stored:
        for place in places:
            _show(place, _stored(output / f"{place}.json"), console, output)
        return
    reason = unavailable()
    if reason and places != ("host",):
        raise click.ClickException(reason)

    def wanted(case: Case) -> bool:
        return (
            (not kinds or case.kind in kinds)
            and (not log2n or str(case.n.bit_length() - 1) in log2n)
            and (not density or f"{case.density:g}" in density)
        )

    scores: dict[str, list[Score]] = {place: [] for place in places}
    output.mkdir(parents=True, exist_ok=True)
    try:
        for place in places:
            for size in RANKS:
                if ranks and str(size) not in ranks:
                    continue
                chosen = [case for case in cases(size) if wanted(case)]
                settings = Settings(place, find_spec("torch") is not None, seconds)
                found = sweep(settings, size, chosen, console.log)
                scores[place] += [score(one) for one in found]
                records = [_record(one.measured) for one in scores[place]]
                write(output / f"{place}.json", {"machine": machine(), "cases": records})
    except NoCluster as error:
        raise click.ClickException(str(error)) from None
    for place, all_scores in scores.items():
        _show(place, all_scores, console, output)


def _stored(path: Path) -> list[Score]:
    """The scores of an earlier sweep."""
    if not path.exists():
        raise click.ClickException(f"{path} is not there: run without --stored first")
    keys = ("place", "times_s", "chosen", "predicted_s", "hopeless_s")
    found = json.loads(path.read_text())["cases"]
    return [score(Measured(Case(**one["case"]), *(one[key] for key in keys))) for one in found]


def _show(place: str, scores: list[Score], console: Console, output: Path) -> None:
    """Print the table, and write it to a file."""
    page = Console(file=io.StringIO(), width=150)
    for to in (console, page):
        _print(place, scores, to)
    assert isinstance(page.file, io.StringIO)
    text = "\n".join(line.rstrip() for line in page.file.getvalue().splitlines())
    partial = output / f"{place}.txt.part"
    partial.write_text(text + "\n")
    partial.replace(output / f"{place}.txt")


def _print(place: str, scores: list[Score], console: Console) -> None:
    table = Table(title=f"auto against the best fixed choice, {place}", box=None)
    for heading in ("case", "auto chose", "auto ms", "best fixed", "ms", "ratio", "best dense", "ms", "predicted"):
        table.add_column(heading, justify="left" if heading in ("case", "auto chose", "best fixed") else "right")
    for one in scores:
        measured = one.measured
        predicted = "" if measured.predicted_s is None else f"{measured.predicted_s / one.auto_s:.2f}"
        mark = " !" if one.regret > 1.3 else ""
        dense_mark = " !" if one.beaten_by_dense else ""
        table.add_row(
            measured.case.name(),
            measured.chosen,
            f"{1e3 * one.auto_s:.2f}",
            one.best,
            f"{1e3 * one.best_s:.2f}",
            f"{one.regret:.2f}{mark}",
            one.dense or "-",
            f"{1e3 * one.dense_s:.2f}{dense_mark}",
            predicted,
        )
    console.print(table)
    whole = summary(scores)
    console.print(
        f"{place}: {whole.cases} cases, geometric mean {whole.mean:.3f}, worst {whole.worst.regret:.2f} "
        f"({whole.worst.measured.case.name()}), {whole.over_30_percent} beyond 1.3, "
        f"{whole.beaten_by_dense} slower than the fastest dense algorithm by more than 5 % + 100 µs",
        highlight=False,
    )
    errors = [abs(one.measured.predicted_s / one.auto_s - 1) for one in scores if one.measured.predicted_s is not None]
    if errors:
        console.print(f"{place}: predicted time is off by {median(errors):.0%} (median)", highlight=False)


def _record(measured: Measured) -> dict[str, Any]:
    return {
        "case": measured.case.record(),
        "place": measured.place,
        "chosen": measured.chosen,
        "predicted_s": measured.predicted_s,
        "times_s": {name: [round(t, 7) for t in times] for name, times in measured.times.items()},
        "hopeless_s": {name: round(t, 7) for name, t in measured.hopeless.items()},
    }


if __name__ == "__main__":
    main()
