"""Partitions of data, and the file that lists them with their hosts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..files.whole_file import replacing

__all__ = ["Partition", "Partitions"]

_KIND, _VERSION = "skyphos partitions", 1


@dataclass(frozen=True)
class Partition:
    """A part of the data, in a file.

    Attributes
    ----------
    number : int
        Its number, from 0.
    path : str
        The file; the same path on each of its hosts.
    rows : int
        Lines of a text, rows of a table or array.
    bytes : int
        Bytes of the file.
    hosts : tuple of str
        Hosts that have the file, by their ``hostname``; empty: all hosts, as with a shared file system.
    """

    number: int
    path: str
    rows: int
    bytes: int
    hosts: tuple[str, ...] = ()


@dataclass
class Partitions:
    """All partitions of a data set.

    Attributes
    ----------
    format : str
        Name of the loader that reads the files (:mod:`skyphos.mapreduce.loaders`).
    parts : list of Partition
        The partitions in order; together they are the data.

    Examples
    --------
    >>> import tempfile
    >>> from skyphos.mapreduce import Partition, Partitions
    >>> folder = tempfile.mkdtemp()
    >>> parts = Partitions("text", [Partition(0, "a.txt", 2, 10, ("n1", "n2"))])
    >>> path = parts.save(folder + "/partitions.json")
    >>> Partitions.load(path).parts[0].hosts
    ('n1', 'n2')
    """

    format: str
    parts: list[Partition] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self.parts)

    @property
    def rows(self) -> int:
        """Rows of all partitions."""
        return sum(part.rows for part in self.parts)

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(part.bytes for part in self.parts)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file; paths of partitions below its folder are written relative to it."""
        location = Path(path)
        content = {"kind": _KIND, "version": _VERSION, "format": self.format, "rows": self.rows, "parts": []}
        for part in self.parts:
            fields = asdict(part)
            del fields["number"]
            fields["path"] = _below(location.parent, part.path)
            content["parts"].append(fields)  # type: ignore[attr-defined]
        try:
            location.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror or error}") from None
        with replacing(str(location)) as file:
            file.write((json.dumps(content, indent=1) + "\n").encode())
        return location

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Partitions:
        """Read a partition file.

        Raises
        ------
        BadInput
            If the file does not exist or is not a valid partition file.
        """
        location = Path(path)
        try:
            content = json.loads(location.read_text(encoding="utf-8"))
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror or error}") from None
        except ValueError as error:
            raise BadInput(f"{path}: not a partition file, because it is not JSON: {error}") from None
        if not isinstance(content, dict) or content.get("kind") != _KIND:
            raise BadInput(f"{path}: not a partition file: skyphos split makes one")
        if content.get("version") != _VERSION:
            raise BadInput(f"{path}: a partition file of version {content.get('version')}, and this reads {_VERSION}")
        try:
            parts = [_part(number, fields, location.parent) for number, fields in enumerate(content["parts"])]
            return cls(_text(content["format"]), parts)
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"{path}: a partition file that is damaged: {error!r}") from None

    @classmethod
    def of_files(cls, files: Iterable[str | os.PathLike[str]], format: str) -> Partitions:
        """Make one partition of each existing file.

        Raises
        ------
        BadInput
            If a file does not exist, or has another format.
        """
        from ..graph.files import size_of
        from .loaders import check_text, loader_of

        loader = loader_of(format)
        if isinstance(files, str | os.PathLike):
            raise BadInput(f"files must be a sequence of files, not the one name {files!r}: [{files!r}]")
        paths = [os.path.abspath(os.fspath(file)) for file in files]
        for path in paths if format == "text" else ():
            check_text(path, strictly=False)
        return cls(format, [Partition(k, path, loader.rows(path), size_of(path)) for k, path in enumerate(paths)])


def _below(folder: Path, path: str) -> str:
    try:
        return str(Path(path).absolute().relative_to(folder.absolute()))
    except ValueError:
        return path


def _text(word: Any) -> str:
    if not isinstance(word, str):
        raise TypeError(f"{word!r} is not text")
    return word


def _part(number: int, fields: dict[str, Any], folder: Path) -> Partition:
    rows, size = fields["rows"], fields["bytes"]
    if not all(isinstance(count, int) and count >= 0 for count in (rows, size)):
        raise ValueError(f"partition {number} has {rows!r} rows in {size!r} bytes")
    path = str(folder.absolute() / _text(fields["path"]))
    return Partition(number, path, rows, size, tuple(map(_text, fields["hosts"])))
