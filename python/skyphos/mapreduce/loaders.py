"""Loaders: read partitions and cut data into them, one class a format."""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Protocol

import numpy as np

from ..errors import BadInput
from ..files.compression import (
    ERRORS,
    HEAD_BYTES,
    binary_error,
    binary_kind,
    compression_of,
    decompressed,
    looks_binary,
)

__all__ = ["LOADERS", "Loader", "check_text", "format_of", "loader_of"]

# Bytes of a file that are checked for being text.
_HEAD = 1 << 16


class Loader(Protocol):
    """Reads files of one format. Raises :class:`BadInput` for a damaged file."""

    #: Suffix of the files that :meth:`cut` writes.
    suffix: str

    def rows(self, path: str) -> int:
        """Rows of a file."""

    def load(self, path: str) -> Any:
        """The content of a file, as ``map`` gets it."""

    def cut(self, path: str, ends: Sequence[int], targets: Sequence[str]) -> list[int]:
        """Write rows ``ends[k - 1]`` to ``ends[k] - 1`` to ``targets[k]``; return the number of rows in each."""


class Text:
    """Lines of text, as bytes, also compressed. Files are cut at ends of lines into parts of about equal bytes."""

    suffix = ".txt"

    def rows(self, path: str) -> int:
        with _mapped(path) as text:
            return _lines(text)

    def load(self, path: str) -> bytes:
        with _mapped(path) as text:
            return bytes(text)

    def cut(self, path: str, ends: Sequence[int], targets: Sequence[str]) -> list[int]:
        # Equal by bytes, not by lines: a part ends with the line in which its share of the bytes ends.
        with _mapped(path) as text:
            size, start, rows = len(text), 0, []
            for k, target in enumerate(targets):
                share = size * (k + 1) // len(targets)
                cut = text.find(b"\n", max(start, share - 1)) + 1 if share < size else size
                stop = max(start, cut or size)
                with _errors(target):
                    Path(target).write_bytes(text[start:stop])
                rows.append(_lines(text[start:stop]))
                start = stop
        return rows


class Npy:
    """A NumPy array, by its first axis."""

    suffix = ".npy"

    def rows(self, path: str) -> int:
        return len(self._open(path))

    def load(self, path: str) -> Any:
        with _errors(path):
            return np.load(path, allow_pickle=False)

    def _open(self, path: str) -> Any:
        with _errors(path):
            with open(path, "rb") as file:
                if not file.read(6).startswith((b"\x93NUMPY", b"PK")):
                    raise ValueError("no NumPy array (.npy)")
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            if not isinstance(array, np.ndarray) or array.ndim == 0:
                raise ValueError("no array with rows")
            return array

    def cut(self, path: str, ends: Sequence[int], targets: Sequence[str]) -> list[int]:
        return _cut_rows(self._open(path), ends, targets)


class Parquet:
    """A table of pyarrow."""

    suffix = ".parquet"

    def rows(self, path: str) -> int:
        with _errors(path):
            return int(_parquet().ParquetFile(path).metadata.num_rows)

    def load(self, path: str) -> Any:
        with _errors(path):
            return _parquet().read_table(path)

    def cut(self, path: str, ends: Sequence[int], targets: Sequence[str]) -> list[int]:
        start, rows = 0, []
        with _errors(path):
            whole = _parquet().read_table(path, memory_map=True)
            for end, target in zip(ends, targets, strict=True):
                _parquet().write_table(whole.slice(start, end - start), target)
                rows.append(end - start)
                start = end
        return rows


class Hdf5:
    """A dataset of an HDF5 file (``file.h5:group/name``), or of NetCDF 4, by its first axis. Parts are ``.npy``."""

    suffix = ".npy"

    def rows(self, path: str) -> int:
        with self._open(path) as dataset:
            return len(dataset)

    def load(self, path: str) -> Any:
        with self._open(path) as dataset:
            return dataset[...]

    @contextmanager
    def _open(self, path: str) -> Iterator[Any]:
        file, _, name = path.rpartition(":")
        try:
            import h5py  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except ImportError:
            raise BadInput(f"{path}: reading HDF5 needs h5py: pip install h5py") from None
        with _errors(path), h5py.File(file or path, "r") as opened:
            names: list[str] = []
            opened.visititems(lambda key, one: names.append(key) if isinstance(one, h5py.Dataset) else None)
            if not file and len(names) != 1:
                raise ValueError(f"it holds {', '.join(names) or 'no dataset'}: name one, {path}:NAME")
            dataset = opened[name] if file else opened[names[0]]
            if not isinstance(dataset, h5py.Dataset) or dataset.ndim == 0:
                raise ValueError(f"{name} is not a dataset with rows")
            yield dataset

    def cut(self, path: str, ends: Sequence[int], targets: Sequence[str]) -> list[int]:
        with self._open(path) as dataset:
            return _cut_rows(dataset, ends, targets)


