"""Errors of the user's functions, in a form that all ranks can raise."""

from __future__ import annotations

import traceback

from ..errors import BadInput

__all__ = ["raised"]


def raised(function: str, error: Exception, on: str = "") -> BadInput:
    """The error for an exception of a function: with its rank, traceback and argument.

    Examples
    --------
    >>> from skyphos.shuffle.user_code import raised
    >>> str(raised("rank 1: reduce", KeyError("a"), " on key 7")).splitlines()[0]
    "rank 1: reduce raised KeyError on key 7: 'a'"
    """
    trace = "".join(traceback.format_exception(error)).rstrip()
    return BadInput(f"{function} raised {type(error).__name__}{on}: {error}\n{trace}")
