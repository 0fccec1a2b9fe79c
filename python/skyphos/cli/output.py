"""Output of commands: checks of result paths, and tables of plain text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from ..errors import BadInput
from ..files.whole_file import is_special
from ..graph.edges import Ids, Weights

__all__ = ["PAGES", "check_writable", "table", "write_ranks"]

_KINDS = (".csv", ".npy", ".parquet")

#: Suffixes of HTML pages.
PAGES = (".html", ".htm")


def check_writable(path: str, kinds: Sequence[str] = _KINDS) -> None:
    """Raise BadInput now if a result could not be written there later.

    A FIFO or a device without a suffix gets the first of ``kinds``.

    Examples
    --------
    >>> from skyphos.cli.output import check_writable
    >>> check_writable("ranks.csv")
    """
    target = os.path.realpath(path) if os.path.islink(path) else path
    folder = os.path.dirname(target) or "."
    kind = os.path.splitext(path)[1].lower()
    special = is_special(path) and not os.path.isdir(path)
    if kind not in kinds and not (special and not kind):
        raise BadInput(f"{path}: the name must end in {', '.join(kinds)}")
    if special:
        return
    if not os.path.isdir(folder):
        raise BadInput(f"{path}: there is no folder {folder}")
    checked = target if os.path.exists(target) else folder
    if not os.access(checked, os.W_OK) or os.path.isdir(path):
        raise BadInput(f"{path}: cannot be written")


def write_ranks(file: BinaryIO, name: str, vertices: Ids, ranks: Weights) -> None:
    """Write all vertices and their ranks as .csv, .npy (a structured array) or .parquet, by the suffix of ``name``."""
    kind = os.path.splitext(name)[1].lower()
    if kind == ".npy":
        both = np.empty(len(vertices), [("vertex", np.int64), ("rank", np.float64)])
        both["vertex"], both["rank"] = vertices, ranks
        np.save(file, both)
        return
    import pyarrow as pa  # type: ignore[import-untyped]

    columns = pa.table({"vertex": vertices, "rank": ranks})
    if kind == ".parquet":
        from pyarrow import parquet

        parquet.write_table(columns, file)
    else:
        from pyarrow import csv

        # pyarrow would put the names in quotes. Numbers get the digits that read back as the same float.
        file.write(b"vertex,rank\n")
        csv.write_csv(columns, file, csv.WriteOptions(include_header=False))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text as columns; all but the first column are aligned to the right.

    Examples
    --------
    >>> from skyphos.cli.output import table
    >>> print(table(["part", "s"], [["load", "1"], ["compute", "12"]]))
    part      s
    load      1
    compute  12
    """
    widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
    lines = []
    for row in [head, *rows]:
        cells = [
            cell.ljust(width) if k == 0 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