class NetCdf:
    """A variable of a NetCDF file (``file.nc:name``), by its first axis. Parts are ``.npy``."""

    suffix = ".npy"

    def rows(self, path: str) -> int:
        with self._open(path) as variable:
            return int(variable.shape[0])

    def load(self, path: str) -> Any:
        with self._open(path) as variable:
            return _native(variable[...])

    @contextmanager
    def _open(self, path: str) -> Iterator[Any]:
        file, _, name = path.rpartition(":")
        file = file or path
        with _errors(file), open(file, "rb") as opened:
            classic = opened.read(3) == b"CDF"
        if not classic:
            with Hdf5()._open(path) as dataset:
                yield dataset
            return
        from scipy.io import netcdf_file

        with _errors(path), netcdf_file(file, "r", mmap=False) as opened:
            names = [key for key, variable in opened.variables.items() if variable.shape]
            name = name if file != path else (names[0] if len(names) == 1 else "")
            if name not in names:
                raise ValueError(f"it holds {', '.join(names) or 'no variable with rows'}: name one, {file}:NAME")
            yield opened.variables[name]

    def cut(self, path: str, ends: Sequence[int], targets: Sequence[str]) -> list[int]:
        with self._open(path) as variable:
            return _cut_rows(variable, ends, targets)


#: Loaders by name.
LOADERS: dict[str, Loader] = {"text": Text(), "npy": Npy(), "parquet": Parquet(), "hdf5": Hdf5(), "netcdf": NetCdf()}

_SUFFIXES = {".npy": "npy", ".parquet": "parquet", ".h5": "hdf5", ".hdf5": "hdf5", ".nc": "netcdf", ".nc4": "netcdf"}


def format_of(path: str) -> str:
    """The format by the suffix of a file; text, if it has none.

    Examples
    --------
    >>> from skyphos.mapreduce.loaders import format_of
    >>> format_of("points.h5:features"), format_of("book.txt")
    ('hdf5', 'text')
    """
    names = (path, path.rpartition(":")[0])  # a dataset may be named after the file
    suffixes = [os.path.splitext(name)[1].lower() for name in names]
    return next((_SUFFIXES[suffix] for suffix in suffixes if suffix in _SUFFIXES), "text")


def loader_of(format: str | Loader) -> Loader:
    """The loader for a format.

    Raises
    ------
    BadInput
        If there is no such loader.
    """
    if not isinstance(format, str):
        if not callable(getattr(format, "load", None)):
            raise BadInput(f"loader={format!r}: one of {', '.join(LOADERS)}, or an object with load(path)")
        return format
    if format not in LOADERS:
        raise BadInput(f"unknown format {format!r}: use one of {', '.join(LOADERS)}, or a loader of your own")
    return LOADERS[format]


def _parquet() -> Any:
    try:
        from pyarrow import parquet  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise BadInput('reading Parquet needs pyarrow: pip install "skyphos[graph]"') from None
    return parquet


def _cut_rows(rows: Any, ends: Sequence[int], targets: Sequence[str]) -> list[int]:
    """Write rows of a sliceable object as NumPy arrays, with one slice in memory at a time."""
    start, counts = 0, []
    for end, target in zip(ends, targets, strict=True):
        with _errors(target), open(target, "wb") as file:
            np.save(file, _native(rows[start:end]), allow_pickle=False)
        counts.append(end - start)
        start = end
    return counts


def _native(array: Any) -> Any:
    """A copy in this machine's byte order: NetCDF is big-endian."""
    own = np.ascontiguousarray(array)
    return own.astype(own.dtype.newbyteorder("="))


def _lines(text: Any) -> int:
    """The number of lines; the last one need not have a line end."""
    array = np.frombuffer(text, np.uint8)
    ends = sum(int(np.count_nonzero(array[at : at + (1 << 24)] == 10)) for at in range(0, len(array), 1 << 24))
    return ends + int(len(array) > 0 and array[-1] != 10)


def check_text(path: str, *, strictly: bool) -> None:
    """Raise BadInput if a file, compressed or not, is certainly binary; ``strictly``: also if it looks binary.

    A file that the caller declares as text may have control characters, but not the signature of a binary format.
    """
    with _errors(path), _text(path) as text:
        head = text.read(_HEAD)
    what, hint = binary_kind(head), ""
    if what is None and strictly and looks_binary(head):
        what = "binary: it holds control characters that no text has"
        hint = '; format="text" (--format text) takes it all the same'
    if what is not None:
        advice = f"which has no lines; formats are {', '.join(LOADERS)}{hint}"
        raise BadInput(f"{path}: {binary_error(what, advice)}")


@contextmanager
def _text(path: str) -> Iterator[Any]:
    """Open a text file, decompressed."""
    with open(path, "rb") as stored:
        kind = compression_of(path, stored.read(HEAD_BYTES))
        stored.seek(0)
        if kind is None:
            yield stored
            return
        try:
            with decompressed(stored, kind, path) as text:
                yield text
        except ERRORS as error:
            raise ValueError(f"not a whole {kind} file: {error}") from None


@contextmanager
def _mapped(path: str) -> Iterator[Any]:
    """Map a file to memory, decompressed to a temporary file if it is compressed."""
    with ExitStack() as stack:
        with _errors(path):
            file: Any = stack.enter_context(open(path, "rb"))
            if compression_of(path, file.read(HEAD_BYTES)) is not None:
                file = stack.enter_context(TemporaryFile())
                with _text(path) as text:
                    shutil.copyfileobj(text, file, 1 << 20)
                file.flush()
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            yield b""
            return
        yield mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


@contextmanager
def _errors(path: str) -> Iterator[None]:
    """Convert errors of a file to BadInput with its name."""
    try:
        yield
    except BadInput:
        raise
    except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
        cause = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise BadInput(f"{path}: {cause}") from None
