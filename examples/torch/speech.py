"""Transcription of speech-like sounds with attention. The sounds are made up: see `synthetic`.

    torchrun --nproc-per-node 2 examples/torch/speech.py --compress topk --preset short --out topk.json

*SparCML*, section 8.4, trains an LSTM with attention for speech, of 60 million parameters, on recordings that are not
public: k = 4 of 512 entries, batches of 512, 20 epochs (its Table 3). Preset ``full`` has these sizes, but its data are
not speech, so only dense and compressed runs can be compared, not the paper's error rates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import click
import numpy as np
import torch
from torch import Tensor, nn

from attention import Attentive, targets, until_end
from batches import share
from options import Choices, Settings, options
from scores import edits
from synthetic import FEATURES, PHONES, Utterance, utterance
from training import Task, train

# Learning rates of 0.5 and more work with dense gradients, but not with values that wait in a residual for 100 steps.
_COMMON = Settings(epochs=20, batch=512, lr=0.25, milestones=(0.7, 0.9), clip=5.0, k=4)
PRESETS = {
    "full": replace(_COMMON, limit=100_000, test_limit=2_000, model={"hidden": 1350, "embedding": 512}),
    # Small steps and a density warm-up, so that the model changes less while a value waits in a residual.
    "short": replace(
        _COMMON,
        epochs=12,
        batch=32,
        lr=0.125,
        density_warm_up=2,
        limit=6_000,
        test_limit=500,
        model={"hidden": 96, "embedding": 64},
    ),
    "smoke": replace(_COMMON, epochs=2, batch=32, limit=256, test_limit=64, model={"hidden": 32, "embedding": 32}),
}

#: Frames that the encoder reads at once, so that it takes half as many steps.
STACKED = 2
#: The numbers before it: padding, one without use, begin and end.
FIRST_PHONE = 4
#: Longest transcription; longer ones are cut.
LONGEST = 20


class Transcription(Task):
    """The task: sounds and their phones."""

    name = "speech"
    headline = ("token_error_rate", "cross_entropy")

    def __init__(self, settings: Settings, seed: int) -> None:
        assert settings.limit is not None and settings.test_limit is not None
        self._settings = settings
        # Test utterances have another seed than all training samples.
        self._train = [utterance(2 * seed, number) for number in range(settings.limit)]
        self._test = [utterance(2 * seed + 1, number) for number in range(settings.test_limit)]
        self.counts, self.lengths = [1] * len(self._train), [len(one.frames) for one in self._train]

    def model(self) -> nn.Module:
        """The network."""
        sizes = self._settings.model
        return Attentive(nn.Linear(STACKED * FEATURES, sizes["embedding"]), FIRST_PHONE + PHONES, **sizes)

    def units(self, samples: Sequence[int]) -> int:
        """Phones, and the end of each utterance."""
        return sum(len(self._train[sample].phones) + 1 for sample in samples)

    def batch(self, samples: Sequence[int], epoch: int) -> tuple[Tensor, ...]:
        """Frames, the number of encoder steps, and phones."""
        return _tensors([self._train[sample] for sample in samples])

    def sums(self, model: nn.Module, rank: int, size: int) -> Mapping[str, float]:
        """Losses and edits over a share of the test utterances."""
        assert isinstance(model, Attentive)
        loss, sums = 0.0, Counter(units=0, edits=0, phones=0)
        mine = share(sorted(self._test, key=lambda one: len(one.frames)), rank, size)
        for start in range(0, len(mine), 100):
            some = mine[start : start + 100]
            frames, steps, true = _tensors(some)
            loss += float(model(frames, steps, true))
            for row, one in zip(model.decode(frames, steps, LONGEST).tolist(), some, strict=True):
                phones = [number - FIRST_PHONE for number in until_end(row)]
                sums.update(edits=edits(phones, one.phones), phones=len(one.phones), units=len(one.phones) + 1)
        return {**sums, "loss": loss}

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Edits a phone, in percent, and the mean loss of a phone."""
        return {
            "token_error_rate": 100 * sums["edits"] / sums["phones"],
            "cross_entropy": sums["loss"] / sums["units"],
        }


def _tensors(some: Sequence[Utterance]) -> tuple[Tensor, Tensor, Tensor]:
    steps = [-(-len(one.frames) // STACKED) for one in some]
    frames = np.zeros((len(some), max(steps) * STACKED, FEATURES), np.float32)
    for row, one in zip(frames, some, strict=True):
        row[: len(one.frames)] = one.frames
    stacked = torch.from_numpy(frames).view(len(some), -1, STACKED * FEATURES)
    return stacked, torch.tensor(steps), targets([[FIRST_PHONE + phone for phone in one.phones] for one in some])


@click.command()
@options
def main(choices: Choices) -> None:
    """Train on speech-like sounds: transcription."""
    run = choices.run(PRESETS)
    train(lambda: Transcription(run.settings, run.seed), run)


if __name__ == "__main__":
    main()
