"""Edges in lines of text: fast parsing of one share of a file, and the exact line of an error.

A line belongs to the share in which its first byte lies, so shares that meet at any byte hold each line
once. A plain file is read from the share's first byte on. A compressed one has to be decompressed up to
the share's end, but only the share is kept and parsed. Lines end in LF, CR LF or, throughout the file, CR alone.

Three parsers, each tried when the one before refuses the text: pyarrow's CSV reader on the bytes as they are; the same
after runs of blanks, comments inside the file and mixed separators have been normalised; and a slow one in Python, line
by line, which parses the text or reports the line that is not an edge. The last one defines what an edge is; the others
are only faster.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn, cast

import numpy as np

from ..errors import BadInput
from .edges import MAX_ID, Edges, Ids, Weights
from .files import compressed, open_binary, size_of

__all__ = ["BOM", "SEPARATORS", "Layout", "fields_of", "numbered_lines", "open_text", "read_share"]

_CHUNK = 1 << 20
# The longest line that may be an edge, in bytes: a file without line ends is not an edge list.
_LONGEST_LINE = 1 << 16
_INTEGER = re.compile(rb"[+-]?[0-9]+")
# Numbers as pyarrow reads them: no 1_000, no 0x1F, only ASCII digits.
_REAL = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
# Bytes at the beginning of a file from which its line ends are determined.
_HEAD = 1 << 16

#: A byte order mark, as Windows writes it before text in UTF-8.
BOM = b"\xef\xbb\xbf"
#: Separators of columns: the first of these that a line contains counts. Blanks next to it are ignored.
SEPARATORS = (b";", b"|", b",", b"\t", b" ")
# If a line contains one of these, no other character separates its columns: a comma is then part of a field.
_STRONG = (b";", b"|")


@dataclass(frozen=True)
class Layout:
    """Start of the edges in a text file, and the meaning of its columns.

    Attributes
    ----------
    body : int
        Byte at which the first line of edges begins.
    separator : bytes
        One of :data:`SEPARATORS`.
    columns : int
        Columns in each line.
    source, target : int
        Columns of source and target.
    weight : int or None
        Column of the weight, if it is to be read.
    quoted : bool
        Whether fields may be in double quotes (CSV with a header).
    base : int
        The smallest id (1 for MatrixMarket).
    shape : (int, int) or None
        Rows and columns that the file states: no id may reach beyond.
    """

    body: int
    separator: bytes
    columns: int
    source: int = 0
    target: int = 1
    weight: int | None = None
    quoted: bool = False
    base: int = 0
    shape: tuple[int, int] | None = None


def read_share(path: str, layout: Layout, part: int, parts: int) -> Edges:
    """Read the edges of one share of a text file.

    Parameters
    ----------
    path : str
        The file; decompressed on the fly.
    layout : Layout
        Its columns, and where its lines begin.
    part, parts : int
        This share's number, and the number of shares. The shares in order make up the file.

    Returns
    -------
    Edges
        The edges of the share; ids from 0.

    Raises
    ------
    BadInput
        If a line is not an edge: names file and line.
    """
    packed = compressed(path)
    size = _text_size(path, packed)
    low = layout.body + (size - layout.body) * part // parts
    # The last share has no end: the size of a compressed file's text may be an estimate.
    high = None if part == parts - 1 else layout.body + (size - layout.body) * (part + 1) // parts
    with open_text(path) as stream:
        text, lines_before = _cut(stream, low, high, layout.body, can_seek=packed is None)
    # pyarrow would read 0x1F as a number.
    regular = b"0x" not in text and b"0X" not in text
    columns = _parse_fast(text, layout, threads=parts == 1) if regular else None
    if columns is None and regular:
        columns = _parse_fast(_regular(text, layout), layout, threads=parts == 1)
    if columns is None:
        if lines_before is None:
            lines_before = _count_lines(path, text, low, layout.body)
        columns = _parse_slow(text, layout, path, lines_before)
    source, target, weight = columns
    if layout.base:
        source, target = source - layout.base, target - layout.base
    return Edges(source, target, weight, layout.shape, layout.base)


class _CarriageReturns(io.RawIOBase):
    """A stream of text with each CR replaced by LF; positions of bytes do not change."""

    def __init__(self, text: BinaryIO) -> None:
        self._text = text

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._text.seekable()

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._text.seek(offset, whence)

    def readinto(self, buffer: Any, /) -> int:
        data = self._text.read(len(buffer)).replace(b"\r", b"\n")
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def open_text(path: str) -> Iterator[BinaryIO]:
    """Open a file of lines, decompressed, each line ending in LF (CR LF where the file has that)."""
    with open_binary(path) as text:
        head = text.read(_HEAD)
    with open_binary(path) as text:
        if b"\r" in head and b"\n" not in head:
            yield cast(BinaryIO, io.BufferedReader(cast(Any, _CarriageReturns(text))))
        else:
            yield text


def numbered_lines(stream: BinaryIO) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield (line number from 1, bytes at which it begins and at which the next does, line without its end).

    A byte order mark is not part of the first line.

    Examples
    --------
    >>> import io
    >>> from skyphos.graph.text import numbered_lines
    >>> list(numbered_lines(io.BytesIO(b"a\\r\\nb")))
    [(1, 0, 3, b'a'), (2, 3, 4, b'b')]
    """
    number, start = 1, 0
    while line := stream.readline(_LONGEST_LINE):
        mark = len(BOM) if number == 1 and line.startswith(BOM) else 0
        yield number, start + mark, start + len(line), line[mark:].rstrip(b"\r\n")
        number, start = number + 1, start + len(line)


