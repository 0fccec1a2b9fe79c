"""*SparCML*, Fig. 1: how dense the reduced gradient of a real network is, by number of ranks and share sent by each.

One process trains ResNet-20 on CIFAR-10 (`examples/torch`) for five epochs. Then each of P ranks computes the gradient
of its own batch at those weights, and sends the share d of largest entries. Beside the measured unions: unions of
random sets, 1 - (1 - d)^P. The sums are those of `Comm.allreduce` among P ranks of this process.
Needs PyTorch and Pillow (`make .venv/.torch`) and the pictures.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import skyphos as sky

from .style import COLOURS, MARKERS, Log, new, plain_numbers

TITLE = "SparCML Fig. 1: density of the reduced gradient, ResNet-20 on CIFAR-10"
NEEDS_ROOT = False
ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "images" / "cifar10-images-jpg.tar.gz"
DENSITIES = (0.001, 0.01, 0.05, 0.1)
RANKS = (1, 2, 4, 8, 16, 32, 64)
EPOCHS, BATCH, WORKER_BATCH = 5, 128, 64


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Densities of unions for each P and each share."""
    if not DATA.exists():
        raise RuntimeError(f"{DATA} is not there: this figure needs the pictures")
    max_ranks = RANKS[3] if quick else RANKS[-1]
    gradients = _gradients(max_ranks, 512 if quick else 20_000, 1 if quick else EPOCHS, log)
    n = gradients.shape[1]
    points = []
    for density in DENSITIES:
        k = max(1, round(density * n))
        log(f"{100 * density:g} % of {n:,} values, up to {max_ranks} ranks")
        topk = [sky.TopK(k=k, bucket=None).compress(gradient) for gradient in gradients]
        for ranks in [ranks for ranks in RANKS if ranks <= max_ranks]:
            points.append({"density": density, "ranks": ranks, "union": _reduced_entries(topk[:ranks]) / n})
    return {"parameters": n, "worker_batch": WORKER_BATCH, "points": points}


def _gradients(workers: int, pictures: int, epochs: int, log: Log) -> np.ndarray:
    """Gradients of one batch a worker, after some epochs."""
    sys.path.insert(0, str(ROOT / "examples" / "torch"))
    import torch

    load, resnet = import_module("images").load, import_module("resnet").ResNet
    cache = ROOT / "target" / "pictures"
    cache.mkdir(parents=True, exist_ok=True)
    images, classes = load(DATA, "train", cache)
    rng = np.random.default_rng(1)
    order = rng.permutation(len(images))
    torch.manual_seed(1)
    model = resnet([3, 3, 3], 16, projected=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def loss_of(chosen: Any) -> Any:
        x = torch.from_numpy(images[chosen].astype(np.float32) / 255.0 - 0.5)
        return model(x, torch.from_numpy(classes[chosen])) / len(chosen)

    for epoch in range(epochs):
        some = rng.permutation(order[:pictures])
        total = 0.0
        for first in range(0, len(some) - BATCH + 1, BATCH):
            optimizer.zero_grad()
            loss = loss_of(some[first : first + BATCH])
            loss.backward()
            optimizer.step()
            total += loss.item()
        log(f"epoch {epoch + 1} of {epochs}: loss {total / (len(some) // BATCH):.3f}")
    found = []
    for worker in range(workers):
        model.zero_grad()
        loss_of(order[worker * WORKER_BATCH : (worker + 1) * WORKER_BATCH]).backward()
        found.append(torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]).numpy().copy())
    return np.stack(found)


def _reduced_entries(vectors: list[sky.SparseVector]) -> int:
    """Number of entries of the sum by an allreduce, which is checked."""
    comms = sky.local(len(vectors), threads=1)
    with ThreadPoolExecutor(len(vectors)) as pool:
        sums = list(pool.map(lambda comm: comm.allreduce(vectors[comm.rank], algorithm="allgather"), comms))
        list(pool.map(lambda comm: comm.close(), comms))
    union = np.unique(np.concatenate([vector.indices for vector in vectors]))
    if not np.array_equal(union, sums[0].indices):
        raise RuntimeError("an allreduce is wrong")
    return len(union)


def draw(entry: dict[str, Any]) -> Any:
    """A line a share, and dotted lines for random sets."""
    figure, (axes,) = new()
    ranks = sorted({point["ranks"] for point in entry["points"]})
    fine = np.geomspace(ranks[0], ranks[-1], 100)
    for number, density in enumerate(sorted({point["density"] for point in entry["points"]}, reverse=True)):
        mine = [point for point in entry["points"] if point["density"] == density]
        colour = COLOURS[number]
        axes.plot(fine, 100 * (1 - (1 - density) ** fine), ":", color=colour, linewidth=1)
        axes.plot(
            [point["ranks"] for point in mine],
            [100 * point["union"] for point in mine],
            MARKERS[number] + "-",
            color=colour,
            label=f"{100 * density:g} % a rank",
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    plain_numbers(axes.xaxis, ranks)
    plain_numbers(axes.yaxis, [0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axes.set_ylim(0.02, 140)
    axes.set_xlabel("ranks")
    axes.set_ylabel("entries of the reduced gradient, %")
    axes.legend(title="sent (dotted: sets at random)", loc="lower right", ncols=2)
    return figure
