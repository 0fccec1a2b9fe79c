"""CIFAR-10: pictures of ten classes, classified by a residual network.

    torchrun --nproc-per-node 2 examples/torch/cifar.py --compress topk --preset short --out topk.json
    torchrun --nproc-per-node 2 examples/torch/cifar.py --model wide-resnet18 --compress topk

*SparCML*, section 8.3: ResNet-110, k = 8 or 16 of 512 entries (``--k 16``), 4 bits a value, batches of 256 and 160
epochs (its Table 3). The learning rate is He et al.'s (2015, section 4.2): 0.1, a tenth of it for the first epoch, and
divided by ten after a half and three quarters of the epochs. The short preset has a quarter of batch and rate and few
epochs, and top-k begins with a density warm-up of two (Lin et al., 2018).

Section 8.4: ResNet-18 of four times the channels on ImageNet, k = 1 of 512; here on CIFAR-10. CNTK's rate of 1.0 is
PyTorch's 0.1, as its momentum of 0.9 weighs each gradient with 0.1.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from batches import share
from images import BORDER, Pictures, load, shifted
from options import Choices, Settings, options
from resnet import ResNet
from training import Task, train

_RESNET = Settings(epochs=160, batch=256, lr=0.1, weight_decay=1e-4, milestones=(0.5, 0.75), warm_up=1, k=8, bits=4)
_WIDE = replace(_RESNET, epochs=70, milestones=(30 / 70, 60 / 70), warm_up=0, k=1, bits=None, model={"channels": 64})
_SMOKE: dict[str, Any] = {"epochs": 2, "batch": 64, "warm_up": 0, "limit": 512, "test_limit": 200}
#: A quarter of the batch and of the rate: smaller steps, so that the model changes less while a value waits to be sent.
_QUARTER: dict[str, Any] = {"batch": 64, "lr": 0.025, "epochs": 12, "evaluate_every": 2, "density_warm_up": 2}
PRESETS = {
    "resnet": {
        "full": replace(_RESNET, model={"depth": 110}),
        "short": replace(_RESNET, **_QUARTER, warm_up=0, model={"depth": 8}),
        "smoke": replace(_RESNET, **_SMOKE, model={"depth": 8}),
    },
    "wide-resnet18": {
        "full": _WIDE,
        "short": replace(_WIDE, **_QUARTER, limit=20_000, model={"channels": 4}),
        "smoke": replace(_WIDE, **_SMOKE, model={"channels": 2}),
    },
}
#: Channels relative to the standard network.
WIDE = 4


class Cifar(Task):
    """The task: pictures and their classes."""

    headline = ("accuracy", "test_loss")

    def __init__(self, name: str, archive: Path, cache: Path, settings: Settings, seed: int) -> None:
        self.name, self._settings, self._seed = name, settings, seed
        self._train, self._classes = (part[: settings.limit] for part in load(archive, "train", cache))
        self._test, self._test_classes = (part[: settings.test_limit] for part in load(archive, "test", cache))
        self.counts = self.lengths = [1] * len(self._train)
        # One colour at a time, because all pictures as floats are 600 MB.
        found = [(colour.mean(), colour.std()) for colour in map(_floats, self._train.transpose(1, 0, 2, 3))]
        self._mean, self._deviation = np.array(found, np.float32).T.reshape(2, 1, 3, 1, 1)
        self._draws: tuple[int, NDArray[np.int64]] = -1, np.empty(0, np.int64)

    def model(self) -> nn.Module:
        """The network."""
        sizes = self._settings.model
        if "depth" in sizes:
            return ResNet([(sizes["depth"] - 2) // 6] * 3, 16, projected=False)
        return ResNet([2, 2, 2, 2], WIDE * sizes["channels"], projected=True)

    def units(self, samples: Sequence[int]) -> int:
        """Pictures."""
        return len(samples)

    def batch(self, samples: Sequence[int], epoch: int) -> tuple[Tensor, ...]:
        """Randomly shifted and mirrored pictures, and their classes."""
        if self._draws[0] != epoch:
            # Drawn for all pictures, so that the result does not depend on the rank.
            random = np.random.default_rng([self._seed, 1, epoch])
            self._draws = epoch, random.integers(0, [2 * BORDER + 1, 2 * BORDER + 1, 2], (len(self._train), 3))
        rows = np.asarray(samples)
        return self._tensors(shifted(self._train[rows], self._draws[1][rows]), self._classes[rows])

    def sums(self, model: nn.Module, rank: int, size: int) -> Mapping[str, float]:
        """Losses and right answers over a share of the test pictures."""
        assert isinstance(model, ResNet)
        mine = share(range(len(self._test)), rank, size)
        loss, right = 0.0, 0
        for start in range(0, len(mine), 250):
            rows = np.asarray(mine[start : start + 250])
            pictures, classes = self._tensors(self._test[rows], self._test_classes[rows])
            loss += float(model(pictures, classes))
            right += int((model.layers(pictures).argmax(1) == classes).sum())
        return {"loss": loss, "right": right, "pictures": len(mine)}

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Accuracy in percent, and the mean loss of a picture."""
        return {"accuracy": 100 * sums["right"] / sums["pictures"], "test_loss": sums["loss"] / sums["pictures"]}

    def _tensors(self, pictures: Pictures, classes: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        return torch.from_numpy((pictures - self._mean) / self._deviation), torch.from_numpy(classes)


def _floats(pixels: Pictures) -> NDArray[np.float32]:
    return pixels.astype(np.float32)


@click.command()
@click.option("--model", type=click.Choice(list(PRESETS)), default="resnet", show_default=True)
@click.option(
    "--depth", type=click.IntRange(8), help="Depth of the residual network: 6 n + 2.  [default: the preset's]"
)
@click.option("--cache", type=click.Path(file_okay=False, path_type=Path), help="Folder for decoded pictures.")
@options
def main(choices: Choices, model: str, depth: int | None, cache: Path | None) -> None:
    """Train on CIFAR-10: classes of pictures."""
    run = choices.run(PRESETS[model])
    if depth is not None:
        if model != "resnet" or depth % 6 != 2:
            raise click.UsageError("--depth is 6 n + 2, and the wide network has 18")
        run = replace(run, settings=replace(run.settings, model={"depth": depth}))
    archive = choices.where("images")
    if archive.is_dir():
        archive = archive / "cifar10-images-jpg.tar.gz"
    folder = cache or Path(tempfile.gettempdir()) / "skyphos-cifar10"
    train(lambda: Cifar(f"cifar {model}", archive, folder, run.settings, run.seed), run)


if __name__ == "__main__":
    main()
