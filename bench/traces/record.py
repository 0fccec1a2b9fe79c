"""Record what the ranks of a training run hand to an allreduce: top-k gradients of a real network.

Top-k SGD with error feedback (*SparCML*, Algorithm 2) for P workers, each with its own part of the data, one after
the other in one process:

    acc  = residual + lr * gradient(weights)
    sent = the k largest magnitudes of acc in every bucket of 512 coordinates, or in the whole vector
    residual = acc - sent
    weights -= sum over workers of sent

The network fills slots of ATIS sentences (section 8.3, k = 2): an embedding, two bidirectional LSTM layers and a
linear layer, as one vector in this order. After the last iteration `sent` of all workers is written: `indices_R`
(int32, ascending) and `values_R` (float32) for worker R, and the settings. Coordinates that never had a gradient
(words not seen yet) are not sent. Needs PyTorch (`make .venv/.lab`) and the data; takes some minutes.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from skyphos.files.whole_file import replacing

HERE = Path(__file__).resolve().parent
DATA = HERE.parents[2] / "shared" / "data" / "atis" / "atis.train.w-intent.iob"
CLIP = 5.0
_NO_SLOT = -100  # the label that PyTorch's loss ignores


class Tagger(torch.nn.Module):  # type: ignore[misc]
    """A network that predicts a slot for each word."""

    def __init__(self, words: int, slots: int, width: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(words, width)
        self.lstm = torch.nn.LSTM(width, width, num_layers=2, bidirectional=True, batch_first=True)
        self.linear = torch.nn.Linear(2 * width, slots)

    def forward(self, sentences: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.linear(self.lstm(self.embedding(sentences))[0])
        return scores


def sentences(path: Path) -> tuple[list[tuple[list[int], list[int]]], int, int]:
    """Each sentence as numbers of its words and slots, and how many words and slots there are; word 0 is padding."""
    words: dict[str, int] = {"": 0}
    slots: dict[str, int] = {}
    found = []
    for line in path.read_text().splitlines():
        said, tags = line.split("\t")
        pairs = list(zip(said.split()[1:-1], tags.split()[1:-1], strict=True))  # without BOS and EOS
        numbers = [words.setdefault(word, len(words)) for word, _ in pairs]
        found.append((numbers, [slots.setdefault(slot, len(slots)) for _, slot in pairs]))
    return found, len(words), len(slots)


def batches(
    shard: list[tuple[list[int], list[int]]], size: int, rng: np.random.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of a worker's sentences without end, in a new order each time."""
    while True:
        order = rng.permutation(len(shard))
        for first in range(0, len(order) - size + 1, size):
            chosen = [shard[i] for i in order[first : first + size]]
            longest = max(len(words) for words, _ in chosen)
            given = torch.zeros(size, longest, dtype=torch.long)
            wanted = torch.full((size, longest), _NO_SLOT)
            for row, (words, slots) in enumerate(chosen):
                given[row, : len(words)] = torch.tensor(words)
                wanted[row, : len(slots)] = torch.tensor(slots)
            yield given, wanted


def top_of_buckets(vector: torch.Tensor, k: int, bucket: int) -> torch.Tensor:
    """Ascending indices of the ``k`` largest magnitudes in every bucket, without zeros; ``bucket=0``: of the vector."""
    bucket = bucket or len(vector)
    padded = torch.nn.functional.pad(vector.abs(), (0, -len(vector) % bucket)).view(-1, bucket)
    largest, place = padded.topk(k)
    place = place + torch.arange(len(padded))[:, None] * bucket
    return place[largest > 0].sort().values


