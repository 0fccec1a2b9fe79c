"""Compares runs: curves against epochs and against time, and a table, on one self-contained page.

    python examples/torch/compare.py dense.json topk.json --html runs.html --png runs.png

Each run is a file that one of the examples wrote (``--out``). The table compares the other runs with the first.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import matplotlib
from markupsafe import Markup
from matplotlib import pyplot

from skyphos.files.whole_file import replacing
from skyphos.pages.template import fill
from skyphos.text.plain_text import encoded
from skyphos.text.quantities import human_bytes, human_seconds

matplotlib.use("Agg")

# The light colours of the pages' style sheet.
INK, CLAY, CUP, LINE, FAINT, PAPER = "#2b2320", "#b4532a", "#f4e6d8", "#d9cdbf", "#7d6e63", "#fbf7f0"

# Dark to light, so that they can be told apart in grey, together with dashes.
COLOURS = (INK, CLAY, "#1f6f8b", "#c98d6d", "#5b9a68", "#d9a441", "#9aa88b", "#6b7f8c")
DASHES = ("-", "--", "-.", ":")

Run = dict[str, Any]


def label(run: Run) -> str:
    """The settings in which a run differs from others of its example."""
    config = run["config"]
    settings = config["settings"]
    method = str(config["compress"])
    if method == "topk":
        method = f"top {settings['k']} of {settings['bucket']}"
        method += ", momentum corrected" if settings["momentum_correction"] else ""
    if method == "bmuf":
        method = f"block momentum, every {settings['every']}"
    elif method != "dense":
        bits = settings["bits"] or (4 if config["compress"] == "qsgd" else None)
        method += f", {bits} bits" if bits else ""
    method += ", outer products" if config["outer_products"] else ""
    if config["compress"] in ("topk", "qsgd") and config["levels"] == 2:
        method += ", hosts first"
    return f"{method}, {config['backend']}, {run['ranks']} rank{'s' if run['ranks'] > 1 else ''}"


def labels(runs: Sequence[Run]) -> list[str]:
    """A label for each run, with further settings where two labels would be equal."""
    plain, facts = [label(run) for run in runs], [_facts(run) for run in runs]
    distinct = []
    for one, mine in zip(plain, facts, strict=True):
        alike = [theirs for other, theirs in zip(plain, facts, strict=True) if other == one]
        differing = [name for name in mine if any(theirs.get(name) != mine[name] for theirs in alike)]
        distinct.append("".join([one, *(f", {name.replace('_', ' ')} {mine[name]}" for name in differing)]))
    return distinct


def _facts(run: Run) -> dict[str, Any]:
    config = run["config"]
    return {"task": run["example"], **config["settings"], "preset": config["preset"], "seed": config["seed"]}


def trained_s(run: Run) -> list[float]:
    """Seconds of training until the end of each epoch, without evaluation."""
    found, total = [], 0.0
    for epoch in run["epochs"]:
        total += epoch["train_s"]
        found.append(total)
    return found


def figure(runs: Sequence[Run]) -> Any:
    """The loss and the metrics of all runs, against epochs on the left and against time on the right."""
    names = list(dict.fromkeys(name for run in runs for name in run["headline"]))
    rows = [*names, "train_loss"]
    named = list(zip(runs, labels(runs), strict=True))
    style = {"font.family": "serif", "font.size": 10, "axes.edgecolor": LINE}
    style |= {"text.color": INK, "axes.labelcolor": FAINT, "xtick.color": FAINT, "ytick.color": FAINT}
    with matplotlib.rc_context(style):
        made, axes = pyplot.subplots(
            len(rows), 2, figsize=(9.2, 2.6 * len(rows) + 0.4), layout="constrained", squeeze=False
        )
        made.patch.set_alpha(0)
        for (left, right), name in zip(axes, rows, strict=True):
            for number, (run, run_label) in enumerate(named):
                recorded = [at for at, epoch in enumerate(run["epochs"]) if name in epoch]
                values = [run["epochs"][at][name] for at in recorded]
                # A single epoch is drawn as a dot.
                line: dict[str, Any] = {"marker": "o" if len(values) == 1 else ""}
                line |= {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}
                if values:
                    left.plot([at + 1 for at in recorded], values, label=run_label, **line)
                    seconds = trained_s(run)
                    right.plot([seconds[at] for at in recorded], values, **line)
            left.set_ylabel(name.replace("_", " "))
            left.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
            for each in (left, right):
                each.set_facecolor("none")
                each.grid(color=CUP)
                each.spines[["top", "right"]].set_visible(False)
        axes[-1][0].set_xlabel("epoch")
        axes[-1][1].set_xlabel("seconds of training")
        # A run's first curve may be in any row: the loss, which all have, is in the last.
        made.legend(*axes[-1][0].get_legend_handles_labels(), loc="outside upper left", ncols=2, frameon=False)
    return made


def table(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Final metrics, and the parts of an epoch's time: headings and rows."""
    names = list(dict.fromkeys(name for run in runs for name in run["headline"]))
    heads = ["run", *(name.replace("_", " ") for name in names), "loss", "epochs"]
    heads += ["time an epoch", "compute", "hook", "wait", "gradients a step", "sent a step", "speed"]
    base = _epoch_s(runs[0])
    rows = []
    for run, run_label in zip(runs, labels(runs), strict=True):
        last, count = run["epochs"][-1], len(run["epochs"])
        steps = sum(epoch["steps"] for epoch in run["epochs"])
        cells = [run_label, *(f"{last[name]:.4g}" if name in last else "" for name in names)]
        cells += [f"{last['train_loss']:.4f}", str(count), human_seconds(_epoch_s(run))]
        for part in ("compute", "hook", "wait"):
            cells.append(human_seconds(sum(epoch["seconds"][part] for epoch in run["epochs"]) / count))
        for part in ("gradient_bytes", "machine_sent_bytes"):
            amounts = [epoch.get(part) for epoch in run["epochs"]]
            cells.append("" if None in amounts else human_bytes(sum(amounts) / steps))
        cells.append(f"{base / _epoch_s(run):.2f}×")
        rows.append(cells)
    return heads, rows


