"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ..planning.planner import MAX_ROW_BYTES

__all__ = [
    "HOSTFILE_NAMES",
    "PROCESSES_NAMES",
    "alpha",
    "chart",
    "density",
    "hostfile",
    "processes",
    "row_bytes",
    "seconds",
]

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

#: As mpiexec, torchrun and others spell them.
PROCESSES_NAMES = ("-n", "-np", "--np", "--nproc")
HOSTFILE_NAMES = ("--hostfile", "-hostfile", "--machinefile", "-machinefile")

hostfile: _Decorator = click.option(
    *HOSTFILE_NAMES,
    "hostfile",
    type=click.Path(dir_okay=False),
    help="Lines of 'host', 'host:N' or 'host slots=N'; ranks start over ssh.",
)


def processes(words: str, least: int = 1) -> _Decorator:
    """An option for the number of processes; ``words`` is its help."""
    return click.option(
        *PROCESSES_NAMES, "n", type=click.IntRange(min=least), multiple=True, callback=_single_value, help=words
    )


def _single_value(_: click.Context, param: click.Parameter, given: tuple[int, ...]) -> int | None:
    """The value of an option that has several names, which must not be given different values."""
    if len(set(given)) > 1:
        raise click.BadParameter(f"{' and '.join(map(str, given))} were given: say one of them", param=param)
    return given[0] if given else None


density: _Decorator = click.option(
    "--density", type=float, default=None, help="Share of the indices for which a rank has values."
)

alpha: _Decorator = click.option(
    "--alpha", type=float, default=None, help="Exponent of a power law. Default: indices drawn uniformly."
)

chart: _Decorator = click.option(
    "--chart", type=click.Path(dir_okay=False), default=None, metavar="FILE.html", help="Draw a page."
)

row_bytes: _Decorator = click.option(
    "--row-bytes",
    type=click.IntRange(min=1, max=MAX_ROW_BYTES),
    default=4,
    show_default=True,
    help="Bytes of an index's values.",
)


def seconds(name: str, words: str, default: str) -> _Decorator:
    """An option for a time; ``default`` is its default as text."""
    return click.option(name, type=float, default=None, metavar="SECONDS", help=f"{words}  [default: {default}]")
