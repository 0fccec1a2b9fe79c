"""Names in errors for calls with objects and Python numbers.

Objects and numbers are sent as the entries of sparse vectors. Their index space has a reserved size, which users cannot
pass, and by which these calls differ from users' calls.
"""

from __future__ import annotations

import re

__all__ = ["NUMBERS", "OBJECTS", "in_words"]

#: Sizes of the index space of calls with objects, and with Python numbers.
OBJECTS, NUMBERS = 2**62 + 1, 2**62 + 3

_NAMES = {OBJECTS: "objects", NUMBERS: "Python numbers or lists"}


def in_words(message: str) -> str:
    """An error's message with " of objects" or " of Python numbers or lists" instead of a reserved size.

    Examples
    --------
    >>> from skyphos.call_names import OBJECTS, in_words
    >>> in_words(f"rank 1 is in allgather(n={OBJECTS}, dtype=uint64, settings #0)")
    'rank 1 is in allgather of objects(settings #0)'
    """
    for n, name in _NAMES.items():
        message = re.sub(rf"\(n={n},( width=\d+,)? dtype=uint64,( width=\d+,)? ?", f" of {name}(", message)
    return message
