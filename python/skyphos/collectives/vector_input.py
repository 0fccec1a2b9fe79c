"""Vector arguments: opened for the native library, with results returned in the caller's kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import _skyphos as native
from ..errors import BadInput
from ..inputs.arguments import Op, as_array, resolve_op
from ..vectors.booleans import as_result, as_sent, result_type
from ..vectors.kinds import open_vector
from ..vectors.scipy_kinds import matrix_shape
from ..vectors.sparse_vector import SparseVector
from .agreement import agree_arguments

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = [
    "agree_on_shape",
    "as_vector",
    "check_count",
    "native_vector",
    "of_one_form",
    "opened",
    "stack",
    "stacked_like",
    "vector_of",
]


def opened(
    x: Any, op: Op | None = None, *, rows: bool = False
) -> tuple[SparseVector | npt.NDArray[Any], Any, np.dtype[Any], native.Operation]:
    """The vector or contiguous array of an argument, the conversion back to the caller's kind, the type of the result,
    and the operation for the native library; without an operation the vector is only sent."""
    operation = resolve_op("sum" if op is None else op)
    vector, back = open_vector(x, rows=rows)
    if isinstance(vector, np.ndarray):
        vector = as_array(vector)
    elif rows and vector.width > 1 and not isinstance(x, SparseVector) and op not in ("sum", "mean"):
        raise BadInput(f"reduce_scatter of a matrix takes op sum or mean, not {op!r}: pass a SparseVector")
    return vector, back, vector.dtype if op is None else result_type(op, vector.dtype), operation


def agree_on_shape(comm: Comm, function: str, x: Any) -> None:
    """Raise :class:`Mismatch` on all ranks if they pass matrices of different shapes, whose vectors of entries may
    be equally long."""
    shape = matrix_shape(x)
    if shape is not None:
        agree_arguments(comm, function, shape=shape)


def stacked_like(xs: Sequence[Any] | None, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The arrays that this rank scatters, as one array."""
    opened = [] if isinstance(xs, np.ndarray) else [open_vector(x) for x in xs or ()]
    stacked, _ = stack(xs, opened)
    if (stacked.dtype, stacked.shape[1:]) != (like.dtype, like.shape):
        raise BadInput(
            f"arrays of {stacked.dtype} of shape {stacked.shape[1:]} where like= is {like.dtype} of {like.shape}"
        )
    return stacked


def check_count(comm: Comm, xs: Sequence[Any] | None) -> None:
    """Refuse anything but one vector or object per rank."""
    if xs is None:
        raise BadInput(f"0 vectors for {comm.size} ranks: pass one per rank")
    if isinstance(xs, (dict, set, frozenset, str, bytes)) or not hasattr(xs, "__getitem__") or _is_single(xs):
        raise BadInput(f"pass a list of one vector or object a rank, not {type(xs).__name__}")
    if len(xs) != comm.size:
        raise BadInput(f"{len(xs)} vectors for {comm.size} ranks: pass one per rank")


def _is_single(xs: Any) -> bool:
    """True for an array of a single number, which has no first axis."""
    return isinstance(xs, np.generic) or (isinstance(xs, np.ndarray) and xs.ndim == 0)


def of_one_form(opened: list[Any]) -> tuple[list[SparseVector], Any]:
    """The opened vectors, refused if they differ in more than their entries, and the conversion back."""
    vectors = [as_vector(vector) for vector, _ in opened]
    for vector in vectors[1:]:
        first = vectors[0]
        if (vector.n, vector.width, vector.dtype) != (first.n, first.width, first.dtype):
            raise BadInput(f"vectors must have the same n, width and dtype: {first} and {vector}")
    return vectors, opened[0][1]


def stack(xs: Any, opened: list[Any]) -> tuple[npt.NDArray[Any], Any]:
    """Arrays of one shape as one contiguous array, and the conversion back to the caller's kind."""
    if isinstance(xs, np.ndarray):
        array, back = open_vector(xs)
        assert isinstance(array, np.ndarray)
        return as_array(array), back
    arrays = [np.asarray(array) for array, _ in opened]
    for array in arrays[1:]:
        if (array.dtype, array.shape) != (arrays[0].dtype, arrays[0].shape):
            raise BadInput(
                f"arrays must have the same shape and dtype: {arrays[0].dtype} of {arrays[0].shape}, {array.dtype} of "
                f"{array.shape}"
            )
    return as_array(np.stack(arrays)), opened[0][1]


def as_vector(vector: SparseVector | npt.NDArray[Any]) -> SparseVector:
    """The vector itself, or an array as a dense vector."""
    if isinstance(vector, SparseVector):
        return vector
    return SparseVector.from_dense(as_array(vector).reshape(-1), keep_zeros=True)


def native_vector(vector: SparseVector, kind: np.dtype[Any] | None = None) -> native.Vector:
    """A native vector, of type ``kind`` or by default that of the vector."""
    values = as_sent(vector._values, vector.dtype if kind is None else kind)
    rows = values if values.ndim == 1 else values.reshape(-1)
    return native.Vector(vector.n, vector.width, vector._indices, rows, vector._present)


def vector_of(found: native.Vector, like: SparseVector, kind: np.dtype[Any] | None = None) -> SparseVector:
    """A vector from the native one, with the index type and shape of ``like``."""
    indices = found.indices
    if indices is not None and like._indices is not None and indices.dtype != like._indices.dtype:
        indices = indices.view(like._indices.dtype) if indices.itemsize == like._indices.itemsize else indices
    rows = as_result(found.values, like.dtype if kind is None else kind)
    shape = like._values.shape[1:]
    return SparseVector._of(indices, rows.reshape(-1, *shape) if shape else rows, found.present, like._n)
