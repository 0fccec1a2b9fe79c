"""Shuffle: values by key to the owner of each key, merged on the way (*Twister*, section 5)."""

from __future__ import annotations

from .explanation import ShuffleExplanation
from .gatherer import Partition, Shuffle

__all__ = ["Partition", "Shuffle", "ShuffleExplanation"]
