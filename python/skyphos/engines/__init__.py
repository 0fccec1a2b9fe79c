"""Groups inside a cluster of Ray, Dask or Spark: ``sky.ray.run``, ``sky.dask.run``, ``sky.spark.run``.

The engine starts the workers and says where they are; then ranks talk to each other directly, over TCP. What all
engines do alike is in ``_meeting``: how ranks find rank 0, and what becomes of results and errors.
"""

from __future__ import annotations

from ._meeting import RankFailed

__all__ = ["RankFailed"]
