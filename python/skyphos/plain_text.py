"""Text that any stream, page or message can carry: characters that cannot be encoded are degraded, never an error.

File names on Linux are bytes; Python holds those that are no UTF-8 as lone surrogates, which no encoding takes. They
are shown as ``\\xff``. Terminals and pipes may have an encoding that lacks ``…`` or ``≈``: they get the nearest ASCII.
"""

from __future__ import annotations

import codecs
import unicodedata
from typing import TextIO

__all__ = ["degrade", "encoded", "plain"]

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
    """Encode text; what the encoding lacks is degraded.

    Examples
    --------
    >>> from skyphos.plain_text import encoded
    >>> encoded("raw\\udcff.txt …", "ascii")
    b'raw\\\\xff.txt ...'
    """
    return text.encode(encoding, _HANDLER)


def plain(text: str) -> str:
    """The same text without lone surrogates, so that UTF-8 can carry it.

    Examples
    --------
    >>> from skyphos.plain_text import plain
    >>> plain("raw\\udcff.txt …")
    'raw\\\\xff.txt …'
    """
    return encoded(text).decode()


def degrade(stream: TextIO | None) -> None:
    """Make a text stream degrade what its encoding lacks, where it can be told to."""
    if stream is not None and hasattr(stream, "reconfigure"):
        stream.reconfigure(errors=_HANDLER)
