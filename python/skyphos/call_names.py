"""Calls as errors name them, where the native library knows them by a size that only Skyphos itself uses.

Objects and numbers travel as the entries of sparse vectors. A size of the index space that no user can have tells these
calls from those of users.
"""

from __future__ import annotations

import re

__all__ = ["NUMBERS", "OBJECTS", "in_words"]

#: Sizes of the index space of calls with objects, and with Python numbers.
OBJECTS, NUMBERS = 2**62 + 1, 2**62 + 3

_NAMES = {OBJECTS: "objects", NUMBERS: "numbers or lists of Python's"}


def in_words(message: str) -> str:
    """An error's message that says "of objects" or "of numbers" in place of such a size.

    Examples
    --------
    >>> from skyphos.call_names import OBJECTS, in_words
    >>> in_words(f"rank 1 is in allgather(n={OBJECTS}, dtype=uint64, settings #0)")
    'rank 1 is in allgather of objects(settings #0)'
    """
    for n, name in _NAMES.items():
        message = re.sub(rf"\(n={n},( width=\d+,)? dtype=uint64,( width=\d+,)? ?", f" of {name}(", message)
    return message
