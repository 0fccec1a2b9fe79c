"""Iterative map-reduce: partitions of data, and what is done with them (*Twister*, section 3)."""

from __future__ import annotations

from .assign import assign
from .partitions import Partition, Partitions
from .split import split

__all__ = ["Partition", "Partitions", "assign", "split"]
