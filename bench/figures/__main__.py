"""`python bench/figures [NAME ...]`: measure and draw figures of the papers. `docs/reproduction.md` shows them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import click

if not __package__:  # started by its folder's name
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from figures.style import save_picture, save_record
from lab.cluster import NoCluster, unavailable

NAMES = (
    "sparcml_fig1",
    "sparcml_fig4",
    "sparcml_fig5",
    "sparcml_fig6",
    "sparcml_table3",
    "topk_batch",
    "sparcml_fig7",
    "sparcml_fig3",
    "kylix_fig2",
    "twister_lab",
    "twister_fig7",
    "twister_table9",
    "incast",
    "kylix_fig4",
    "kylix_fig5",
    "kylix_fig6",
    "kylix_fig9",
    "kylix_table1",
    "kylix_replicas",
    "sparse_allreduce_fig3",
    "sparse_allreduce_fig5",
    "sparse_allreduce_fig6",
    "sparse_allreduce_fig7",
    "kylix_skew",
    "twister_fig4",
    "twister_fig6",
    "twister_fig8",
    "twister_fig9",
    "dsop_fig2",
    "dsop_shapes",
    "dsop_lab",
)
_BENCH = Path(__file__).resolve().parent.parent
_DOCS = _BENCH.parent / "docs" / "figures"
_QUICK = _BENCH / "lab" / "results"  # ignored by git


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(NAMES), metavar="[NAME]...")
@click.option("--quick", is_flag=True, help="Small sizes and few repetitions, only to see that it works.")
@click.option("--redraw", is_flag=True, help="Draw again from the records, without measuring.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the JSON and PNG files.  [default: docs/figures; bench/lab/results with --quick]",
)
def main(names: tuple[str, ...], *, quick: bool, redraw: bool, output: Path | None) -> None:
    """Measure and draw figures; all of them if none is named."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))
    folder = output or (_QUICK if quick else _DOCS)
    folder.mkdir(parents=True, exist_ok=True)
    impossible = unavailable()
    left_out = []
    for name in names or NAMES:
        figure: Any = import_module(f"figures.{name}")
        if redraw:
            entry = json.loads((folder / f"{name}.json").read_text())
        elif figure.NEEDS_ROOT and impossible:
            left_out.append(name)
            continue
        else:
            click.echo(figure.TITLE)
            begin, load = time.monotonic(), os.getloadavg()
            try:
                points = figure.measure(quick, lambda text, since=begin: _print_progress(since, text))
            except NoCluster as error:
                raise click.ClickException(str(error)) from None
            entry = save_record(folder / f"{name}.json", name, quick, {"load_before": load, **points})
        save_picture(figure.draw(entry), folder / f"{name}.png")
        click.echo(f"written: {folder / name}.png")
    if left_out:
        raise click.ClickException(f"not measured: {', '.join(left_out)}: {impossible}")


def _print_progress(since: float, text: str) -> None:
    click.echo(f"  {time.monotonic() - since:5.0f} s  {text}")


if __name__ == "__main__":
    main(prog_name="bench/figures")