def train(
    corpus: list[tuple[list[int], list[int]]],
    model: Tagger,
    *,
    workers: int,
    k: int,
    bucket: int,
    iterations: int,
    batch: int,
    rate: float,
    seed: int,
) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], list[float]]:
    """Train. Returns what the workers sent in the last iteration, and the mean loss of every iteration."""
    parameters = list(model.parameters())
    residuals = [torch.zeros(sum(p.numel() for p in parameters)) for _ in range(workers)]
    order = np.random.default_rng(seed).permutation(len(corpus))
    feeds = [
        batches([corpus[i] for i in order[worker::workers]], batch, np.random.default_rng([seed, worker]))
        for worker in range(workers)
    ]
    losses: list[float] = []
    sent: list[tuple[torch.Tensor, torch.Tensor]] = []
    for iteration in range(iterations):
        sent, total = [], 0.0
        for feed, residual in zip(feeds, residuals, strict=True):
            given, wanted = next(feed)
            scores = model(given)
            loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=_NO_SLOT)
            model.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, CLIP)
            gradient = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
            residual.add_(gradient, alpha=rate / workers)
            indices = top_of_buckets(residual, k, bucket)
            sent.append((indices, residual[indices]))
            residual[indices] = 0
            total += loss.item()
        losses.append(total / workers)
        _apply(parameters, sent)
        print(
            f"\riteration {iteration + 1} of {iterations}: loss {losses[-1]:.3f} ", end="", file=sys.stderr, flush=True
        )
    print(file=sys.stderr)
    return sent, losses


def _apply(parameters: list[torch.nn.Parameter], sent: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Subtract the sum of what the workers sent."""
    with torch.no_grad():
        weights = torch.nn.utils.parameters_to_vector(parameters)
        for indices, values in sent:
            weights[indices] -= values
        torch.nn.utils.vector_to_parameters(weights, parameters)


@click.command()
@click.argument("output", type=click.Path(dir_okay=False, path_type=Path), default=HERE / "atis_lstm.npz")
@click.option("--data", type=click.Path(exists=True, path_type=Path), default=DATA, show_default=True)
@click.option("--workers", type=click.IntRange(1), default=8, show_default=True)
@click.option("--width", type=click.IntRange(1), default=512, show_default=True, help="Width of all layers.")
@click.option("--k", type=click.IntRange(1), default=2, show_default=True, help="Entries sent of every bucket.")
@click.option("--bucket", type=click.IntRange(0), default=512, show_default=True, help="Length; 0: the whole vector.")
@click.option("--iterations", type=click.IntRange(1), default=60, show_default=True)
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True, help="Sentences of a worker.")
@click.option("--rate", type=float, default=1.0, show_default=True, help="Learning rate.")
@click.option("--seed", type=int, default=1, show_default=True)
def main(output: Path, data: Path, width: int, **settings: Any) -> None:
    """Train and write the last iteration to OUTPUT (.npz)."""
    torch.manual_seed(settings["seed"])
    torch.set_num_threads(1)  # the order of additions, and so the file, does not depend on the machine's cores
    corpus, words, slots = sentences(data)
    model = Tagger(words, slots, width)
    sent, losses = train(corpus, model, **settings)
    if len(losses) > 1 and not losses[-1] < losses[0]:
        raise click.ClickException(
            f"the network did not learn: loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last"
        )
    shapes = [f"{name}{list(p.shape)}" for name, p in model.named_parameters()]
    made: dict[str, Any] = settings | {
        "n": sum(p.numel() for p in model.parameters()),
        "clip": CLIP,
        "model": "slot filling: embedding, 2 bidirectional LSTM layers, linear; " + " ".join(shapes),
        "data": f"{data.name}, sha256 {hashlib.sha256(data.read_bytes()).hexdigest()}",
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "torch": torch.__version__,
    }
    for worker, (indices, values) in enumerate(sent):
        made[f"indices_{worker}"] = indices.numpy().astype(np.int32)
        made[f"values_{worker}"] = values.numpy()
    with replacing(str(output)) as file:
        np.savez_compressed(file, **made)
    entries = sum(len(indices) for indices, _ in sent)
    union = len(torch.cat([indices for indices, _ in sent]).unique())
    print(f"n = {made['n']:,}; {entries:,} entries of {len(sent)} workers, {union:,} distinct: {output}")


if __name__ == "__main__":
    main()
