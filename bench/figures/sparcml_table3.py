"""*SparCML*, Table 3: all trained networks, dense and top-k, against epochs and against time.

The five examples of `examples/torch`, with presets and runs that they share with other figures: each is
trained once (`docs/figures/training`). Speech is on 8 hosts behind links of 100 Mbit/s, in slow motion (Fig. 6), the
others on ranks of this machine, which share memory, so compression cannot gain time there.
Needs root for speech, PyTorch, Pillow, and hours for runs that are not stored yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from . import sparcml_fig6
from .style import COLOURS, Log, new
from .training import RANKS, on_ranks, trained

TITLE = "SparCML Table 3: all examples, dense and top-k"
NEEDS_ROOT = True


class Example(NamedTuple):
    """One trained network."""

    title: str
    name: str
    arguments: Sequence[str]
    #: Axis label of the metric.
    metric: str
    label: str
    #: Values of `--compress`.
    dense: Sequence[str] = ("dense",)
    topk: Sequence[str] = ("topk",)
    ranks: int = RANKS


EXAMPLES = (
    Example("ATIS, k = 2 of 512", "atis", ["--preset", "full"], "slot_f1", "slot F1, %"),
    Example("Multi30k, k = 4", "multi30k", ["--preset", "short"], "bleu", "BLEU", ranks=2),
    Example(
        "CIFAR-10, ResNet-8, k = 8",
        "cifar",
        ["--preset", "short"],
        "accuracy",
        "right, %",
        dense=["dense", "--seed", "1"],
        topk=["topk", "--k", "8", "--seed", "1"],
    ),
    Example(
        "wide ResNet-18, k = 1", "cifar", ["--model", "wide-resnet18", "--preset", "short"], "accuracy", "right, %"
    ),
)


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Curves of each example, dense and top-k."""
    found = []
    for example in EXAMPLES:
        preset = ["smoke" if quick and word in ("full", "short") else word for word in example.arguments]
        train = partial(on_ranks, ranks=example.ranks)
        place = "" if example.ranks == RANKS else f"{example.ranks} ranks"
        runs = {
            variant: trained(example.name, [*preset, "--compress", *arguments], log, train, place)["curves"]
            for variant, arguments in (("dense", example.dense), ("topk", example.topk))
        }
        title = f"{example.title}; {example.ranks} ranks here"
        found.append({"title": title} | _drawn(example.metric, example.label, runs))
    speech = {
        run["way"]: run
        for run in sparcml_fig6.measure(quick, log)["runs"]
        if run["hosts"] == max(sparcml_fig6.VARIANTS[run["way"]][1]) and run["way"] != "bmuf"
    }
    title = f"speech, k = 4; 8 hosts at {sparcml_fig6.MBITS} Mbit/s"
    found.append({"title": title} | _drawn("token_error_rate", "tokens wrong, %", speech))
    return {"examples": found}


def _drawn(metric: str, label: str, runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    kept = {
        variant: {"epoch": run["epoch"], "trained_s": run["trained_s"], "values": run[metric]}
        for variant, run in runs.items()
    }
    return {"metric": metric, "label": label, "runs": kept}


def draw(entry: dict[str, Any]) -> Any:
    """A row for each example: against epochs on the left, against time on the right."""
    examples = entry["examples"]
    figure, axes = new(2, rows=len(examples), width=10, height=2.7 * len(examples))
    for number, example in enumerate(examples):
        for unit, on in zip(("epoch", "minutes"), axes[2 * number : 2 * number + 2], strict=True):
            for (variant, run), colour in zip(example["runs"].items(), (COLOURS[3], COLOURS[2]), strict=True):
                at = run["epoch"] if unit == "epoch" else [seconds / 60 for seconds in run["trained_s"]]
                label = f"{'dense' if variant == 'dense' else 'top-k'}: {run['values'][-1]:.4g}"
                on.plot(at, run["values"], "o-", markersize=3, color=colour, label=label)
            on.set_title(example["title"], fontsize=9)
            on.set_xlabel(unit)
            on.set_xlim(left=0)
            on.set_ylabel(example["label"])
            on.legend(fontsize=8)
    return figure
