"""``gather`` of vectors."""

from typing import Any

from .comm import Comm
from .vector import Vector

def gather(comm: Comm, vector: Vector, root: int, async_op: bool) -> Any: ...
