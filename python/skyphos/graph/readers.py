"""Read graphs: SNAP edge lists, CSV with a header, MatrixMarket and SciPy ``.npz``, each also compressed.

:func:`read_edges` reads a whole file, or one of several shares of it that make up the whole. What kind a
file is follows from its name: ``.mtx`` is MatrixMarket, ``.npz`` SciPy, everything else text with an edge a
line (``.csv`` and ``.tsv`` may begin with a line of names). ``.gz`` behind any of the text formats is
decompressed on the way.

Cost of a share: a plain text file, its bytes and one line; ``.gz``, decompressing all bytes up to its end;
``.npz``, loading the whole matrix, for SciPy's format cannot be cut.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..errors import BadInput
from .edges import Edges
from .files import open_binary
from .matrix_market import expand, read_head
from .text import Layout, numbered_lines, read_share

__all__ = ["check_stored", "read_edges"]

_SOURCE_NAMES = ("source", "src", "from", "fromnodeid", "node_1", "node1", "id_1", "id1", "u", "head")
_TARGET_NAMES = ("target", "dst", "to", "tonodeid", "node_2", "node2", "id_2", "id2", "v", "tail")
_WEIGHT_NAMES = ("weight", "value", "w")


def read_edges(path: str | os.PathLike[str], *, part: int = 0, parts: int = 1, weights: bool = True) -> Edges:
    """Read a graph, or one share of it.

    Parameters
    ----------
    path : path
        The file, or an address that fsspec or pyarrow know (``s3://bucket/graph.txt.gz``). Edge lists may hold
        comments (``#`` or ``%``), blank lines, either kind of line end, gaps in the ids, and tabs, blanks or commas
        between the columns.
    part, parts : int
        Read share ``part`` of ``parts``. The shares in order are the file in order, each line in one of them.
    weights : bool
        Whether to read a third column (or the values of a matrix) as weights.

    Returns
    -------
    Edges
        Of this share; ids counted from 0. Duplicates are as in the file: see :meth:`Edges.merged`.

    Raises
    ------
    BadInput
        If the file is missing or holds no edge, or a line is not an edge (names file and line number), or
        an id is negative or above 2^63 - 1.

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
    name = os.fspath(path)
    if not 0 <= part < parts:
        raise BadInput(f"part must be from 0 to parts - 1 = {parts - 1}, not {part}")
    bare = name[:-3] if name.endswith(".gz") else name
    kind = os.path.splitext(bare)[1].lower()
    if kind == ".npz":
        edges = _read_npz(name, part, parts, weights)
    elif kind == ".mtx":
        edges = _read_mtx(name, part, parts, weights)
    else:
        layout = _sniff(name, weights, may_have_names=kind in (".csv", ".tsv"))
        edges = read_share(name, layout, part, parts)
        edges = replace(edges, stored=len(edges))
    if parts == 1:
        check_stored(name, edges.stored, edges.stated)
    return edges


def check_stored(path: str | os.PathLike[str], stored: int, stated: int | None) -> None:
    """Raise BadInput if a file holds another number of entries than its head states.

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
    return replace(expand(edges, head.symmetry), combine="sum", stored=stored, stated=head.entries)


def _sniff(path: str, weights: bool, may_have_names: bool) -> Layout:
    """Learn the layout of an edge list from its first line that is no comment."""
    with open_binary(path) as stream:
        for number, start, line in numbered_lines(stream):
            mark = 3 if number == 1 and line.startswith(b"\xef\xbb\xbf") else 0  # a byte order mark
            text = line[mark:].strip()
            if not text or text[:1] in (b"#", b"%"):
                continue
            separator = b"," if b"," in text else b"\t" if b"\t" in text else b" "
            fields = re.split(rb"[ \t]*,[ \t]*|[ \t]+", text)
            if may_have_names and not re.fullmatch(rb"[+-]?[0-9]+", fields[0].strip(b'"')):
                stream.seek(start)
                body = start + len(stream.readline())
                return _from_names(f"{path}, line {number}", text, separator, body, weights=weights)
            weight = 2 if weights and len(fields) == 3 else None
            # A line with another number of columns will be named by the parser, line number and all.
            return Layout(start + mark, separator, 3 if len(fields) == 3 else 2, weight=weight)
    raise BadInput(f"{path}: holds no edge")


def _from_names(where: str, line: bytes, separator: bytes, body: int, *, weights: bool) -> Layout:
    """The layout of a CSV file, from its line of names."""
    names = [field.strip().strip('"').lower() for field in line.decode("utf-8", "replace").split(separator.decode())]
    if len(names) < 2:
        raise BadInput(f"{where}: names only {len(names)} column: an edge needs two")
    source, target = _find(names, _SOURCE_NAMES), _find(names, _TARGET_NAMES)
    if source is None or target is None:
        source, target = 0, 1
    weight = _find(names, _WEIGHT_NAMES) if weights else None
    return Layout(body, separator, len(names), source, target, weight, quoted=True)


def _find(names: Sequence[str], known: Sequence[str]) -> int | None:
    return next((k for k, name in enumerate(names) if name in known), None)


def _read_npz(path: str, part: int, parts: int, weights: bool) -> Edges:
    """Edges from a matrix of scipy.sparse.save_npz: entry (i, j) is an edge from i to j, as in networkx."""
    import scipy.sparse

    with open_binary(path) as file:
        try:
            matrix = scipy.sparse.coo_array(scipy.sparse.load_npz(file))
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise BadInput(f"{path}: not a matrix written by scipy.sparse.save_npz: {error}") from None
    cut = slice(matrix.nnz * part // parts, matrix.nnz * (part + 1) // parts)
    weight = None
    if weights:
        weight = np.asarray(matrix.data[cut])
        if weight.dtype.kind not in "biuf" or not np.isfinite(weight).all():
            raise BadInput(f"{path}: a value is not a finite real number")
        weight = weight.astype(np.float64)
    rows, columns = matrix.row[cut].astype(np.int64), matrix.col[cut].astype(np.int64)
    return Edges(rows, columns, weight, (int(matrix.shape[0]), int(matrix.shape[1])), 0, "sum", len(rows))
