"""Graphs over many ranks: readers, partitions, the distributed sparse matrix, and PageRank on it."""

from __future__ import annotations

from .dist_matrix import DistMatrix
from .edges import Edges
from .load import load
from .pagerank import PageRank, adjacency_matrix, pagerank
from .partition import PARTITIONS, partition
from .readers import read_edges
from .rmat import rmat

__all__ = [
    "PARTITIONS",
    "DistMatrix",
    "Edges",
    "PageRank",
    "adjacency_matrix",
    "load",
    "pagerank",
    "partition",
    "read_edges",
    "rmat",
]
