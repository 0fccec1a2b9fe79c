"""Groups inside a cluster of Ray, Dask or Spark: ``sky.ray.run``, ``sky.dask.run``, ``sky.spark.run``.

The engine starts the workers and passes on the address of rank 0; then ranks communicate directly, over TCP.
``_meeting`` has what the engines share: the rendezvous, and the handling of results and errors.
"""

from __future__ import annotations

from ._meeting import RankFailed

__all__ = ["RankFailed"]
