"""Sparse collectives for data of which each machine holds, and wants, only a part.

>>> import numpy as np
>>> import skyphos as sky
>>> with sky.init() as comm:                      # alone: a group of one
...     plan = comm.configure([3, 7], [7], n=10)  # this rank has values for 3 and 7 and wants 7
...     plan.reduce(np.array([1.5, 2.5]))
array([2.5])

Importing this package imports NumPy and nothing else; graphs (``sky.graph``), map-reduce (``sky.mapreduce``), PyTorch
(``sky.torch``), the launcher (``sky.launch``), groups in Ray, Dask and Spark (``sky.ray``, ``sky.dask``, ``sky.spark``)
and the command line import what they need when they are used. Collectives are methods of a group: ``comm = sky.init();
comm.allreduce(x)``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import renamed
from .collectives.broadcast import BroadcastExplanation
from .collectives.outer_product import OuterExplanation
from .collectives.plan import LayerVolume, Plan, Stats
from .collectives.point_to_point import Status
from .collectives.quantize import Quantize
from .collectives.topk import TopK
from .comm import Comm
from .errors import BadInput, Diverged, Mismatch, PeerLost, Refused, SkyphosError, Timeout
from .group import init, local
from .health import Health
from .launch.tls import TLS
from .planning.explanation import Explanation, PlanExplanation
from .planning.topology import Topology
from .vectors.low_rank import LowRank
from .vectors.sparse_vector import SparseVector
from .work import Work

renamed.install()  # makes the old names of moved modules import the new ones

if TYPE_CHECKING:
    from . import errors as errors
    from . import graph as graph
    from . import launch as launch
    from . import mapreduce as mapreduce
    from . import planning as planning
    from . import probe as probe
    from . import shuffle as shuffle
    from . import simulate as simulate
    from . import torch as torch
    from .checkpoint import Checkpoint, Restored
    from .engines import dask, ray, spark

__version__ = "0.1.0"

__all__ = [
    "TLS",
    "BadInput",
    "BroadcastExplanation",
    "Checkpoint",
    "Comm",
    "Diverged",
    "Explanation",
    "Health",
    "LayerVolume",
    "LowRank",
    "Mismatch",
    "OuterExplanation",
    "PeerLost",
    "Plan",
    "PlanExplanation",
    "Quantize",
    "Refused",
    "Restored",
    "SkyphosError",
    "SparseVector",
    "Stats",
    "Status",
    "Timeout",
    "TopK",
    "Topology",
    "Work",
    "dask",
    "init",
    "local",
    "ray",
    "spark",
]


#: Modules that are imported when they are used. A star import leaves them out, because some need other packages.
_MODULES = ("errors", "graph", "launch", "mapreduce", "planning", "probe", "shuffle", "simulate", "torch")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    """Import modules that few programs use; for a name of MPI, raise an error with its equivalent here."""
    if name in ("Checkpoint", "Restored"):
        from . import checkpoint

        return getattr(checkpoint, name)
    if name in ("dask", "ray", "spark"):
        return import_module(f".engines.{name}", __name__)
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in renamed.MODULES:
        return import_module(f"{__name__}.{name}")
    if not name.startswith("_") and hasattr(Comm, name):
        arguments = "" if name in ("barrier", "dup", "shrink", "close", "health", "fuse") else "x"
        call = f"comm.{name}" if isinstance(getattr(Comm, name), property) else f"comm.{name}({arguments})"
        raise AttributeError(f"{name} belongs to a group, not to the module: comm = sky.init(); {call}")
    from .mpi_names import equivalent_of

    here = equivalent_of(name)
    if here is not None:
        begin = "comm = sky.init(); " if here.startswith("comm.") else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: {begin}{here}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
