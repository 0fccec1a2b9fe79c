"""Booleans in reductions: the type of the result, and the type on the wire.

The native library has no boolean type. Booleans are sent as bytes of 0 and 1, or as numbers if they are counted:
``or``, ``and``, ``min`` and ``max`` give booleans, ``sum`` and ``prod`` give int64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadInput
from ..inputs.arguments import NAMED_UFUNCS, Op

__all__ = ["as_native_out", "as_result", "as_sent", "result_type"]

Array = npt.NDArray[Any]

_BOOL = np.dtype(np.bool_)


def result_type(op: Op, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The result type of an operation: that of the values, or int64 if booleans are counted.

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos.vectors.booleans import result_type
    >>> result_type("or", np.dtype(bool)), result_type("sum", np.dtype(bool)), result_type("sum", np.dtype("f4"))
    (dtype('bool'), dtype('int64'), dtype('float32'))
    """
    if dtype.kind != "b":
        return dtype
    name = op if isinstance(op, str) else NAMED_UFUNCS.get(op)
    if name in ("or", "and", "min", "max"):
        return dtype
    if name in ("sum", "prod"):
        return np.dtype(np.int64)
    if name in ("mean", "mean_present"):
        raise BadInput(f'op="{name}" needs floating-point values, not bool: use .astype(np.float64)')
    try:
        given = op.resolve_dtypes((_BOOL, _BOOL, None))[-1]  # type: ignore[union-attr]
    except TypeError as error:
        raise BadInput(f"op={getattr(op, '__name__', op)} takes no truth values: {error}") from None
    return _BOOL if given == _BOOL else np.dtype(np.float64 if given.kind == "f" else np.int64)


def as_sent(values: Array, result: np.dtype[Any]) -> Array:
    """Values as the native library takes them; for a boolean ``result`` they share the memory of ``values``."""
    if values.dtype.kind != "b":
        return values
    return values.view(np.uint8) if result.kind == "b" else values.astype(result)


def as_native_out(out: Array) -> Array:
    """A view of ``out`` that the native library can fill: of bytes, if it is boolean."""
    return out.view(np.uint8) if out.dtype.kind == "b" else out


def as_result(result: Array, dtype: np.dtype[Any]) -> Array:
    """A native result viewed as booleans, if ``dtype`` is bool."""
    if dtype.kind != "b":
        return result
    # Another rank may have passed bytes other than 0 and 1; make booleans valid again.
    return np.not_equal(result.view(np.uint8), 0, out=result.view(np.bool_))
