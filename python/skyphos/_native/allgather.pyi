"""``allgather`` of vectors."""

from typing import Any, final

from .comm import Comm
from .report import Explanation
from .vector import Vector

@final
class Gathered:
    @property
    def vectors(self) -> list[Vector]: ...
    @property
    def explanation(self) -> Explanation: ...

def allgather(comm: Comm, vector: Vector, schedule: str, async_op: bool) -> Any: ...
