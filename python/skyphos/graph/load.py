"""From a file to each rank's share of the graph: read, check together, move edges to where they belong."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..errors import BadInput
from ..together import agree_arguments, collective, reduce_number, together
from .edges import Edges
from .partition import partition
from .readers import check_stored, read_edges

if TYPE_CHECKING:
    from .. import Comm

__all__ = ["load"]


@collective()
def load(
    comm: Comm,
    path: str | os.PathLike[str],
    *,
    partition_by: str = "random",
    weights: bool = True,
    undirected: bool = False,
    seed: int = 0,
) -> Edges:
    """Read a graph so that each rank holds its share. Collective.

    Parameters
    ----------
    comm : Comm
        The group. Each rank reads the file itself, so it must be there on every host.
    path : path
        See :func:`~skyphos.graph.read_edges` for the formats.
    partition_by : {"random", "greedy", "row"}
        See :func:`~skyphos.graph.partition`.
    weights : bool
        Whether a third column, or a matrix's values, are weights.
    undirected : bool
        Whether the file has each edge once for both directions.
    seed : int
        For the hashes of the partition.

    Returns
    -------
    Edges
        This rank's share; each edge on one rank, duplicates merged.

    Raises
    ------
    BadInput
        On all ranks, if the file cannot be read on one of them or holds no edge.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import skyphos as sky
    >>> from skyphos.graph import load
    >>> with tempfile.TemporaryDirectory() as folder, sky.init() as comm:
    ...     file = pathlib.Path(folder, "small.txt")
    ...     _ = file.write_text("1 2\\n2 7\\n1 2\\n")
    ...     len(load(comm, file))
    2
    """
    agree_arguments(comm, "load", partition_by=partition_by, weights=weights, undirected=undirected, seed=seed)
    edges = together(comm, lambda: read_edges(path, part=comm.rank, parts=comm.size, weights=weights))
    stored = reduce_number(comm, edges.stored)
    check_stored(path, stored, edges.stated)
    if stored == 0 and edges.shape is None:
        raise BadInput(f"{os.fspath(path)}: holds no edge")
    return partition(comm, edges.mirrored() if undirected else edges, partition_by, seed=seed)