def _text_size(path: str, packed: str | None) -> int:
    """Bytes of text in a file; of a compressed file an estimate, the same on all ranks."""
    size = size_of(path)
    if packed != "gzip":
        return size if packed is None else 4 * size
    with open_binary(path, packed=True) as stream:
        stream.seek(max(0, size - 4))
        last = int.from_bytes(stream.read(4), "little")
    # A gzip file ends with the size of its last member's text modulo 2^32. If that is too small, assume a factor of 4.
    return last if last > size else 4 * size


def _cut(stream: BinaryIO, low: int, high: int | None, body: int, *, can_seek: bool) -> tuple[bytes, int | None]:
    """The lines whose first byte is in [low, high), and the number of lines before them if that costs nothing."""
    # Step to the byte before the share, then over the rest of the line that it is in.
    skip = low - 1 if low > body else low
    position, lines = 0, 0
    if not can_seek:
        while position < skip and (chunk := stream.read(min(_CHUNK, skip - position))):
            position, lines = position + len(chunk), lines + chunk.count(b"\n")
    else:
        position = stream.seek(skip)
    if low > body:
        rest = stream.readline()
        position, lines = position + len(rest), lines + rest.count(b"\n")
    pieces = []
    while high is None or position < high:
        chunk = stream.read(_CHUNK if high is None else min(_CHUNK, high - position))
        if not chunk:
            break
        pieces.append(chunk)
        position += len(chunk)
    if pieces and not pieces[-1].endswith(b"\n"):
        pieces.append(stream.readline())
    return b"".join(pieces), None if can_seek else lines


def _count_lines(path: str, text: bytes, low: int, body: int) -> int:
    """Lines before a share of a plain file: read again, but only after something went wrong."""
    lines = 0
    with open_text(path) as stream:
        left = low - 1 if low > body else low
        while left > 0 and (chunk := stream.read(min(_CHUNK, left))):
            left, lines = left - len(chunk), lines + chunk.count(b"\n")
        if low > body:
            lines += stream.readline().count(b"\n")
    return lines


