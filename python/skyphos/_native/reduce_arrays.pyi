"""``reduce`` and ``reduce_scatter`` of arrays."""

from typing import Any

from .arrays import Array
from .comm import Comm
from .op import Operation

# root None: a reduce_scatter.
def reduce_arrays(comm: Comm, values: Array, out: Array, op: Operation, root: int | None, async_op: bool) -> Any: ...
