"""Numbers as people write them on the command line."""

from __future__ import annotations

import re

import click

from ..errors import BadInput

__all__ = ["Degrees", "Size", "entries_of", "parse_rate"]

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def parse_rate(text: str) -> float:
    """Bytes a second of a rate such as 10Gbit or 1.2GB.

    Examples
    --------
    >>> from skyphos.cli.units import parse_rate
    >>> parse_rate("10Gbit"), parse_rate("250 Mbit/s"), parse_rate("1.2GB")
    (1250000000.0, 31250000.0, 1200000000.0)
    """
    found = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?)(bit|b)(?:/s|ps)?", text.strip().lower())
    if found is None:
        raise BadInput(f"{text!r} is no rate: write 10Gbit, 250Mbit or 1.2GB")
    try:
        rate = float(found[1]) * _UNITS[found[2]] / (8 if found[3] == "bit" else 1)
    except ValueError:
        raise BadInput(f"{text!r} is no rate: write 10Gbit, 250Mbit or 1.2GB") from None
    if rate <= 0:
        raise BadInput(f"{text!r} is no rate: it must be above 0")
    return rate


class Size(click.ParamType[int]):
    """A whole number, which may be written 60e6."""

    name = "integer"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = float(str(value))
        except ValueError:
            self.fail(f"{value!r} is no number", param, ctx)
        if not 1 <= number < 2**63 or number != int(number):
            self.fail(f"{value!r} is no whole number of at least 1", param, ctx)
        return int(number) if "e" in str(value) or "." in str(value) else int(str(value))


def entries_of(n: int, density: float | None, entries: int | None) -> float:
    """How many of n indices a rank has, of which one or the other was said.

    Examples
    --------
    >>> from skyphos.cli.units import entries_of
    >>> entries_of(1000, 0.25, None), entries_of(1000, None, 7)
    (250.0, 7.0)
    """
    if (density is None) == (entries is None):
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
