"""Parameter types of the command line: sizes, rates, degrees."""

from __future__ import annotations

from collections.abc import Callable

import click

from ..errors import BadInput
from ..inputs.units import parse_bytes, parse_rate

__all__ = ["RATE", "VOLUME", "Degrees", "Size", "entries_of", "parse_bytes", "parse_rate"]


class _Amount(click.ParamType[float]):
    """A number that a function parses from text."""

    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return value if isinstance(value, float) else self._parse(str(value))
        except BadInput as error:
            self.fail(str(error), param, ctx)


#: Bytes a second, as :func:`parse_rate` reads them, and bytes, as :func:`parse_bytes` does.
RATE, VOLUME = _Amount("rate", parse_rate), _Amount("bytes", parse_bytes)


class Size(click.ParamType[int]):
    """A whole number, also in the form 60e6."""

    name = "integer"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        try:
            whole = int(text)  # a float would round the largest ones
        except ValueError:
            try:
                number = float(text)
            except ValueError:
                self.fail(f"{text!r} is not a number", param, ctx)
            whole = int(number) if number.is_integer() else 0
        if not 1 <= whole < 2**63:
            self.fail(f"{text!r} is not a whole number from 1 to 2^63 - 1", param, ctx)
        return whole


def entries_of(n: int, density: float | None, entries: int | None) -> float:
    """The number of entries of a rank, from either option.

    Examples
    --------
    >>> from skyphos.cli.units import entries_of
    >>> entries_of(1000, 0.25, None), entries_of(1000, None, 7)
    (250.0, 7.0)
    """
    if density is not None and entries is not None:
        raise BadInput("--density and --entries exclude each other: say one of them")
    if density is None and entries is None:
        raise BadInput("say how much a rank has: --density or --entries")
    if density is not None and not 0 <= density <= 1:
        raise BadInput(f"--density is a share between 0 and 1, not {density}")
    return float(entries if entries is not None else (density or 0.0) * n)


class Degrees(click.ParamType[tuple[int, ...]]):
    """Degrees of a butterfly's layers, written 8x4x2."""

    name = "degrees"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = str(value).lower().split("x")
        if not all(part.isdigit() and int(part) >= 1 for part in parts):
            self.fail(f"{value!r} are not degrees: write 8x4x2", param, ctx)
        return tuple(int(part) for part in parts)
