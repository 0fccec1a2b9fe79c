"""Collectives that move arrays."""

from typing import Any, final

from .arrays import Array
from .comm import Comm

@final
class ArrayMove:
    @staticmethod
    def allgather(schedule: str = "auto") -> ArrayMove: ...
    @staticmethod
    def gather(root: int) -> ArrayMove: ...
    @staticmethod
    def alltoall() -> ArrayMove: ...
    @staticmethod
    def scatter(root: int) -> ArrayMove: ...
    # Rank 0's array to rank 1, in a group of two.
    @staticmethod
    def message() -> ArrayMove: ...

def move_arrays(comm: Comm, what: ArrayMove, values: Array, out: Array, async_op: bool) -> Any: ...
def alltoall_uneven(
    comm: Comm, values: Array, out: Array, sends: list[int], receives: list[int], async_op: bool
) -> Any: ...
