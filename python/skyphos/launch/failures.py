"""Failure of a rank's program, as the rank reports it to its launcher.

A rank with an uncaught error writes one line to stderr, which the launcher removes from the output. So the launcher
knows which rank's error is the cause: the other ranks raise the error that this rank sent them.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import asdict, dataclass

from ..errors import SkyphosError, text_of
from ..text.plain_text import encoded

__all__ = ["VARIABLE", "Failure", "tell_launcher"]

#: Variable that holds the marker at the start of such a line. Only a launcher that reads stderr sets it.
VARIABLE = "SKYPHOS_FAILURE_WORD"

# Upper bound on the characters of an error's summary in one line.
_SHORT = 300
# Upper bound on the characters of a traceback; longer ones lose their beginning.
_LONG = 16_000


@dataclass(frozen=True)
class Failure:
    """An error that ended a rank's program.

    Attributes
    ----------
    kind, text : str
        Class and text of the error.
    where : str
        File and line in which the program raised it.
    whole : str
        The traceback, as Python prints it.
    follows : bool
        The error is a consequence of another rank's: that rank reported it, or was lost.
    """

    kind: str
    text: str
    where: str
    whole: str
    follows: bool

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure of a program that ended with this exception."""
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{frames[0].filename}, line {frames[0].lineno}" if frames else ""
        follows = isinstance(error, SkyphosError) and error._wire is not None
        try:
            whole = "".join(traceback.format_exception(error))
        except Exception:  # an error whose text cannot be made
            whole = f"{type(error).__name__}: {text_of(error)}\n"
        return cls(type(error).__name__, text_of(error), where, whole[-_LONG:], follows)

    @property
    def summary(self) -> str:
        """The error in one line."""
        text = self.text.strip().split("\n")[0]
        text = text if len(text) <= _SHORT else f"{text[:_SHORT]}…"
        return f"{self.kind}: {text}" if text else self.kind

    def to_line(self, word: str) -> bytes:
        """The line for the launcher."""
        return f"{word} {json.dumps(asdict(self))}\n".encode()

    @classmethod
    def of_json(cls, text: str | bytes) -> Failure:
        """Decode the part of a line after the marker."""
        return cls(**json.loads(text))


def tell_launcher(error: BaseException) -> bool:
    """Report an error to the launcher; return True if a launcher listens, which then prints the traceback.

    Ctrl-C reaches all ranks and is not reported: each rank prints one line with the place where it was interrupted.
    """
    word = os.environ.get(VARIABLE)
    if not word or sys.stderr is None:
        return False
    try:
        sys.stderr.flush()
        try:
            failure = Failure.of(error)
        except KeyboardInterrupt:  # Ctrl-C reached another rank first, and this one while it reports that rank's loss
            error = KeyboardInterrupt().with_traceback(error.__traceback__)
            failure = Failure.of(error)
        is_interrupt = isinstance(error, KeyboardInterrupt)
        line = encoded(f"{failure.summary}: {failure.where}\n") if is_interrupt else failure.to_line(word)
        while line:
            line = line[os.write(2, line) :]
    except OSError:
        return False
    return True
