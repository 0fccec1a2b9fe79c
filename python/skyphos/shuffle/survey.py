"""What ranks tell each other before they shuffle: what keys and values they have, and how much of it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..errors import BadInput, Mismatch
from ..together import agree_arguments
from .keys import FORMS

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["Form", "agree"]

#: Types of numbers that rows hold, by the number that ranks tell each other; 0 is objects.
_DTYPES = ("objects", "float32", "float64", "int32", "int64", "uint8", "uint32", "uint64", "bfloat16", "float16")

#: The most axes that a row may have.
MOST_AXES = 4


@dataclass(frozen=True)
class Form:
    """What keys and values are.

    Attributes
    ----------
    keys : str
        ``str``, ``bytes`` or the integers' dtype.
    dtype : str
        Of the values' numbers; ``objects``.
    row : tuple of int
        The shape of one value.
    """

    keys: str
    dtype: str
    row: tuple[int, ...] = ()

    #: How many numbers say it.
    WORDS: ClassVar[int] = 3 + MOST_AXES

    def __str__(self) -> str:
        values = f"{self.dtype} of shape {self.row}" if self.row else self.dtype
        return f"keys of {self.keys} and values of {values}"

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return int(np.prod(self.row, dtype=np.int64))

    @property
    def strings(self) -> bool:
        """Whether keys are strings of bytes."""
        return self.keys in ("str", "bytes")

    def words(self) -> list[int]:
        """It as numbers."""
        axes = [len(self.row), *self.row, *[0] * (MOST_AXES - len(self.row))]
        return [1 + FORMS.index(self.keys), _DTYPES.index(self.dtype), *axes]

    @classmethod
    def of_words(cls, words: Sequence[int]) -> Form | None:
        """What numbers say; None: a rank that has nothing."""
        keys, dtype, axes, *row = words
        return cls(FORMS[keys - 1], _DTYPES[dtype], tuple(row[:axes])) if keys else None


def agree(comm: Comm, form: Form | None, options: dict[str, Any], waves: int) -> tuple[Form | None, int]:
    """What keys and values all ranks have, and in how many waves they go: as many as one of them needs.

    Parameters
    ----------
    form : Form or None
        What this rank has; None: nothing.
    options : dict
        Arguments by name that must be the same on all ranks.

    Raises
    ------
    Mismatch
        Two ranks have said, or have, different things; on all ranks.
    """
    if comm.size == 1:
        return form, waves
    mine = [zlib.crc32(repr(options).encode()), waves, *(form.words() if form else [0] * Form.WORDS)]
    told = comm.allgather(np.array(mine, np.int64)).tolist()
    if any(checksum != told[0][0] for checksum, *_ in told):
        agree_arguments(comm, "shuffle", **options)  # says which one differs
    forms = [Form.of_words(words) for _, _, *words in told]
    first = next((rank for rank, one in enumerate(forms) if one is not None), None)
    if first is None:
        return None, 1
    for rank, other in enumerate(forms):
        if other is not None and other != forms[first]:
            raise Mismatch(f"rank {first} has {forms[first]}, rank {rank} has {other}: all must have the same")
    return forms[first], max(words[1] for words in told)


def row_form(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a row, if it can be told."""
    if len(shape) > MOST_AXES:
        raise BadInput(f"a value has {len(shape)} axes, {shape}: at most {MOST_AXES} are sent")
    if 0 in shape:
        raise BadInput(f'values of shape {shape} hold nothing: pass values=None and combine="count" for keys alone')
    return shape
