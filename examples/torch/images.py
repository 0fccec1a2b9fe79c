"""CIFAR-10 as arrays, from an archive of JPEG pictures, decoded once into a cache folder."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from skyphos.files.whole_file import replacing

__all__ = ["BORDER", "CLASSES", "Pictures", "load", "shifted"]

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

Pictures = NDArray[np.uint8]

#: Black pixels around a picture before it is cropped.
BORDER = 4


def load(archive: Path, name: str, cache: Path) -> tuple[Pictures, NDArray[np.int64]]:
    """The pictures of a set, of shape (n, 3, 32, 32), and their classes.

    Parameters
    ----------
    archive : Path
        A tar file of ``SET/CLASS/NUMBER.jpg``.
    name : {"train", "test"}
    cache : Path
        Folder for decoded arrays. They are written whole or not at all, so that a killed run leaves no damaged ones.
    """
    kept = cache / f"{archive.name.partition('.')[0]}-{name}.npy"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with replacing(str(kept)) as file:
            np.save(file, _decode(archive, name))
    # One row a picture: the class, then the pixels.
    rows = np.load(kept, mmap_mode="r")
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def _decode(archive: Path, name: str) -> Pictures:
    """A row for each picture of a set: its class, then its pixels. Classes take turns, so the first rows have all."""
    from PIL import Image

    found: dict[tuple[str, str], Pictures] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = member.name.split("/")
            if len(parts) < 3 or parts[-3] != name or not member.isfile():
                continue
            file = tar.extractfile(member)
            assert file is not None
            picture = np.asarray(Image.open(io.BytesIO(file.read())).convert("RGB"))
            label = np.array([CLASSES.index(parts[-2])], np.uint8)
            found[parts[-1], parts[-2]] = np.concatenate([label, picture.transpose(2, 0, 1).ravel()])
    if not found:
        raise click.ClickException(f"{archive} has no {name}/CLASS/NUMBER.jpg")
    return np.stack([found[where] for where in sorted(found)])


def shifted(pictures: Pictures, draws: NDArray[np.int64]) -> Pictures:
    """Each picture moved by up to four pixels and, half of them, mirrored (He et al., 2015, section 4.2).

    Parameters
    ----------
    pictures : array of shape (n, 3, 32, 32)
    draws : array of shape (n, 3)
        Rows and columns to cut at the top and left, 0 to ``2 * BORDER``, and whether to mirror (0 or 1).
    """
    bordered = np.pad(pictures, ((0, 0), (0, 0), (BORDER, BORDER), (BORDER, BORDER)))
    found = np.empty_like(pictures)
    for picture, whole, (top, left, mirrored) in zip(found, bordered, draws.tolist(), strict=True):
        cut = whole[:, top : top + 32, left : left + 32]
        picture[:] = cut[:, :, ::-1] if mirrored else cut
    return found
