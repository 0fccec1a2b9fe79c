"""Accuracy over k and the global batch, which *SparCML* (section 8.4) leaves open.

ResNet-8 on 20,000 pictures of CIFAR-10 (`examples/torch/cifar.py`, otherwise its preset for two cores), 8 ranks on this
machine, the same number of epochs for each: each rank sends the k largest of each 512 entries, not quantised. The
learning rate is proportional to the batch (Goyal et al., 2017), starting from the preset's. Needs PyTorch and Pillow
(`make .venv/.torch`), the pictures beside the project, and time.
"""

from __future__ import annotations

from typing import Any

from .style import COLOURS, MARKERS, Log, new, plain_numbers
from .training import RANKS, trained

TITLE = "Accuracy over k and global batch: ResNet-8 on CIFAR-10"
NEEDS_ROOT = False
BATCHES, KS = (64, 256, 1024), (1, 4, 16, 64)
#: Batch and learning rate of the preset.
BATCH, RATE = 64, 0.025
#: Pictures of the 50,000, so that all runs together take an hour or two.
PICTURES = 20_000


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """The final accuracy for each pair of k and batch, and of dense training."""
    points = []
    for batch in BATCHES[:2] if quick else BATCHES:
        rate = RATE * batch / BATCH
        common = ["--preset", "smoke" if quick else "short", "--batch", str(batch), "--lr", f"{rate:g}"]
        common += [] if quick else ["--limit", str(PICTURES)]
        for k in (None, *KS):
            variant = ["--compress", "dense"] if k is None else ["--compress", "topk", "--k", str(k), "--bits", "32"]
            run = trained("cifar", [*common, *variant], log)
            points.append({"batch": batch, "k": k, "steps": run["steps"], "accuracy": run["curves"]["accuracy"][-1]})
    return {"ranks": RANKS, "points": points}


def draw(entry: dict[str, Any]) -> Any:
    """A line a batch, and dashed lines for dense training."""
    figure, (axes,) = new()
    for number, batch in enumerate(sorted({point["batch"] for point in entry["points"]})):
        mine = [point for point in entry["points"] if point["batch"] == batch]
        dense = next(point for point in mine if point["k"] is None)
        sparse = [point for point in mine if point["k"] is not None]
        colour = COLOURS[number]
        axes.axhline(dense["accuracy"], color=colour, linestyle="--", linewidth=1)
        label = f"batch {batch}, {dense['steps']:,} steps"
        ks, accuracies = [point["k"] for point in sparse], [point["accuracy"] for point in sparse]
        axes.plot(ks, accuracies, MARKERS[number] + "-", color=colour, label=label)
    axes.set_xscale("log", base=2)
    plain_numbers(axes.xaxis, sorted({point["k"] for point in entry["points"] if point["k"] is not None}))
    axes.set_xlabel("k of 512, each of 8 ranks (dashed: dense)")
    axes.set_ylabel("test accuracy, %")
    axes.legend(loc="lower right")
    return figure
