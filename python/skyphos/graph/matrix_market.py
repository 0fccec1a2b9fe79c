"""The head of a MatrixMarket file (NIST, https://math.nist.gov/MatrixMarket/formats.html).

Only the head is read here: the lines of ``row column value`` after it are read by :mod:`.text` like any other list of
edges, each rank its share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from ..errors import BadInput
from .edges import Edges
from .text import Layout, numbered_lines, open_text

__all__ = ["MatrixHead", "expand", "read_head"]

_FIELDS = ("real", "double", "integer", "pattern")
_SYMMETRIES = ("general", "symmetric", "skew-symmetric")


@dataclass(frozen=True)
class MatrixHead:
    """Contents of the head: the layout of the lines, whether values are integers, the symmetry, and the number of
    stored entries."""

    layout: Layout
    has_integers: bool
    symmetry: str
    entries: int


def read_head(path: str, weights: bool) -> MatrixHead:
    """Read the head of a MatrixMarket file.

    Parameters
    ----------
    path : str
        A ``.mtx`` file, compressed or not, in coordinate form; real, integer or pattern; general, symmetric or
        skew-symmetric.
    weights : bool
        Whether the values, if there are any, are to be read.

    Raises
    ------
    BadInput
        If it is another kind of MatrixMarket file, or not a MatrixMarket file; names the line.
    """
    field = symmetry = ""
    with open_text(path) as stream:
        for number, _, body, line in numbered_lines(stream):  # noqa: B007 (body is used after the loop)
            where = f"{path}, line {number}"
            if number == 1:
                field, symmetry = _banner(line, where)
            elif line.strip() and not line.lstrip().startswith(b"%"):
                rows, columns, entries = _sizes(line, where)
                break
        else:
            raise BadInput(f"{path}: ends before the line of sizes, so it is not a whole MatrixMarket file")
    if symmetry != "general" and rows != columns:
        _bad(where, f"a {symmetry} matrix of {rows} rows and {columns} columns")
    layout = Layout(
        body=body,
        separator=b" ",
        columns=2 if field == "pattern" else 3,
        weight=None if field == "pattern" or not weights else 2,
        base=1,
        shape=(rows, columns),
    )
    return MatrixHead(layout, field == "integer", symmetry, entries)


def expand(edges: Edges, symmetry: str) -> Edges:
    """Add the entries that a symmetric file omits: those on the other side of the diagonal.

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos.graph import Edges
    >>> from skyphos.graph.matrix_market import expand
    >>> expand(Edges(np.array([1, 2]), np.array([0, 2])), "symmetric").source
    array([1, 2, 0])
    """
    if symmetry == "general":
        return edges
    both = edges.mirrored()
    if symmetry == "skew-symmetric" and both.weight is not None:
        weight = both.weight.copy()
        weight[len(edges) :] *= -1
        both = replace(both, weight=weight)
    return both


def _banner(line: bytes, where: str) -> tuple[str, str]:
    words = line.decode("utf-8", "replace").lower().split()
    if len(words) != 5 or words[0] != "%%matrixmarket" or words[1] != "matrix":
        _bad(where, "not a MatrixMarket file: it must begin with '%%MatrixMarket matrix'")
    form, field, symmetry = words[2:]
    if form != "coordinate":
        _bad(where, f"MatrixMarket form {form!r}: only 'coordinate' lists entries")
    if field not in _FIELDS:
        _bad(where, f"MatrixMarket values {field!r}: only real, integer and pattern can be read")
    if symmetry not in _SYMMETRIES:
        _bad(where, f"MatrixMarket symmetry {symmetry!r}: only {', '.join(_SYMMETRIES)} can be read")
    return field, symmetry


def _sizes(line: bytes, where: str) -> tuple[int, int, int]:
    words = line.split()
    if len(words) != 3 or not all(word.isdigit() for word in words):
        _bad(where, f"not 'rows columns entries': {line[:60].decode('utf-8', 'replace')!r}")
    rows, columns, entries = map(int, words)
    if max(rows, columns) > np.iinfo(np.int64).max:
        _bad(where, "a matrix can have 2^63 - 1 rows and columns at most")
    return rows, columns, entries


def _bad(where: str, why: str) -> NoReturn:
    raise BadInput(f"{where}: {why}")
