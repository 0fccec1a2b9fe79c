"""``topk_allreduce``."""

from typing import Any, final

from .arrays import Array
from .comm import Comm
from .op import Operation
from .vector import Vector

@final
class TopkSum:
    @property
    def sum(self) -> Vector: ...
    # Indices of the values that this rank offered for the sum; not all are among the k largest of the sum.
    @property
    def offered(self) -> Array: ...
    @property
    def sent_words(self) -> int: ...
    @property
    def received_words(self) -> int: ...

def topk_allreduce(comm: Comm, vector: Vector, k: int, op: Operation, async_op: bool) -> Any: ...
