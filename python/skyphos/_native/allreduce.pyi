"""``allreduce`` of vectors and of arrays."""

from typing import Any, final

import numpy.typing as npt

from .arrays import Array
from .comm import Comm
from .op import Operation
from .quantize import Quantize
from .report import Explanation
from .vector import Vector

@final
class AllreduceOptions:
    def __new__(
        cls,
        algorithm: str = "auto",
        *,
        degrees: list[int] | None = None,
        split: str = "quantiles",
        dense_threshold: int | str | None = None,
        quantize: Quantize | None = None,
        expected_nnz: int | None = None,
        tell_sent: bool = False,
        shape: list[int] | None = None,
    ) -> AllreduceOptions: ...

@final
class Allreduced:
    @property
    def sum(self) -> Vector: ...
    @property
    def explanation(self) -> Explanation: ...
    # This rank's quantised values; None unless the options set tell_sent.
    @property
    def sent(self) -> Array | None: ...

def allreduce(comm: Comm, vector: Vector, op: Operation, options: AllreduceOptions, async_op: bool) -> Any: ...
def allreduce_dense(
    comm: Comm, values: Array, out: Array, op: Operation, options: AllreduceOptions, async_op: bool
) -> Any: ...

# False: the arrays need conversion, and nothing was done.
def allreduce_plain(comm: Comm, values: npt.NDArray[Any], out: npt.NDArray[Any], op: str) -> bool: ...
