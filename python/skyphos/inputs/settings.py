"""Numeric settings: accepted if their value is unambiguous, else refused by name.

``10.0`` and ``np.int64(10)`` are ten. ``2.5`` is not a count, ``True`` is not a number. Text is read as a number in
files and on the command line, but refused as an argument.
"""

from __future__ import annotations

import math
import os
from numbers import Integral, Real
from operator import index
from types import NoneType
from typing import Any

import numpy as np

from ..errors import BadInput

__all__ = ["as_path", "real", "truth", "whole"]


def whole(value: Any, argument: str, minimum: int, maximum: int) -> int:
    """A whole number within bounds; also a float without a fraction.

    Examples
    --------
    >>> from skyphos.inputs.settings import whole
    >>> whole(10.0, "n", 1, 100)
    10
    >>> whole(2.5, "max_iterations", 1, 100)
    Traceback (most recent call last):
    ...
    skyphos.errors.BadInput: max_iterations must be a whole number, not 2.5
    """
    value = _scalar(value)
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        if isinstance(value, Real) and not isinstance(value, Integral):
            if not (math.isfinite(value) and value == math.floor(value)):
                raise TypeError
            value = math.floor(value)
        number = index(value)
    except TypeError:
        raise BadInput(f"{argument} must be a whole number, not {value!r}") from None
    if not minimum <= number <= maximum:
        bounds = f"from {minimum} to {_power(maximum)}" if maximum < 2**64 else f"at least {minimum}"
        raise BadInput(f"{argument} must be {bounds}, not {number}")
    return number


def _power(number: int) -> str:
    """A bound as text, such as ``2^63 - 1``."""
    for exponent in (63, 64):
        if number == 2**exponent:
            return f"2^{exponent}"
        if number == 2**exponent - 1:
            return f"2^{exponent} - 1"
    return str(number)


def real(value: Any, argument: str, minimum: float = -math.inf, maximum: float = math.inf) -> float:
    """A real number within bounds. NaN is refused; infinity is accepted if the bounds allow it.

    Examples
    --------
    >>> from skyphos.inputs.settings import real
    >>> real("a", "timeout", 0.0)
    Traceback (most recent call last):
    ...
    skyphos.errors.BadInput: timeout must be a number, not 'a'
    """
    value = _scalar(value)
    try:
        number = math.nan if isinstance(value, (bool, np.bool_, str, bytes, NoneType)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number):
        raise BadInput(f"{argument} must be a number, not {value!r}")
    if not minimum <= number <= maximum:
        bounds = f"at least {minimum:g}" if math.isinf(maximum) else f"from {minimum:g} to {maximum:g}"
        raise BadInput(f"{argument} must be {bounds}, not {number:g}")
    return number


def truth(value: Any, argument: str) -> bool:
    """True or False, also as 1 or 0. Everything else is refused, because ``bool("off")`` would be True.

    Examples
    --------
    >>> from skyphos.inputs.settings import truth
    >>> truth("off", "shared_memory")
    Traceback (most recent call last):
    ...
    skyphos.errors.BadInput: shared_memory must be True or False, not 'off'
    """
    if value is True or value is False:  # as nearly all are, in calls of a few microseconds
        return bool(value)
    value = _scalar(value)
    if isinstance(value, np.bool_) or (isinstance(value, Integral) and int(value) in (0, 1)):
        return bool(value)
    raise BadInput(f"{argument} must be True or False, not {value!r}")


def as_path(value: Any, requirement: str) -> str:
    """The name of a file or folder, as text. ``requirement`` begins the text of the error.

    Examples
    --------
    >>> from skyphos.inputs.settings import as_path
    >>> as_path(5, "path must be the name of a file")
    Traceback (most recent call last):
    ...
    skyphos.errors.BadInput: path must be the name of a file, not 5
    """
    try:
        name = os.fsdecode(value)
    except TypeError:
        raise BadInput(f"{requirement}, not {value!r}") from None
    if "\0" in name:
        raise BadInput(f"{requirement}, not {name!r}, which has a byte 0")
    return name


def _scalar(value: Any) -> Any:
    """The number in an array of no dimensions."""
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value
