"""``reduce`` of vectors."""

from typing import Any

from .comm import Comm
from .op import Operation
from .vector import Vector

def reduce(comm: Comm, vector: Vector, op: Operation, root: int, async_op: bool) -> Any: ...
