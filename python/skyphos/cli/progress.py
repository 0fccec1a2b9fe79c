"""Progress of an iteration on stderr: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
from types import TracebackType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

__all__ = ["Progress"]


class Progress:
    """Shows the progress of a command; a context manager.

    Parameters
    ----------
    tol : float
        Residual at which the iteration ends: the bar fills as the residual's logarithm nears it.
    visible : bool
        False on all ranks but one.
    """

    def __init__(self, tol: float, *, visible: bool) -> None:
        self._tol, self._visible = tol, visible
        self._first_residual: float | None = None
        self._bar: RichProgress | None = None

    def __enter__(self) -> Progress:
        if self._visible and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as RichProgress

            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = RichProgress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show_step(self, step: str) -> None:
        """Show the name of the next step."""
        if self._bar is not None:
            self._bar.update(self._task, description=step)
        elif self._visible:
            click.echo(step, err=True)

    def show_share(self, step: str, share: float) -> None:
        """Show the name of the next step, and the share that is done."""
        if self._bar is not None:
            self._bar.update(self._task, description=step, completed=share, total=1.0)
        elif self._visible:
            click.echo(step, err=True)

    def show_iteration(self, iteration: int, residual: float) -> None:
        """Show that an iteration is done."""
        if not self._visible:
            return
        step = f"iteration {iteration}  residual {residual:.3e}"
        if self._bar is None:
            click.echo(step, err=True)
            return
        self._first_residual = self._first_residual or residual
        done, total = 0.0, 1.0
        if 0 < self._tol < self._first_residual and residual > 0:
            total = math.log(self._first_residual / self._tol)
            done = min(total, max(0.0, math.log(self._first_residual / residual)))
        self._bar.update(self._task, description=step, completed=done, total=total)
