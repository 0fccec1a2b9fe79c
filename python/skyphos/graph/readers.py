"""Read graphs: SNAP edge lists, CSV with a header, MatrixMarket and SciPy ``.npz``, each also compressed.

:func:`read_edges` reads a whole file, or one of several shares of it that make up the whole. The format follows from
the name: ``.mtx`` is MatrixMarket, ``.npz`` SciPy, everything else text with an edge a line (``.csv`` and ``.tsv`` may
begin with a line of names: :mod:`.columns`). A file that begins like MatrixMarket is read as such, whatever its name.
Text compressed by gzip, bzip2, xz or Zstandard is decompressed while it is read.

Cost of a share: of plain text, reading its bytes; of compressed text, decompressing all bytes up to its end; of
``.npz``, loading the whole matrix, because SciPy's format cannot be read in parts.
"""

from __future__ import annotations

import csv
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..errors import BadInput
from ..files.compression import HEAD_BYTES, bare_name, binary_error, binary_kind
from ..inputs.settings import as_path, truth, whole
from . import spool
from .columns import Columns, Roles, roles_by_name
from .edges import Edges
from .files import open_binary
from .matrix_market import expand, read_head
from .text import BOM, SEPARATORS, Layout, fields_of, numbered_lines, open_text, read_share

__all__ = ["check_stored", "read_edges"]

_BANNER = b"%%matrixmarket"
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def read_edges(
    path: str | os.PathLike[str],
    *,
    part: int = 0,
    parts: int = 1,
    weights: bool = True,
    columns: str | Mapping[str, str | int] | None = None,
) -> Edges:
    """Read a graph, or one share of it.

    Parameters
    ----------
    path : path
        The file, or an address that fsspec or pyarrow know (``s3://bucket/graph.txt.gz``). Edge lists may hold
        comments (``#`` or ``%``), blank lines, any kind of line end, gaps in the ids, and tabs, blanks, commas,
        semicolons or bars between the columns. ``-`` is stdin; it, FIFOs and other pipes are read once, as a whole.
    part, parts : int
        Read share ``part`` of ``parts``. The shares in order make up the file; each line is in one of them.
    weights : bool
        Whether to read a third column (or the values of a matrix) as weights.
    columns : str or mapping, optional
        Columns by role, ``"source=a,target=b,weight=c"`` or a mapping of the same: names in the first line, or numbers
        from 1 as ``cut -f`` counts. Without ``weight`` edges have no weights. Default: by well-known names; in a file
        without names the first two columns and, if there are three, the third as weight.

    Returns
    -------
    Edges
        The edges of this share; ids from 0. Duplicates are as in the file: see :meth:`Edges.merged`.

    Raises
    ------
    BadInput
        If the file is missing or holds no edge, or a line is not an edge (names file and line number), or
        an id is negative or above 2^63 - 1; if names do not determine source, target and weight (lists them);
        if the file has another format (names it).

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from skyphos.graph import read_edges
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "small.txt")
    ...     _ = file.write_text("# from to\\n1\\t2\\n2\\t7\\n")
    ...     edges = read_edges(file)
    >>> edges.source, edges.target
    (array([1, 2]), array([2, 7]))
    """
    name = as_path(path, "path must be the name of a file")
    parts = whole(parts, "parts", 1, 2**63)
    if not 0 <= whole(part, "part", -(2**63), 2**63) < parts:
        raise BadInput(f"part must be from 0 to parts - 1 = {parts - 1}, not {part}")
    named = Columns.of(columns)
    if spool.is_stream(name):
        if parts > 1:
            raise BadInput(f"{name}: a pipe can be read once, not in shares: load() shares out what rank 0 reads")
        with spool.spooled(name) as file:
            return read_file(file, part, parts, truth(weights, "weights"), named, display_name=name, of_stream=True)
    return read_file(name, part, parts, truth(weights, "weights"), named)


def read_file(
    path: str,
    part: int,
    parts: int,
    weights: bool,
    columns: Columns | None,
    *,
    display_name: str | None = None,
    of_stream: bool = False,
) -> Edges:
    """Like :func:`read_edges`, for a file. ``of_stream``: it is a copy of a stream; its content shows the format."""
    try:
        with open_binary(path) as stream:
            head = stream.read(HEAD_BYTES)
        kind = _kind(path, head, of_stream=of_stream)
        if columns is not None and kind in (".npz", ".mtx"):
            raise BadInput(f"{path}: columns= is for edge lists, and this is a matrix: leave it out")
        if kind == ".npz":
            edges = _read_npz(path, part, parts, weights)
        elif kind == ".mtx":
            edges = _read_mtx(path, part, parts, weights)
        else:
            names = kind in (".csv", ".tsv") or of_stream or (columns is not None and not columns.are_numbers())
            layout = _sniff(path, weights, columns, may_have_names=names)
            edges = read_share(path, layout, part, parts)
            edges = replace(edges, stored=len(edges))
        if parts == 1:
            check_stored(path, edges.stored, edges.stated)
    except BadInput as error:
        if display_name is None:
            raise
        raise BadInput(str(error).replace(path, display_name)) from None
    return edges


