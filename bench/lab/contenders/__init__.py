"""The contenders, one a line: the name that scenarios use, its module and class, and the arguments of the class."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .base import Contender, Place

__all__ = ["CONTENDERS", "Contender", "Place", "make"]

# Algorithms for arrays. The contenders `as_dense` and so on give them a sparse vector, which the call converts.
DENSE = ("dense", "dense_ring", "dense_rabenseifner")

# Algorithms of ours that `comm.allreduce` takes by name; `auto` lets the planner choose.
ALGORITHMS = (
    "auto",
    "recursive_doubling",
    "split_allgather",
    "split_allgather_dense",
    "ring",
    "butterfly",
    "allgather",
    *DENSE,
)

# Butterflies of more than one layer.
LAYERS = ((2, 2), (2, 4), (4, 2), (2, 2, 2))

# Sizes of messages, and of the socket buffers for large ones (None: left to the kernel).
PACKET_BYTES = tuple(1 << shift for shift in range(6, 25, 2))
BUFFER_BYTES = (None, *(1 << shift for shift in range(13, 21)))

CONTENDERS: dict[str, tuple[str, str, tuple[Any, ...]]] = {
    "plain_tcp": ("plain_tcp", "PlainTcp", ()),
    "mpich": ("mpich", "Mpich", ()),
    "gloo": ("gloo", "Gloo", ()),
    "gather": ("gather", "Gather", ()),
    "gather_objects": ("gather", "GatherObjects", ()),
    "gloo_sparse": ("gloo_sparse", "GlooSparse", ()),
    "butterfly_plan": ("butterfly_plan", "ButterflyPlan", ()),
    "butterfly_once": ("butterfly_plan", "ButterflyOnce", ()),
    "computing": ("overlap", "Computing", ()),
    "overlapped": ("overlap", "Overlapped", ()),
    **{"butterfly_" + "x".join(map(str, degrees)): ("ours", "Ours", ("butterfly", degrees)) for degrees in LAYERS},
    **{name: ("ours", "Ours", (name,)) for name in ALGORITHMS},
    **{f"as_{name}": ("ours", "Ours", (name, None, True)) for name in DENSE},
    **{f"{name}_over_mpi": ("ours", "OursOverMpi", (name,)) for name in ("auto", "dense", "dense_ring", "dense_mpi")},
    **{f"packet_{size}": ("packets", "Packets", (size,)) for size in PACKET_BYTES},
    **{f"buffer_{size or 'auto'}": ("packets", "Buffers", (size, number)) for number, size in enumerate(BUFFER_BYTES)},
}


def make(name: str) -> Contender:
    """A contender by name. Its libraries are loaded by :meth:`Contender.setup`, not here."""
    module, kind, arguments = CONTENDERS[name]
    made = getattr(import_module(f"{__name__}.{module}"), kind)(*arguments)
    assert isinstance(made, Contender)
    return made
