"""The three standard streams of a process, any of which its parent may have closed.

A closed descriptor 0, 1 or 2 is the number that the next open file gets: a socket would then be overwritten by what
belongs on stdin, or be sent what was meant for stdout. So programs of ours first fill the gaps with ``/dev/null``.
"""

from __future__ import annotations

import os
import sys
from typing import IO, Any

from ..plain_text import degrade

__all__ = ["descriptor_of", "fill_gaps", "prepare"]


def fill_gaps() -> None:
    """Open ``/dev/null`` at each of the descriptors 0, 1 and 2 that is closed.

    Examples
    --------
    >>> from skyphos.launch.streams import fill_gaps
    >>> fill_gaps()
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)


def prepare() -> None:
    """Fill the gaps, and make ``sys.stdout`` and ``sys.stderr`` streams that take any text, for a command's process."""
    fill_gaps()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # open to the end
        degrade(getattr(sys, name))


def descriptor_of(stream: IO[Any] | None, number: int) -> int:
    """The descriptor that a standard stream writes to; of one that has none (a notebook's), the usual number.

    Examples
    --------
    >>> import io
    >>> from skyphos.launch.streams import descriptor_of
    >>> descriptor_of(io.StringIO(), 1)
    1
    """
    try:
        return number if stream is None else stream.fileno()
    except (OSError, ValueError, AttributeError):
        return number