def _kind(path: str, head: bytes, *, of_stream: bool) -> str:
    """The suffix of the format in which to read a file: by its content, else by its name."""
    kind = os.path.splitext(bare_name(path))[1].lower()
    if head.removeprefix(BOM)[: len(_BANNER)].lower() == _BANNER:
        return ".mtx"
    binary = binary_kind(head)
    if kind == ".npz" or (of_stream and binary == "a zip archive"):
        return ".npz"
    if binary is not None and kind != ".mtx":
        advice = "which is not a graph: edge lists (.txt, .csv, .tsv), .mtx and .npz are read"
        raise BadInput(f"{path}: {binary_error(binary, advice)}")
    return kind


def check_stored(path: str | os.PathLike[str], stored: int, stated: int | None) -> None:
    """Raise BadInput if a file does not have the number of entries that its head states.

    Examples
    --------
    >>> from skyphos.graph.readers import check_stored
    >>> check_stored("a.mtx", 7, 7)
    """
    if stated is not None and stored != stated:
        raise BadInput(f"{os.fspath(path)}: the head states {stated} entries, but {stored} follow")


def _read_mtx(path: str, part: int, parts: int, weights: bool) -> Edges:
    head = read_head(path, weights)
    edges = read_share(path, head.layout, part, parts)
    stored = len(edges)
    if head.has_integers and edges.weight is not None and (odd := edges.weight[edges.weight % 1 != 0]).size:
        raise BadInput(f"{path}: holds the value {odd[0]:g}, and says that its values are integers")
    return replace(expand(edges, head.symmetry), combine="sum", stored=stored, stated=head.entries)


def _sniff(path: str, weights: bool, columns: Columns | None, *, may_have_names: bool) -> Layout:
    """The layout of an edge list, from its first line that is not a comment."""
    names_at = ""
    with open_text(path) as stream:
        layout: Layout | None = None
        for number, start, after, line in numbered_lines(stream):
            text = line.strip()
            if not text or text[:1] in (b"#", b"%"):
                continue
            if layout is not None:
                return layout  # a line of edges follows the names
            separator = next(mark for mark in (*SEPARATORS, b"") if mark in text) or b" "
            quoted = may_have_names and b'"' in text
            fields = fields_of(text, separator, quoted)
            where = f"{path}, line {number}"
            if may_have_names and _are_names(fields, columns):
                if separator != b" ":
                    try:
                        fields = fields_of(text, separator, True)  # names may have blanks in them
                    except csv.Error as error:
                        raise BadInput(f"{where}: {error}") from None
                names = [field.decode("utf-8", "replace") for field in fields]
                if len(names) < 2:
                    raise BadInput(f"{where}: names only {len(names)} column: an edge needs two")
                if columns is not None:
                    roles = columns.find(names, len(names), where)
                else:
                    roles = roles_by_name(names, where, weights=weights)
                layout = _layout(after, separator, len(names), roles, weights=weights, quoted=True)
                names_at = f", line {number}: names columns, but no line follows: the file"
                continue
            if columns is not None:
                if not columns.are_numbers():
                    raise BadInput(f"{where}: holds no names of columns, so columns must be numbers from 1")
                roles = columns.find(None, len(fields), where)
                return _layout(start, separator, len(fields), roles, weights=weights, quoted=quoted)
            # The parser reports a line with another number of columns, with its line number.
            roles = Roles(0, 1, 2 if len(fields) == 3 else None)
            return _layout(start, separator, 3 if len(fields) == 3 else 2, roles, weights=weights, quoted=quoted)
    raise BadInput(f"{path}{names_at or ':'} holds no edge")


def _layout(body: int, separator: bytes, count: int, roles: Roles, *, weights: bool, quoted: bool) -> Layout:
    weight = roles.weight if weights else None
    return Layout(body, separator, count, roles.source, roles.target, weight, quoted=quoted)


def _are_names(fields: Sequence[bytes], columns: Columns | None) -> bool:
    """True if a first line names columns: it has no number, or has all names that the caller gave."""
    if not any(_NUMBER.fullmatch(field) for field in fields):
        return True
    if columns is None or columns.are_numbers():
        return False
    names = {field.decode("utf-8", "replace").lower() for field in fields}
    return {columns.source.lower(), columns.target.lower()} <= names


def _read_npz(path: str, part: int, parts: int, weights: bool) -> Edges:
    """Edges from a matrix of scipy.sparse.save_npz: entry (i, j) is an edge from i to j, as in networkx."""
    import scipy.sparse

    with open_binary(path) as file:
        try:
            matrix = scipy.sparse.coo_array(scipy.sparse.load_npz(file))
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise BadInput(f"{path}: not a matrix written by scipy.sparse.save_npz: {error}") from None
    if len(matrix.shape) != 2:
        raise BadInput(
            f"{path}: an array of {len(matrix.shape)} dimension(s), {matrix.shape}: a graph is a matrix, of 2"
        )
    cut = slice(matrix.nnz * part // parts, matrix.nnz * (part + 1) // parts)
    weight = None
    if weights:
        weight = np.asarray(matrix.data[cut])
        if weight.dtype.kind not in "biuf" or not np.isfinite(weight).all():
            raise BadInput(f"{path}: a value is not a finite real number")
        weight = weight.astype(np.float64)
    rows, columns = matrix.row[cut].astype(np.int64), matrix.col[cut].astype(np.int64)
    return Edges(rows, columns, weight, (int(matrix.shape[0]), int(matrix.shape[1])), 0, "sum", len(rows))