def _epoch_s(run: Run) -> float:
    return float(trained_s(run)[-1] / len(run["epochs"]))


def page(runs: Sequence[Run]) -> str:
    """The whole page."""
    made = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text that can be selected, and read aloud
        figure(runs).savefig(made, format="svg")
    picture = made.getvalue()
    names = " and ".join(dict.fromkeys(run["example"] for run in runs))
    machine = runs[0]["machine"]
    facts = {
        "parameters": f"{runs[0]['parameters']:,}",
        "preset": runs[0]["config"]["preset"],
        "machine": f"{machine['cores']} cores, {machine['processor']}",
        "PyTorch": machine["torch"],
        "date": runs[0]["date"][:10],
    }
    heads, rows = table(runs)
    return fill(
        "compare.html",
        Path(__file__).parent,
        title=names,
        facts=facts.items(),
        heads=heads,
        rows=rows,
        picture=Markup(picture[picture.index("<svg") :]),
        equal=all(run.get("ranks_equal") for run in runs),
    )


def _read(file: Path) -> Run:
    try:
        run: Run = json.loads(file.read_text())
        if not run["epochs"]:
            raise click.ClickException(f"{file} has no epoch yet")
        label(run)
    except (KeyError, TypeError, ValueError):
        raise click.ClickException(f"{file} is no record of a run: examples write one with --out") from None
    return run


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--html", type=click.Path(dir_okay=False), help="The page to write.")
@click.option("--png", type=click.Path(dir_okay=False), help="The curves as a picture.")
def main(files: tuple[Path, ...], html: str | None, png: str | None) -> None:
    """Compare runs that examples have recorded."""
    runs = [_read(file) for file in files]
    if not (html or png):
        raise click.UsageError("say where to write with --html, --png or both")
    if html:
        with replacing(html) as out:
            out.write(encoded(page(runs)))
    if png:
        with replacing(png) as out:
            figure(runs).savefig(out, format="png", dpi=130, facecolor=PAPER)


if __name__ == "__main__":
    main()