def _parse_fast(text: bytes, layout: Layout, *, threads: bool) -> tuple[Ids, Ids, Weights | None] | None:
    """Parse with pyarrow; None if anything is out of the ordinary."""
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
    from pyarrow import csv as pa_csv

    if b"\r" in text and text.count(b"\r") != text.count(b"\r\n"):
        return None  # pyarrow treats a CR within a line as the line's end
    if not text.strip(b"\r\n"):
        return np.empty(0, np.int64), np.empty(0, np.int64), None if layout.weight is None else np.empty(0)
    names = [f"c{k}" for k in range(layout.columns)]
    wanted = [names[layout.source], names[layout.target]]
    types = dict.fromkeys(wanted, pa.int64())
    if layout.weight is not None:
        wanted.append(names[layout.weight])
        types[wanted[2]] = pa.float64()
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(text),
            read_options=pa_csv.ReadOptions(column_names=names, use_threads=threads, block_size=1 << 22),
            parse_options=pa_csv.ParseOptions(
                delimiter=layout.separator.decode(), quote_char='"' if layout.quoted else False
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types=types, include_columns=wanted, null_values=[], strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid:
        return None
    columns = [table.column(name).to_numpy() for name in wanted]
    if not all(_in_range(ids, layout, side) for side, ids in enumerate(columns[:2])):
        return None
    weight = columns[2] if layout.weight is not None else None
    if weight is not None and not np.isfinite(weight).all():
        return None
    return columns[0], columns[1], weight


def _in_range(ids: Ids, layout: Layout, side: int) -> bool:
    if len(ids) == 0:
        return True
    below_end = layout.shape is None or ids.max() - layout.base < layout.shape[side]
    return bool(ids.min() >= layout.base and below_end)


def _regular(text: bytes, layout: Layout) -> bytes:
    """The same lines without comments, blanks at their ends, or more than one kind of separator."""
    text = re.sub(rb"(?m)^[ \t]*[#%].*$", b"", text)
    if layout.quoted:
        return text
    text = re.sub(rb"[ \t]+", b" ", text)
    text = re.sub(rb"(?m)^ | ?\r?$", b"", text)
    if layout.separator in _STRONG:
        return text.replace(b" " + layout.separator, layout.separator).replace(
            layout.separator + b" ", layout.separator
        )
    text = text.replace(b" ,", b",").replace(b", ", b",")
    return text.replace(b",", layout.separator).replace(b" ", layout.separator)


def _parse_slow(text: bytes, layout: Layout, path: str, lines_before: int) -> tuple[Ids, Ids, Weights | None]:
    """Parse line by line; this defines an edge."""
    rows: list[tuple[int, int, float]] = []
    for number, raw in enumerate(text.split(b"\n"), lines_before + 1):
        line = raw.strip()
        if not line or line[:1] in (b"#", b"%"):
            continue
        where = f"{path}, line {number}"
        try:
            fields = fields_of(line, layout.separator, layout.quoted)
        except csv.Error as error:
            _not_an_edge(where, line, str(error))
        if len(fields) != layout.columns:
            _not_an_edge(where, line, f"{len(fields)} columns where {layout.columns} are expected")
        source = _id(fields[layout.source], layout, 0, where, line)
        target = _id(fields[layout.target], layout, 1, where, line)
        weight = 1.0 if layout.weight is None else _weight(fields[layout.weight], where, line)
        rows.append((source, target, weight))
    source_ids = np.array([row[0] for row in rows], np.int64)
    target_ids = np.array([row[1] for row in rows], np.int64)
    weights = None if layout.weight is None else np.array([row[2] for row in rows], np.float64)
    return source_ids, target_ids, weights


def fields_of(line: bytes, separator: bytes, quoted: bool) -> list[bytes]:
    """The columns of a line.

    Examples
    --------
    >>> from skyphos.graph.text import fields_of
    >>> fields_of(b"1, 2\\t0.5", b",", False), fields_of(b'"a;b";2', b";", True), fields_of(b"1;0,5", b";", False)
    ([b'1', b'2', b'0.5'], [b'a;b', b'2'], [b'1', b'0,5'])
    """
    if quoted:
        reader = csv.reader([line.decode("utf-8", "surrogateescape")], delimiter=separator.decode())
        return [field.strip().encode("utf-8", "surrogateescape") for field in next(reader, [])]
    if separator in _STRONG:
        return [field.strip() for field in line.split(separator)]
    return re.split(rb"[ \t]*,[ \t]*|[ \t]+", line)


def _id(field: bytes, layout: Layout, side: int, where: str, line: bytes) -> int:
    if not _INTEGER.fullmatch(field):
        _not_an_edge(where, line, f"{_show(field)} is not a vertex id")
    value = int(field) if len(field) < 40 else MAX_ID + 1
    if value < layout.base:
        what = "negative" if layout.base == 0 else f"below {layout.base}, where MatrixMarket begins to count"
        _not_an_edge(where, line, f"id {_show(field)} is {what}")
    if value > MAX_ID:
        _not_an_edge(where, line, f"id {_show(field)} is above 2^63 - 1")
    if layout.shape is not None and value - layout.base >= layout.shape[side]:
        _not_an_edge(where, line, f"index {value} is above {layout.shape[side]}, the size that the file states")
    return value


def _weight(field: bytes, where: str, line: bytes) -> float:
    value = float(field) if _REAL.fullmatch(field) else float("nan")
    if not np.isfinite(value):
        _not_an_edge(where, line, f"weight {_show(field)} is not a finite number")
    return value


def _not_an_edge(where: str, line: bytes, why: str) -> NoReturn:
    raise BadInput(f"{where}: not an edge: {_show(line)}: {why}")


def _show(text: bytes) -> str:
    """Text for a message: one line, printable, not too long."""
    excerpt = repr(text[:60].decode("utf-8", "replace"))
    return excerpt if len(text) <= 60 else excerpt + "..."
