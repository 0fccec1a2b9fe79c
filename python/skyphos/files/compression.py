"""Compressed and other binary files, recognised by their first bytes.

gzip, bzip2 and xz are read by Python itself, Zstandard by Python 3.14 or pyarrow. Other binary files are refused with
the name of their format, instead of being read as lines.
"""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import io
import lzma
import os
import sys
import zlib
from typing import Any, BinaryIO, cast

from ..errors import BadInput

__all__ = ["ERRORS", "bare_name", "binary_error", "binary_kind", "compression_of", "decompressed", "looks_binary"]

#: Errors of decompressing damaged files.
ERRORS = (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError)

#: Number of bytes at the start of a file from which its format is recognised.
HEAD_BYTES = 512

_SUFFIXES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".lzma": "xz", ".zst": "Zstandard", ".zstd": "Zstandard"}
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "Zstandard"}
_UTF_16 = "text in UTF-16"
# Binary formats by their first bytes; and text in UTF-16.
_BINARY = {
    b"PK\x03\x04": "a zip archive",
    b"PK\x05\x06": "an empty zip archive",
    b"\x93NUMPY": "a NumPy array (.npy)",
    b"PAR1": "a Parquet file",
    b"\x89HDF": "an HDF5 file",
    b"CDF\x01": "a NetCDF file",
    b"CDF\x02": "a NetCDF file",
    b"CDF\x05": "a NetCDF file",
    b"ARROW1": "an Arrow file",
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"GIF8": "a GIF picture",
    b"II*\0": "a TIFF picture",
    b"MM\0*": "a TIFF picture",
    b"%PDF-": "a PDF document",
    b"\x7fELF": "a program (ELF)",
    b"\xff\xfe": _UTF_16,
    b"\xfe\xff": _UTF_16,
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"Rar!\x1a\x07": "a rar archive",
    b"\x04\x22\x4d\x18": "compressed by LZ4",
    b"\x1f\x9d": "compressed by compress (.Z)",
    b"\x80\x04\x95": "a pickle",
    b"\x80\x05\x95": "a pickle",
    b"SQLite format 3\0": "an SQLite database",
    b"Obj\x01": "an Avro file",
}
# Control characters that text does not have; tabs, line ends, form feeds and escapes are allowed.
_NO_TEXT = bytes(set(range(32)) - {7, 8, 9, 10, 11, 12, 13, 27})


def compression_of(path: str, head: bytes = b"") -> str | None:
    """Compression of a file, by its name or else its first bytes; None without one.

    Examples
    --------
    >>> from skyphos.files.compression import compression_of
    >>> compression_of("GRAPH.TXT.GZ"), compression_of("/dev/fd/63", b"BZh91AY"), compression_of("a.txt")
    ('gzip', 'bzip2', None)
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


def bare_name(path: str) -> str:
    """A file's name without the suffix of its compression.

    Examples
    --------
    >>> from skyphos.files.compression import bare_name
    >>> bare_name("a.mtx.GZ"), bare_name("a.mtx")
    ('a.mtx', 'a.mtx')
    """
    bare, suffix = os.path.splitext(path)
    return bare if suffix.lower() in _SUFFIXES else path


def binary_kind(head: bytes) -> str | None:
    """Format of a binary file, by its first bytes; None: probably text.

    Examples
    --------
    >>> from skyphos.files.compression import binary_kind
    >>> binary_kind(b"PK\\x03\\x04"), binary_kind(b"1 2\\n")
    ('a zip archive', None)
    """
    if head[257:262] == b"ustar":
        return "a tar archive"
    return next((kind for magic, kind in _BINARY.items() if head.startswith(magic)), None)


def binary_error(kind: str, advice: str) -> str:
    """Error text for a binary file of a kind (:func:`binary_kind`). Text in UTF-16 has its own advice.

    Examples
    --------
    >>> from skyphos.files.compression import binary_error
    >>> binary_error("a pickle", "which has no lines: save it as text")
    'a pickle, which has no lines: save it as text'
    """
    return f"{kind}: save it as UTF-8" if kind == _UTF_16 else f"{kind}, {advice}"


def looks_binary(head: bytes) -> bool:
    """True if bytes have control characters that text does not have.

    Examples
    --------
    >>> from skyphos.files.compression import looks_binary
    >>> looks_binary(b"\\x00\\x01"), looks_binary("Grüße\\n".encode())
    (True, False)
    """
    return len(head) != len(head.translate(None, _NO_TEXT))


def decompressed(stored: BinaryIO, kind: str, path: str) -> BinaryIO:
    """The content of a compressed file as a stream without seek.

    Raises
    ------
    BadInput
        If the package that decompresses it is not installed.
    """
    if kind == "gzip":
        return cast(BinaryIO, gzip.open(stored, "rb"))
    if kind == "bzip2":
        return cast(BinaryIO, bz2.open(stored, "rb"))
    if kind == "xz":
        return cast(BinaryIO, lzma.open(stored, "rb"))
    if sys.version_info >= (3, 14):
        from compression import zstd

        return cast(BinaryIO, zstd.open(stored, "rb"))
    if _has("zstandard"):
        import zstandard  # type: ignore[import-not-found, unused-ignore]

        reader = zstandard.ZstdDecompressor().stream_reader(stored, read_across_frames=True)
        return cast(BinaryIO, io.BufferedReader(cast(Any, reader)))
    if _has("pyarrow"):
        import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

        # pyarrow's stream has no readline of its own.
        return cast(
            BinaryIO, io.BufferedReader(cast(Any, pa.CompressedInputStream(pa.PythonFile(stored, "r"), "zstd")))
        )
    raise BadInput(f"{path}: reading Zstandard needs a package: pip install zstandard")


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
