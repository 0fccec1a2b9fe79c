"""Translation from English to German with attention: Multi30k, captions of pictures.

    torchrun --nproc-per-node 2 examples/torch/multi30k.py --compress topk --preset short --out topk.json

*SparCML*, section 8.3, translates the Hansards, which are thirty times as large: an encoder and a decoder of two LSTM
cells each, k = 4 of 512 entries, batches of 256 sentences, 20 epochs (its Table 3). Preset ``full`` has these.

Data: a sentence a line, words between spaces, `SET.lc.norm.tok.LANGUAGE.gz`. BLEU is of the lower-case words as they
are in the files, by greedy decoding.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click
import torch
from torch import Tensor, nn

from attention import Attentive, targets, until_end
from batches import share
from options import Choices, Settings, options
from scores import bleu, bleu_counts
from text import PAD, Vocabulary, padded
from training import Task, train

# A learning rate of 1.0 is better for dense gradients, but too high for values that wait in a residual for 100 steps.
_COMMON = Settings(epochs=20, batch=256, lr=0.5, milestones=(0.7, 0.9), clip=5.0, k=4)
PRESETS = {
    "full": replace(_COMMON, model={"hidden": 512, "embedding": 256, "at_least": 2}),
    # Small steps and a density warm-up, so that the model changes less while a value waits in a residual.
    "short": replace(
        _COMMON,
        epochs=12,
        batch=32,
        lr=0.25,
        density_warm_up=2,
        limit=12_000,
        model={"hidden": 128, "embedding": 128, "at_least": 5},
    ),
    "smoke": replace(
        _COMMON, epochs=2, batch=64, limit=512, test_limit=100, model={"hidden": 32, "embedding": 32, "at_least": 5}
    ),
}

#: Longest translation; longer ones are cut.
LONGEST = 40

Pair = tuple[list[str], list[str]]


def read(folder: Path, name: str) -> list[Pair]:
    """The sentences of a set in English and German."""
    sides = []
    for language in ("en", "de"):
        with gzip.open(folder / f"{name}.lc.norm.tok.{language}.gz", "rt", encoding="utf-8") as file:
            sides.append([line.split() for line in file])
    if len(sides[0]) != len(sides[1]):
        raise click.ClickException(f"{folder}, {name}: {len(sides[0])} lines in English, {len(sides[1])} in German")
    return list(zip(*sides, strict=True))


class Multi30k(Task):
    """The task: pairs of sentences."""

    name = "multi30k"
    headline = ("bleu", "validation_loss")

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._train = read(folder, "train")[: settings.limit]
        self._validation = read(folder, "val")[: settings.test_limit]
        self._test = read(folder, "test_2016_flickr")[: settings.test_limit]
        self._sizes = dict(settings.model)
        at_least = self._sizes.pop("at_least")
        self._english = Vocabulary([english for english, _ in self._train], ["<unk>"], at_least)
        self._german = Vocabulary([german for _, german in self._train], ["<unk>", "<s>", "</s>"], at_least)
        self.counts, self.lengths = [1] * len(self._train), [len(german) for _, german in self._train]

    def model(self) -> nn.Module:
        """The network."""
        source = nn.Embedding(len(self._english), self._sizes["embedding"], padding_idx=PAD)
        return Attentive(source, len(self._german), **self._sizes)

    def units(self, samples: Sequence[int]) -> int:
        """German words, and the end of each sentence."""
        return sum(self.lengths[sample] + 1 for sample in samples)

    def batch(self, samples: Sequence[int], epoch: int) -> tuple[Tensor, ...]:
        """English words, their numbers, and German words."""
        return self._tensors([self._train[sample] for sample in samples])

    def sums(self, model: nn.Module, rank: int, size: int) -> Mapping[str, float]:
        """Losses of a share of the validation set, n-grams of a share of the test set."""
        assert isinstance(model, Attentive)
        loss, sums = 0.0, Counter(bleu_counts([], []) | {"units": 0})
        for pairs in _portions(self._validation, rank, size):
            loss += float(model(*self._tensors(pairs)))
            sums["units"] += sum(len(german) + 1 for _, german in pairs)
        for pairs in _portions(self._test, rank, size):
            english, lengths, _ = self._tensors(pairs)
            decoded = model.decode(english, lengths, LONGEST).tolist()
            for row, (_, german) in zip(decoded, pairs, strict=True):
                sums.update(bleu_counts(self._german.words(until_end(row)), german))
        return {**sums, "loss": loss}

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """BLEU in percent, and the mean loss of a word."""
        return {"bleu": bleu(sums), "validation_loss": sums["loss"] / sums["units"]}

    def _tensors(self, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor, Tensor]:
        english = [self._english.numbers(english) for english, _ in pairs]
        german = targets([self._german.numbers(german) for _, german in pairs])
        return padded(english), torch.tensor([len(row) for row in english]), german


def _portions(pairs: Sequence[Pair], rank: int, size: int) -> Iterator[Sequence[Pair]]:
    """A rank's share in batches of a hundred, sorted by length to reduce padding."""
    mine = share(sorted(pairs, key=lambda pair: len(pair[1])), rank, size)
    return (mine[start : start + 100] for start in range(0, len(mine), 100))


@click.command()
@options
def main(choices: Choices) -> None:
    """Train on Multi30k: translation from English to German."""
    run, folder = choices.run(PRESETS), choices.where("multi30k")
    train(lambda: Multi30k(folder, run.settings), run)


if __name__ == "__main__":
    main()
