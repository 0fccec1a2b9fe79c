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

#: The environment variable with the word that such a line begins with. Only a launcher that reads stderr sets it.
VARIABLE = "SKYPHOS_FAILURE_WORD"

# Characters of an error in a line that is not the last.
_SHORT = 300
# Characters of a traceback: the end of it.
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
        The rank was told of it by another one, or missed another one.
    """

    kind: str
    text: str
    where: str
    whole: str
    follows: bool

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """From an exception with its traceback."""
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{frames[0].filename}, line {frames[0].lineno}" if frames else ""
        follows = isinstance(error, SkyphosError) and error._wire is not None
        try:
            whole = "".join(traceback.format_exception(error))
        except Exception:  # an error whose text cannot be had
            whole = f"{type(error).__name__}: {text_of(error)}\n"
        return cls(type(error).__name__, text_of(error), where, whole[-_LONG:], follows)

    @property
    def summary(self) -> str:
        """The error in one line."""
        text = self.text.strip().split("\n")[0]
        text = text if len(text) <= _SHORT else f"{text[:_SHORT]}…"
        return f"{self.kind}: {text}" if text else self.kind

    def to_line(self, word: str) -> bytes:
        """For the launcher."""
        return f"{word} {json.dumps(asdict(self))}\n".encode()

    @classmethod
    def of_json(cls, text: str | bytes) -> Failure:
        """Decode the part of a line after the word."""
        return cls(**json.loads(text))


def tell_launcher(error: BaseException) -> bool:
    """Tell the launcher of an error, if it listens; whether it does, and prints the traceback.

    Ctrl-C, which all ranks have, is told to nobody: where this one was is a line on stderr.
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
