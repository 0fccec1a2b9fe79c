"""Split: cuts data into even partitions, and assigns hosts to them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..errors import BadInput
from ..graph.spool import is_stream
from ..inputs.settings import whole
from .loaders import Loader, check_text, format_of, loader_of
from .partitions import Partition, Partitions

__all__ = ["split"]


Paths = str | os.PathLike[str]


def split(
    data: Paths | Sequence[Paths],
    folder: Paths,
    partitions: int,
    *,
    format: str | None = None,
    hosts: Sequence[str] = (),
    replicas: int = 1,
) -> Partitions:
    """Cut files into even partitions.

    Parameters
    ----------
    data : path or sequence of paths
        Text (also compressed), ``.npy``, Parquet, HDF5 or NetCDF; for the last two ``FILE:NAME`` selects
        a dataset or variable. Several files of one format are cut one by one; no partition spans two files.
    folder : path
        Receives the partitions and ``partitions.json``, which lists them (:class:`Partitions`).
    partitions : int
        Number of partitions. Text is cut at ends of lines, other formats between rows; sizes differ by at most one row
        (text: one line). Several files are cut into numbers of partitions in proportion to their rows (text: bytes),
        each into at least one.
    format : str, optional
        ``text``, ``npy``, ``parquet``, ``hdf5`` or ``netcdf``; None: by the name.
    hosts : sequence of str
        Hosts on which to place partitions round-robin, by their ``hostname``, if they share no file system. Copying the
        files there is left to the caller (``rsync``, a batch system).
    replicas : int
        Hosts of each partition.

    Returns
    -------
    Partitions

    Raises
    ------
    BadInput
        If a file does not exist, is damaged, has an unknown format, or has fewer rows than partitions.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from skyphos.mapreduce import split
    >>> folder = tempfile.mkdtemp()
    >>> np.save(folder + "/x.npy", np.arange(10))
    >>> [part.rows for part in split(folder + "/x.npy", folder + "/parts", 4, hosts=["n1", "n2", "n3"], replicas=2)]
    [2, 3, 2, 3]
    >>> [part.rows for part in split([folder + "/x.npy"] * 2, folder + "/more", 3)]
    [5, 5, 10]
    """
    paths = [os.fspath(data)] if isinstance(data, str | os.PathLike) else [os.fspath(one) for one in data]
    loader = _loader(paths, format)
    partitions, replicas = (
        whole(partitions, "partitions", -(2**63), 2**31),
        whole(replicas, "replicas", -(2**63), 2**31),
    )
    if partitions < 1:
        raise BadInput(f"partitions={partitions}: at least one")
    if isinstance(hosts, str):
        raise BadInput(f"hosts must be a sequence of names, not the text {hosts!r}")
    if not hosts and replicas != 1:
        raise BadInput(f"replicas={replicas} (--replicas) needs hosts, and none are named: pass hosts= (--hosts)")
    if hosts and not 1 <= replicas <= len(set(hosts)):
        raise BadInput(f"replicas={replicas} on {len(set(hosts))} hosts: at least one, each on a host of its own")
    rows = [loader.rows(path) for path in paths]
    counts = _shares(paths, rows, partitions)
    directory = Path(folder).absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror or error}") from None
    digits = max(5, len(str(partitions - 1)))
    names = [directory / f"part-{number:0{digits}}{loader.suffix}" for number in range(partitions)]
    unfinished = [str(name.with_name(f".{name.name}.{os.getpid()}")) for name in names]
    cut: list[int] = []
    try:
        for path, rows_of_file, count in zip(paths, rows, counts, strict=True):
            ends = [rows_of_file * (number + 1) // count for number in range(count)]
            cut += loader.cut(path, ends, unfinished[len(cut) : len(cut) + count])
        for new, name in zip(unfinished, names, strict=True):
            os.replace(new, name)
    finally:
        for new in unfinished:
            Path(new).unlink(missing_ok=True)
    known = list(dict.fromkeys(hosts))

    def hosts_of(number: int) -> tuple[str, ...]:
        return tuple(known[(number + k) % len(known)] for k in range(replicas)) if known else ()

    format_of_parts = {".npy": "npy", ".txt": "text", ".parquet": "parquet"}[loader.suffix]
    parts = [Partition(k, str(name), cut[k], name.stat().st_size, hosts_of(k)) for k, name in enumerate(names)]
    result = Partitions(format_of_parts, parts)
    result.save(directory / "partitions.json")
    return result


def _loader(paths: Sequence[str], format: str | None) -> Loader:
    """The loader of the files; BadInput if a file is certainly of another format."""
    if not paths:
        raise BadInput("no file to split is named")
    kinds = {path: format_of(path) if format is None else format for path in paths}
    if len(set(kinds.values())) > 1:
        formats = ", ".join(f"{path} ({kind})" for path, kind in kinds.items())
        raise BadInput(f"files of several formats cannot be cut together: {formats}")
    for path in paths:
        if is_stream(path):
            raise BadInput(f"{path}: a pipe, which cannot be cut: save it to a file first")
    kind = kinds[paths[0]]
    loader = loader_of(kind)
    if kind == "text":
        for path in paths:
            check_text(path, strictly=format is None)
    return loader


def _shares(paths: Sequence[str], rows: Sequence[int], partitions: int) -> list[int]:
    """Number of partitions of each file: in proportion to its rows, from one to its number of rows."""
    if len(paths) > partitions:
        raise BadInput(f"{len(paths)} files cannot be cut into {partitions} partitions: each file is at least one")
    counts = [1] * len(paths)
    for path, rows_of_file in zip(paths, rows, strict=True):
        if rows_of_file == 0:
            raise BadInput(f"{path}: 0 rows cannot be cut into partitions")
    if sum(rows) < partitions:
        raise BadInput(f"{', '.join(paths)}: {sum(rows)} rows cannot be cut into {partitions} partitions")
    for _ in range(partitions - len(paths)):
        # The next partition goes to the file whose partitions are largest.
        free = [k for k in range(len(paths)) if counts[k] < rows[k]]
        counts[max(free, key=lambda k: rows[k] / counts[k])] += 1
    return counts
