"""Iterative map-reduce over partitions of data (*Twister*, section 3)."""

from __future__ import annotations

from .assign import assign
from .job import MapReduce
from .partitions import Partition, Partitions
from .split import split
from .timing import Iteration

__all__ = ["Iteration", "MapReduce", "Partition", "Partitions", "assign", "split"]
