"""What functions of the user's raise, as all ranks hear of it."""

from __future__ import annotations

import traceback

from ..errors import BadInput

__all__ = ["raised"]


def raised(who: str, error: Exception, on: str = "") -> BadInput:
    """The error for what a function raised: which, where in it, and on what.

    Examples
    --------
    >>> from skyphos.shuffle.user_code import raised
    >>> str(raised("rank 1: reduce", KeyError("a"), " on key 7")).splitlines()[0]
    "rank 1: reduce raised KeyError on key 7: 'a'"
    """
    told = "".join(traceback.format_exception(error)).rstrip()
    return BadInput(f"{who} raised {type(error).__name__}{on}: {error}\n{told}")
