"""Names of number types, by which another rank or a later program finds the types.

NumPy's own types have NumPy's names. Types of the package ``ml_dtypes`` (bfloat16, float8 …) have names there; NumPy's
name for them gives only their size, or is the name of another type.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

__all__ = ["name_of", "type_named"]

#: Kinds of NumPy's types of numbers.
_NUMBERS = "biufc"


def _extension_types() -> ModuleType | None:
    """The package ``ml_dtypes``; None if it is not installed."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    return ml_dtypes


@lru_cache(maxsize=256)
def name_of(dtype: np.dtype[Any]) -> str | None:
    """The name of a type for :func:`type_named`; None for types that are not numbers or have no name.

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos.vectors.dtype_names import name_of
    >>> name_of(np.dtype(">i4")), name_of(np.dtype(object))
    ('>i4', None)
    """
    try:
        if dtype.kind in _NUMBERS and np.dtype(dtype.str) == dtype:
            return dtype.str
    except TypeError:
        pass  # NumPy names float8_e5m2 "<f1", and cannot read that name
    if dtype.type.__module__.partition(".")[0] != "ml_dtypes":
        return None
    known = getattr(_extension_types(), dtype.name, None)
    return dtype.name if known is not None and np.dtype(known) == dtype else None


@lru_cache(maxsize=256)
def type_named(name: str) -> np.dtype[Any]:
    """The type of numbers that has this name.

    Raises
    ------
    ImportError
        If it is one of ``ml_dtypes``, which is not installed.
    ValueError
        If there is no such type, or it is not a type of numbers.

    Examples
    --------
    >>> from skyphos.vectors.dtype_names import type_named
    >>> type_named("<f8")
    dtype('float64')
    """
    try:
        dtype = np.dtype(name)
        if dtype.kind in _NUMBERS:
            return dtype
    except TypeError:
        if _extension_types() is None:
            text = f"{name} is not a type of NumPy's, and the package ml_dtypes is not installed"
            raise ImportError(text) from None
    kind = getattr(_extension_types(), name, None)
    if isinstance(kind, type) and issubclass(kind, np.generic):
        extension: np.dtype[Any] = np.dtype(kind)
        return extension
    raise ValueError(f"{name!r} is not a type of numbers")
