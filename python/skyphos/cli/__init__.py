"""The ``skyphos`` command.

Subcommands live in modules of their own, imported when they are called, so that ``skyphos --version`` does
not load NumPy. Every error is one line on stderr: exit code 2 for input and settings that cannot be used, 1
for everything else. ``SKYPHOS_DEBUG=1`` shows the traceback as well.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from typing import Any

import click

from .. import __version__
from ..inputs.variables import flag
from ..launch.streams import prepare
from ..text.plain_text import one_line

__all__ = ["main"]

_COMMANDS = {
    "certificates": "Make certificates, for groups that encrypt their connections.",
    "plan": "Predict what an allreduce costs by each algorithm, or a plan by its degrees.",
    "pagerank": "Rank the vertices of a graph with PageRank.",
    "probe": "Measure what network and machines can do.",
    "simulate": "Run a collective on a simulated cluster.",
    "split": "Cut data into even partitions for map-reduce.",
    "run": "Run a script, module or program as a group of processes.",
}


class _LazyGroup(click.Group):
    """Knows the names of its commands, and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f".{cmd_name}", __name__).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run; every error is printed as one line, and sets the exit code."""
        prepare()
        debug = False
        try:
            debug = flag("SKYPHOS_DEBUG") is True
            code = super().main(*args, **(kwargs | {"standalone_mode": False}))
            sys.stdout.flush()
        except (click.Abort, KeyboardInterrupt):
            code = 128 + signal.SIGINT
        except BrokenPipeError:
            # The reader of our output has gone; /dev/null replaces it, so that the interpreter can flush at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 128 + signal.SIGPIPE
        except Exception as error:
            if debug:
                raise
            code = _report(error)
        sys.exit(code if isinstance(code, int) else 0)


def _report(error: Exception) -> int:
    """Print an error as one line, once for the whole group; return the exit code."""
    from ..errors import BadInput, SkyphosError

    if isinstance(error, click.ClickException):
        if _rank() == 0:
            click.echo(f"skyphos: {one_line(error.format_message())}", err=True)
        return error.exit_code
    if isinstance(error, OSError) and _is_from_printing(error):
        click.echo(f"skyphos: standard output: {error.strerror}", err=True)
        return 1
    if not isinstance(error, SkyphosError):
        click.echo(f"skyphos: {type(error).__name__}: {one_line(error)}", err=True)
        return 1
    # An error of a collective is raised on all ranks; rank 0 prints it.
    if _rank() == 0:
        click.echo(f"skyphos: {one_line(error)}", err=True)
    return 2 if isinstance(error, BadInput) else 1


def _is_from_printing(error: OSError) -> bool:
    """True if printing raised the error: such an error names no file."""
    *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
    return innermost.f_code in (click.echo.__code__, _LazyGroup.main.__code__)


def _rank() -> int:
    from ..errors import BadInput
    from ..launch.bootstrap import discover

    try:
        return discover().rank
    except BadInput:
        return 0


@click.group(
    cls=_LazyGroup,
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="skyphos")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Sparse collectives for data of which each machine holds, and wants, only a part."""
    if ctx.invoked_subcommand is None:
        # Without this, click would print the help as an error, and errors are one line here.
        click.echo(ctx.get_help(), err=True)
        ctx.exit(2)
