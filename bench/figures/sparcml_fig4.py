"""*SparCML*, Fig. 4: accuracy of sparsified (and quantised) training beside dense: a ResNet and an LSTM.

The examples of `examples/torch`, 8 ranks on this machine. Dense and top-k training have the same seeds, batches and
learning rates. CIFAR-10: the preset for two cores, and k = 8 or 16 of 512 values in 4 bits, with five seeds. Each top-k
run is compared with the dense run of its seed; the mean difference has a 95 % interval (Student's t). ATIS: the paper's
network, and k = 2 of 512. Needs PyTorch and Pillow (`make .venv/.torch`), the data beside the project, and hours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from .style import COLOURS, Log, new
from .training import RANKS, paired_interval, trained

TITLE = "SparCML Fig. 4: accuracy of top-k and of dense training, CIFAR-10 and ATIS"
NEEDS_ROOT = False
SEEDS = 5
VARIANTS = {
    "dense": ["--compress", "dense"],
    "k = 16": ["--compress", "topk", "--k", "16"],
    "k = 8": ["--compress", "topk", "--k", "8"],
}


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Curves of all runs, and the differences of their final accuracies."""
    preset = ["--preset", "smoke" if quick else "short"]
    cifar_runs: dict[str, list[dict[str, Any]]] = {variant: [] for variant in VARIANTS}
    for seed in range(1, 1 + (2 if quick else SEEDS)):
        for variant, arguments in VARIANTS.items():
            run = trained("cifar", [*preset, *arguments, "--seed", str(seed)], log)
            cifar_runs[variant].append({"seed": seed} | run["curves"])
    differences = {}
    for variant in list(VARIANTS)[1:]:
        pairs = zip(cifar_runs[variant], cifar_runs["dense"], strict=True)
        each = [mine["accuracy"][-1] - dense["accuracy"][-1] for mine, dense in pairs]
        low, high = paired_interval(each)
        log(f"{variant} of 512: {np.mean(each):+.2f} points of accuracy, 95 % interval {low:+.2f} to {high:+.2f}")
        differences[variant] = {"each": each, "mean": float(np.mean(each)), "interval": [low, high]}
    preset = ["--preset", "smoke" if quick else "full"]
    atis_runs = {variant: trained("atis", [*preset, "--compress", variant], log) for variant in ("dense", "topk")}
    return {
        "ranks": RANKS,
        "cifar": cifar_runs,
        "differences": differences,
        "atis": {variant: run["curves"] for variant, run in atis_runs.items()},
        "atis_parameters": atis_runs["dense"]["parameters"],
    }


def draw(entry: dict[str, Any]) -> Any:
    """Accuracy by epoch: on the left the mean of all seeds and their range, on the right intents and slots."""
    figure, (left, right) = new(2, width=11)
    for colour, (variant, runs) in zip(COLOURS, entry["cifar"].items(), strict=False):
        all_runs = np.array([run["accuracy"] for run in runs])
        epochs = runs[0]["epoch"]
        left.fill_between(epochs, all_runs.min(0), all_runs.max(0), color=colour, alpha=0.15, linewidth=0)
        label = f"{variant}{' of 512, 4 bits' * (variant != 'dense')}: {all_runs[:, -1].mean():.1f}"
        left.plot(epochs, all_runs.mean(0), color=colour, label=label)
    left.set_ylabel("test accuracy, %")
    left.set_title(f"ResNet on CIFAR-10, {len(runs)} seeds", fontsize=10)
    for colour, (variant, run) in zip((COLOURS[0], COLOURS[2]), entry["atis"].items(), strict=True):
        for name, metric, style in (("intent_accuracy", "intent", "-"), ("slot_f1", "slot F1", "--")):
            label = f"{'dense' if variant == 'dense' else 'k = 2 of 512'}, {metric}: {run[name][-1]:.1f}"
            right.plot(run["epoch"], run[name], style, color=colour, label=label)
    right.set_ylabel("test accuracy and F1, %")
    right.set_ylim(60, 100)
    right.set_title(f"LSTM of {entry['atis_parameters'] / 1e6:.1f} M parameters on ATIS", fontsize=10)
    for axes in (left, right):
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="lower right")
    return figure
