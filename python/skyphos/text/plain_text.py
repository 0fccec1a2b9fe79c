"""Plain text: replaces characters that a stream or page cannot encode, so that encoding never fails.

File names on Linux are bytes. Python represents those that are not UTF-8 by lone surrogates, which no encoding accepts;
they are shown as ``\\xff``. Where the encoding of a terminal or pipe lacks ``…`` or ``≈``, the
nearest ASCII is written.
"""

from __future__ import annotations

import codecs
import unicodedata
from typing import TextIO

__all__ = ["degrade", "encoded", "one_line", "plain"]

#: Name of the error handler that degrades characters; for ``str.encode`` and streams.
_HANDLER = "skyphos-degrade"

_NEAREST = {
    "…": "...",
    "–": "-",
    "—": "-",
    "−": "-",
    "≈": "~",
    "×": "x",
    "·": ".",
    "▼": "v",
    "▲": "^",
    "→": "->",
    "█": "#",
}
_NEAREST |= {
    "µ": "u",
    "μ": "u",
    "“": '"',
    "”": '"',
    "‘": "'",
    "’": "'",
    "≤": "<=",
    "≥": ">=",
    "━": "-",
    "─": "-",
    "│": "|",
}
_NEAREST |= {"α": "alpha", "β": "beta", "ß": "ss"}


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(map(_ascii, text)), error.end


def _ascii(letter: str) -> str:
    code = ord(letter)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name (os.fsdecode)
        return f"\\x{code - 0xDC00:02x}"
    if letter in _NEAREST:
        return _NEAREST[letter]
    near = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    return near or letter.encode("ascii", "backslashreplace").decode()


codecs.register_error(_HANDLER, _nearest)


def encoded(text: str, encoding: str = "utf-8") -> bytes:
    """Encode text; characters that the encoding lacks are degraded.

    Examples
    --------
    >>> from skyphos.text.plain_text import encoded
    >>> encoded("raw\\udcff.txt …", "ascii")
    b'raw\\\\xff.txt ...'
    """
    return text.encode(encoding, _HANDLER)


def plain(text: str) -> str:
    """The same text without lone surrogates, so that UTF-8 can carry it.

    Examples
    --------
    >>> from skyphos.text.plain_text import plain
    >>> plain("raw\\udcff.txt …")
    'raw\\\\xff.txt …'
    """
    return encoded(text).decode()


def degrade(stream: TextIO | None) -> None:
    """Make a text stream degrade characters that its encoding lacks, if its error handler can be set."""
    if stream is not None and hasattr(stream, "reconfigure"):
        stream.reconfigure(errors=_HANDLER)


def one_line(message: object) -> str:
    """A message in one line: each run of white space is one space.

    >>> one_line("rank 1:\\n  lost")
    'rank 1: lost'
    """
    return " ".join(str(message).split())
