"""Loading of a graph: read a share, check it on all ranks, move edges to their ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..collectives.agreement import agree_arguments, collective, reduce_number, together
from ..errors import BadInput
from ..inputs.settings import as_path, truth, whole
from . import spool
from .columns import Columns
from .edges import Edges
from .partition import PARTITIONS, partition, weighted_alike
from .readers import check_stored, read_file
from .undirected import both_ways

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
    columns: str | Mapping[str, str | int] | None = None,
    undirected: bool = False,
    seed: int = 0,
) -> Edges:
    """Read a graph so that each rank holds its share. Collective.

    Parameters
    ----------
    comm : Comm
        The group. Each rank reads the file itself, so every host must have it.
    path : path
        See :func:`~skyphos.graph.read_edges` for the formats. ``-`` (stdin) and pipes are read by rank 0
        alone, for the ranks of its host.
    partition_by : {"random", "greedy", "row"}
        See :func:`~skyphos.graph.partition`.
    weights : bool
        Whether a third column, or a matrix's values, are weights.
    columns : str or mapping, optional
        Columns by role, as for :func:`~skyphos.graph.read_edges`.
    undirected : bool
        Whether each edge stands for both directions. The file may list it once or, as a symmetric matrix does, in both
        directions: the last weight counts (:mod:`skyphos.graph.undirected`), as in a ``networkx.Graph``.
    seed : int
        Seed of the hashes of the partition.

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
    name, named = as_path(path, "path must be the name of a file"), Columns.of(columns)
    weights, undirected = truth(weights, "weights"), truth(undirected, "undirected")
    seed = whole(seed, "seed", -(2**63), 2**64 - 1)
    if partition_by not in PARTITIONS:
        raise BadInput(f"partition_by must be one of {', '.join(PARTITIONS)}, not {partition_by!r}")
    agree_arguments(
        comm, "load", partition_by=partition_by, weights=weights, columns=named, undirected=undirected, seed=seed
    )
    if reduce_number(comm, int(comm.rank == 0 and spool.is_stream(name)), "max"):
        with spool.shared(comm, name) as file:
            edges = together(
                comm, lambda: read_file(file, comm.rank, comm.size, weights, named, display_name=name, of_stream=True)
            )
    else:
        edges = together(comm, lambda: read_file(name, comm.rank, comm.size, weights, named))
    stored = reduce_number(comm, edges.stored)
    check_stored(name, stored, edges.stated)
    if stored == 0 and edges.shape is None:
        raise BadInput(f"{name}: holds no edge")
    if undirected:
        edges = both_ways(comm, edges, seed)
        if partition_by == "random" or comm.size == 1:
            return edges
        edges = weighted_alike(comm, edges)
    return partition(comm, edges, partition_by, seed=seed)
