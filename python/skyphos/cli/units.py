"""Numbers as people write them on the command line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import click

from ..errors import BadInput

__all__ = ["RATE", "VOLUME", "Degrees", "Size", "entries_of", "parse_bytes", "parse_rate"]

#: Most bytes, or bytes a second, that anything here is of.
_MOST = 1e15

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def parse_rate(text: str) -> float:
    """Bytes a second of a rate such as 10Gbit or 1.2GB. Raises BadInput if it is none.

    Examples
    --------
    >>> from skyphos.cli.units import parse_rate
    >>> parse_rate("10Gbit"), parse_rate("250 Mbit/s"), parse_rate("1.2GB")
    (1250000000.0, 31250000.0, 1200000000.0)
    """
    number, unit = _parse(text, "(bit|b)(?:/s|ps)?", "rate", "write 10Gbit, 250Mbit or 1.2GB")
    return number / (8 if unit == "bit" else 1)


def parse_bytes(text: str) -> float:
    """Bytes of a size such as 2MB or 16KB. Raises BadInput if it is none.

    Examples
    --------
    >>> from skyphos.cli.units import parse_bytes
    >>> parse_bytes("2MB"), parse_bytes("16 kB"), parse_bytes("512B")
    (2000000.0, 16000.0, 512.0)
    """
    return _parse(text, "(b)", "size", "write 2MB or 16KB")[0]


def _parse(text: str, units: str, what: str, how: str) -> tuple[float, str]:
    """The number of a text with its prefix, and its unit."""
    found = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?)" + units, text.strip().lower())
    try:
        number = math.nan if found is None else float(found[1]) * _UNITS[found[2]]
    except ValueError:
        number = math.nan
    if found is None or math.isnan(number):
        raise BadInput(f"{text!r} is no {what}: {how}")
    if not 0 < number <= _MOST:
        raise BadInput(f"{text!r} is no {what}: it must be above 0, and at most {_MOST:g} bytes")
    return number, found[3]


class _Amount(click.ParamType[float]):
    """A number that a function reads from text."""

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
    """A whole number, which may be written 60e6."""

    name = "integer"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        try:
            whole = int(text)  # as a float the largest would be rounded
        except ValueError:
            try:
                number = float(text)
            except ValueError:
                self.fail(f"{text!r} is no number", param, ctx)
            whole = int(number) if number.is_integer() else 0
        if not 1 <= whole < 2**63:
            self.fail(f"{text!r} is no whole number from 1 to 2^63 - 1", param, ctx)
        return whole


def entries_of(n: int, density: float | None, entries: int | None) -> float:
    """How many of n indices a rank has, of which one or the other was said.

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
    """Layers of a butterfly, written 8x4x2."""

    name = "degrees"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = str(value).lower().split("x")
        if not all(part.isdigit() and int(part) >= 1 for part in parts):
            self.fail(f"{value!r} are no degrees: write 8x4x2", param, ctx)
        return tuple(int(part) for part in parts)
