"""Entries and rows of SciPy's sparse arrays, as NumPy arrays. The arrays are not changed."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadInput
from ..inputs.arrays import supported, unsupported

__all__ = ["entries_of", "rows_of"]


def entries_of(x: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """The flat indices of all entries in C order, and their values. An index may be repeated."""
    _check_type(x)
    if prod(x.shape) > 2**63:
        raise BadInput(f"a sparse array of shape {x.shape} has more than 2^63 places, too many to number")
    coo = x.tocoo()  # returns a COO array itself; nothing below changes it
    positions = np.zeros(len(coo.data), np.int64)
    for length, coords in zip(x.shape, _coords(coo), strict=True):
        positions = positions * length + coords
    return positions, _native(coo.data)


def rows_of(x: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """The numbers of the rows with stored entries, and their values: of shape (rows,) and (rows, width)."""
    _check_type(x)
    coo = x.tocoo()
    row, column = _coords(coo)
    stored, at = np.unique(np.asarray(row, np.int64), return_inverse=True)
    dense = np.zeros((len(stored), x.shape[1]), x.dtype.newbyteorder("="))
    add = np.logical_or if dense.dtype == np.bool_ else np.add
    add.at(dense, (at.reshape(-1), column), _native(coo.data))
    if x.shape[1] == 0:
        raise BadInput(f"a matrix of shape {x.shape} has no numbers")
    return stored, dense


def _check_type(x: Any) -> None:
    if not supported(x.dtype):
        raise unsupported(np.empty(0, x.dtype), "values")


def _coords(coo: Any) -> Any:
    return coo.coords if hasattr(coo, "coords") else (coo.row, coo.col)  # SciPy before 1.13


def _native(data: Any) -> Any:
    return data if data.dtype.isnative else data.astype(data.dtype.newbyteorder("="))
