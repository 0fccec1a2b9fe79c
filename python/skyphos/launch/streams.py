"""Standard streams of a process, any of which its parent may have closed.

The next file that is opened gets the number of a closed descriptor. A socket with the number 0, 1 or 2 would be
overwritten by what is printed. So our programs first open ``/dev/null`` on closed ones.
"""

from __future__ import annotations

import os
import sys
from typing import IO, Any

from ..text.plain_text import degrade

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
    """At the start of a command: open closed streams, and let ``sys.stdout`` and ``sys.stderr`` take any text."""
    fill_gaps()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # open to the end
        degrade(getattr(sys, name))


def descriptor_of(stream: IO[Any] | None, number: int) -> int:
    """The descriptor of a standard stream; the usual number if it has none (in a notebook).

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
