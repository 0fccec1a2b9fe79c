"""Input files, on local disk or elsewhere: S3, HDFS, HTTP and whatever else fsspec or pyarrow can read.

A name with a scheme (``s3://bucket/graph.txt.gz``, ``hdfs://host/graph.mtx``) is opened by fsspec where that is
installed, which finds the package for the scheme (s3fs, gcsfs, …), else by pyarrow, which supports S3, GCS and HDFS
itself. Each rank reads its own share, as with a local file. These packages find the credentials. Compressed
files are decompressed while they are read (:mod:`skyphos.files.compression`).
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from ..errors import BadInput
from ..files.compression import ERRORS, HEAD_BYTES, compression_of, decompressed

__all__ = ["compressed", "open_binary", "size_of"]

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


@contextmanager
def open_binary(path: str, *, packed: bool = False) -> Iterator[BinaryIO]:
    """Open a file, decompressed, or as it is stored if ``packed``; errors become :class:`BadInput`.

    Examples
    --------
    >>> from skyphos.graph.files import open_binary
    >>> with open_binary("nowhere.txt"):
    ...     pass
    Traceback (most recent call last):
    ...
    skyphos.errors.BadInput: nowhere.txt: No such file or directory
    """
    with _errors_name(path), _open(path) as stored:
        kind = None if packed else _compression(path, stored)
        if kind is None:
            yield stored
            return
        try:
            with decompressed(stored, kind, path) as text:
                yield text
        except ERRORS as error:
            raise BadInput(f"{path}: not a whole {kind} file: {error}") from None


def compressed(path: str) -> str | None:
    """The compression of a file, by its name or first bytes; None if it is not compressed."""
    with open_binary(path, packed=True) as stored:
        return _compression(path, stored)


def _compression(path: str, stored: BinaryIO) -> str | None:
    kind = compression_of(path)
    if kind is None:
        kind = compression_of(path, stored.read(HEAD_BYTES))
        stored.seek(0)
    return kind


def size_of(path: str) -> int:
    """Bytes of a file as it is stored."""
    with _errors_name(path):
        if not _SCHEME.match(path):
            return os.path.getsize(path)
        with _open(path) as stream:
            return stream.seek(0, os.SEEK_END)


def _open(path: str) -> BinaryIO:
    """A file as it is stored, seekable."""
    if not _SCHEME.match(path):
        return open(path, "rb")
    if importlib.util.find_spec("fsspec") is not None:
        import fsspec  # type: ignore[import-untyped, unused-ignore]

        system, inner_path = fsspec.core.url_to_fs(path)
        return cast(BinaryIO, system.open(inner_path, "rb"))
    if importlib.util.find_spec("pyarrow") is not None:
        import pyarrow.fs  # type: ignore[import-untyped, unused-ignore]

        arrow_system, inner_path = pyarrow.fs.FileSystem.from_uri(path)
        # pyarrow's stream has no readline of its own.
        return cast(BinaryIO, io.BufferedReader(cast(Any, arrow_system.open_input_file(inner_path))))
    raise BadInput(
        f"{path}: reading from there needs fsspec or pyarrow: pip install fsspec, and the package that it names"
    )


@contextmanager
def _errors_name(path: str) -> Iterator[None]:
    """Within this context errors of the file system become :class:`BadInput`, and name the file."""
    try:
        yield
    except BadInput:
        raise
    except (OSError, ImportError, ValueError) as error:
        # A ValueError about the content is the reader's own; about an address it means an unknown scheme.
        if isinstance(error, ValueError) and not _SCHEME.match(path):
            raise
        cause = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise BadInput(f"{path}: {cause}") from None
