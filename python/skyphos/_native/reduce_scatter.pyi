"""``reduce_scatter`` of vectors."""

from typing import Any, final

from .allreduce import AllreduceOptions
from .comm import Comm
from .op import Operation
from .report import Explanation
from .vector import Vector

@final
class Scattered:
    @property
    def part(self) -> Vector: ...
    @property
    def low(self) -> int: ...
    @property
    def high(self) -> int: ...
    @property
    def explanation(self) -> Explanation: ...

def reduce_scatter(comm: Comm, vector: Vector, op: Operation, options: AllreduceOptions, async_op: bool) -> Any: ...
