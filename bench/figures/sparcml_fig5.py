"""*SparCML*, Fig. 5: training of a four times wide ResNet-18, dense and with the largest of every 512 entries.

The example `examples/torch/cifar.py --model wide-resnet18` on CIFAR-10 (the paper: ImageNet), its preset for two
cores, 8 ranks on this machine. Needs PyTorch and Pillow (`make .venv/.torch`), the pictures beside the project,
and time.
"""

from __future__ import annotations

from typing import Any

from .style import COLOURS, Log, new
from .training import RANKS, trained

TITLE = "SparCML Fig. 5: a wide ResNet-18, dense and k = 1 of 512"
NEEDS_ROOT = False


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Curves of both methods."""
    preset = ["--model", "wide-resnet18", "--preset", "smoke" if quick else "short"]
    runs = {variant: trained("cifar", [*preset, "--compress", variant], log) for variant in ("dense", "topk")}
    return {
        "ranks": RANKS,
        "parameters": runs["dense"]["parameters"],
        "runs": {variant: run["curves"] for variant, run in runs.items()},
    }


def draw(entry: dict[str, Any]) -> Any:
    """The training loss on the left, the error on test pictures on the right."""
    figure, (left, right) = new(2, width=10)
    for colour, (variant, run) in zip((COLOURS[3], COLOURS[2]), entry["runs"].items(), strict=True):
        epochs = run["epoch"]
        label = "dense" if variant == "dense" else "k = 1 of 512"
        left.plot(epochs, run["train_loss"], color=colour, label=label)
        errors = [100 - accuracy for accuracy in run["accuracy"]]
        right.plot(epochs, errors, color=colour, label=f"{label}: {errors[-1]:.1f}")
    left.set_ylabel("training loss")
    left.set_ylim(bottom=0)
    right.set_ylabel("validation error, %")
    for axes in (left, right):
        axes.set_xlabel("epoch")
        axes.legend(loc="upper right")
    return figure
