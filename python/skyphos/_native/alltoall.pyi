"""``alltoall`` and ``scatter`` of vectors."""

from typing import Any

from .comm import Comm
from .vector import Vector

def alltoall(comm: Comm, vectors: list[Vector], like: Vector, async_op: bool) -> Any: ...
def scatter(comm: Comm, vectors: list[Vector], like: Vector, root: int, async_op: bool) -> Any: ...
