"""Words of a text as keys, without a Python object for each word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import _skyphos as native
from ..errors import BadInput
from .keys import Keys, as_list

__all__ = ["words"]


def words(text: Any, batch_bytes: int = 1 << 18) -> Iterator[Keys]:
    """The words of a text, split at white space, in batches that :meth:`skyphos.Comm.shuffle` takes as keys.

    Like ``text.split()``, but only ASCII white space separates words. Words stay in arrays, so counting a batch is as
    fast as memory.

    Parameters
    ----------
    text : bytes-like or str
        Words of a ``str`` are ``str``, others ``bytes``.
    batch_bytes : int
        Approximate bytes of text in a batch. The default keeps a batch in the cache.

    Yields
    ------
    Keys
        ``len()`` is the number of words; ``tolist()`` lists them.

    Raises
    ------
    BadInput
        If ``text`` is of another type.

    Examples
    --------
    >>> import skyphos as sky
    >>> from skyphos.shuffle import Shuffle, words
    >>> with sky.init() as comm:
    ...     count = Shuffle(comm, "count")
    ...     for some in words("to be or not to be"):
    ...         count.add(some)
    ...     keys, counts = count.result()
    >>> dict(zip(keys, counts.tolist()))
    {'to': 2, 'be': 2, 'or': 1, 'not': 1}
    """
    is_text = isinstance(text, str)
    try:
        raw = memoryview(text.encode() if is_text else text).cast("B")
    except (TypeError, UnicodeEncodeError) as error:
        raise BadInput(f"words are those of bytes or str, not of {type(text).__name__}: {error}") from None
    letters = np.frombuffer(raw, np.uint8) if len(raw) else np.empty(0, np.uint8)
    return _words(letters, max(1, int(batch_bytes)), is_text)


def _words(letters: Any, batch_bytes: int, is_text: bool) -> Iterator[Keys]:
    def back(native_keys: Any) -> Any:
        return as_list(native_keys, is_text)

    at = 0
    while at < len(letters):
        arrays, at = native.words_of(letters, at, batch_bytes)
        if len(arrays[0]) > 1:
            yield Keys("str" if is_text else "bytes", arrays, len(arrays[0]) - 1, back)
