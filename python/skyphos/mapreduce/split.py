"""Cuts data into even partitions, and says which hosts are to have which."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..errors import BadInput
from .loaders import format_of, loader_of
from .partitions import Partition, Partitions

__all__ = ["split"]


def split(
    data: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    partitions: int,
    *,
    format: str | None = None,
    hosts: Sequence[str] = (),
    replicas: int = 1,
) -> Partitions:
    """Cut a file into even partitions.

    Parameters
    ----------
    data : path
        Text, ``.npy``, Parquet, HDF5 or NetCDF; of the last two ``FILE:NAME`` is a dataset or variable of several.
    folder : path
        Gets the partitions and ``partitions.json``, which lists them (:class:`Partitions`).
    partitions : int
        How many. Text is cut at ends of lines, all else between rows; shares differ by one row (text: one line).
    format : str, optional
        ``text``, ``npy``, ``parquet``, ``hdf5`` or ``netcdf``; None: by the name.
    hosts : sequence of str
        Names of the hosts (as ``hostname`` says) that partitions are to be on, if they share no file system: dealt
        out in turn. Copying them there is another's work (``rsync``, a batch system).
    replicas : int
        Hosts of each partition.

    Returns
    -------
    Partitions

    Raises
    ------
    BadInput
        There is no such file, it is damaged, or has fewer rows than there are to be partitions.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from skyphos.mapreduce import split
    >>> folder = tempfile.mkdtemp()
    >>> np.save(folder + "/x.npy", np.arange(10))
    >>> [part.rows for part in split(folder + "/x.npy", folder + "/parts", 4, hosts=["n1", "n2", "n3"], replicas=2)]
    [2, 3, 2, 3]
    """
    path = os.fspath(data)
    kind = format_of(path) if format is None else format
    loader = loader_of(kind)
    if partitions < 1:
        raise BadInput(f"partitions={partitions}: at least one")
    if hosts and not 1 <= replicas <= len(set(hosts)):
        raise BadInput(f"replicas={replicas} on {len(set(hosts))} hosts: at least one, each on a host of its own")
    rows = loader.rows(path)
    if rows < partitions:
        raise BadInput(f"{path}: {rows} rows cannot be cut into {partitions} partitions")
    place = Path(folder).absolute()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror or error}") from None
    digits = max(5, len(str(partitions - 1)))
    names = [place / f"part-{number:0{digits}}{loader.suffix}" for number in range(partitions)]
    unfinished = [str(name.with_name(f".{name.name}.{os.getpid()}")) for name in names]
    try:
        counts = loader.cut(path, [rows * (number + 1) // partitions for number in range(partitions)], unfinished)
        for new, name in zip(unfinished, names, strict=True):
            os.replace(new, name)
    finally:
        for new in unfinished:
            Path(new).unlink(missing_ok=True)
    known = list(dict.fromkeys(hosts))

    def on(number: int) -> tuple[str, ...]:
        return tuple(known[(number + k) % len(known)] for k in range(replicas)) if known else ()

    kept = {".npy": "npy", ".txt": "text", ".parquet": "parquet"}[loader.suffix]
    parts = [Partition(k, str(name), counts[k], name.stat().st_size, on(k)) for k, name in enumerate(names)]
    result = Partitions(kept, parts)
    result.save(place / "partitions.json")
    return result
