"""Survey before a shuffle: ranks agree on the types of keys and values, and on the number of waves."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..collectives.agreement import agree_arguments
from ..errors import BadInput, Mismatch
from .keys import FORMS

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["Form", "agree"]

#: Types of numbers in rows by their code on the wire; 0 is objects.
_DTYPES = (
    "objects",
    *("float32", "float64", "int32", "int64", "uint8", "uint32", "uint64", "bfloat16", "float16"),
    "bool",
)

#: Largest number of axes that a row may have.
MAX_AXES = 4


@dataclass(frozen=True)
class Form:
    """Form of keys and values.

    Attributes
    ----------
    keys : str
        ``str``, ``bytes`` or the integers' dtype.
    dtype : str
        Type of the numbers in values, or ``objects``.
    row : tuple of int
        The shape of one value.
    key_signs, value_signs : {"any", "signed", "unsigned"} or None
        For lists of integers, which have no type: whether int64, uint64 or both can hold them. None for other values.
    """

    keys: str
    dtype: str
    row: tuple[int, ...] = ()
    key_signs: str | None = field(default=None, compare=False)
    value_signs: str | None = field(default=None, compare=False)

    #: Number of integers that encode a form.
    WORDS: ClassVar[int] = 3 + MAX_AXES

    def __str__(self) -> str:
        values = f"{self.dtype} of shape {self.row}" if self.row else self.dtype
        return f"keys of {self.keys} and values of {values}"

    @property
    def width(self) -> int:
        """Number of elements of a row."""
        return int(np.prod(self.row, dtype=np.int64))

    @property
    def held(self) -> str:
        """The type in which the native table stores the numbers."""
        return "uint8" if self.dtype == "bool" else self.dtype

    def joined(self, other: Form) -> Form | None:
        """The common form of two that differ only because lists have no type; None if they differ otherwise."""
        keys = _common((self.keys, self.key_signs), (other.keys, other.key_signs))
        dtype = _common((self.dtype, self.value_signs), (other.dtype, other.value_signs))
        if keys is None or dtype is None or self.row != other.row:
            return None
        return Form(keys[0], dtype[0], self.row, keys[1], dtype[1])

    @property
    def strings(self) -> bool:
        """Whether keys are strings of bytes."""
        return self.keys in ("str", "bytes")

    def words(self) -> list[int]:
        """The form as integers."""
        axes = [len(self.row), *self.row, *[0] * (MAX_AXES - len(self.row))]
        return [1 + FORMS.index(self.keys), _DTYPES.index(self.dtype), *axes]

    @classmethod
    def of_words(cls, words: Sequence[int]) -> Form | None:
        """Decode a form; None for a rank without values."""
        keys, dtype, axes, *row = words
        return cls(FORMS[keys - 1], _DTYPES[dtype], tuple(row[:axes])) if keys else None


#: Signs by their code on the wire.
_SIGNS = (None, "any", "signed", "unsigned")

_Type = tuple[str, str | None]


def _common(one: _Type, other: _Type) -> _Type | None:
    """An integer type for the numbers of two ranks, and whether it is from lists; None if there is none."""
    if one == other or (one[0] == other[0] and None not in (one[1], other[1])):
        strict = one if other[1] == "any" else other
        return None if {one[1], other[1]} == {"signed", "unsigned"} else strict
    if one[1] is None:
        one, other = other, one
    (name, signs), (theirs, their_signs) = one, other
    if signs is None:
        return one if name == theirs else None
    # A list takes the type of an array that holds it, or of a list with larger numbers.
    wanted = {"int64": ("any", "signed"), "uint64": ("any", "unsigned")}.get(theirs, ())
    if signs in wanted and name in ("int64", "uint64"):
        return other
    if their_signs == "any" and theirs in ("int64", "uint64") and name in ("int64", "uint64"):
        return one
    return None


def agree(comm: Comm, form: Form | None, options: dict[str, Any], waves: int) -> tuple[Form | None, int]:
    """Agree on the form of keys and values, and on the number of waves, the largest that a rank needs.

    Parameters
    ----------
    form : Form or None
        Form of this rank's keys and values; None without any.
    options : dict
        Arguments by name that must be the same on all ranks.

    Raises
    ------
    Mismatch
        On all ranks, if options, keys or values differ between ranks.
    """
    if comm.size == 1:
        return form, waves
    signs = 4 * _SIGNS.index(form.key_signs) + _SIGNS.index(form.value_signs) if form else 0
    mine = [zlib.crc32(repr(options).encode()), waves, signs, *(form.words() if form else [0] * Form.WORDS)]
    by_rank = comm.allgather(np.array(mine, np.int64)).tolist()
    if any(checksum != by_rank[0][0] for checksum, *_ in by_rank):
        agree_arguments(comm, "shuffle", **options)  # says which one differs
    forms = [_with_signs(Form.of_words(words), signs) for _, _, signs, *words in by_rank]
    first = next((rank for rank, one in enumerate(forms) if one is not None), None)
    if first is None:
        return None, 1
    common = forms[first]
    for rank, other in enumerate(forms):
        if other is None or common is None:
            continue
        joined = common.joined(other)
        if joined is None:
            raise Mismatch(f"rank {first} has {forms[first]}, rank {rank} has {other}: all must have the same")
        common = joined
    return common, max(words[1] for words in by_rank)


def _with_signs(form: Form | None, signs: int) -> Form | None:
    return form and replace(form, key_signs=_SIGNS[signs // 4], value_signs=_SIGNS[signs % 4])


def row_form(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a row, checked."""
    if len(shape) > MAX_AXES:
        raise BadInput(f"a value has {len(shape)} axes, {shape}: at most {MAX_AXES} are sent")
    if 0 in shape:
        raise BadInput(f'values of shape {shape} hold nothing: pass values=None and combine="count" for keys alone')
    return shape
