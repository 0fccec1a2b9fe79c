"""``skyphos probe``: measure machines and network, and write a profile for the planner."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

from ..errors import BadInput, PeerLost, SkyphosError, Timeout
from ..launch.bootstrap import discover
from ..launch.local import cores
from ..launch.subcommand import launcher_of_group, start_group
from ..planning.profile_choice import default_path
from ..planning.profile_file import Measured
from ..text.plain_text import one_line
from . import shared_options

__all__ = ["command"]

_AGAIN = "a probe needs all ranks: see what ended it, then probe again"


@click.command("probe")
@shared_options.processes("Ranks. Default: cores, at least 2; or the host file's slots.", least=2)
@shared_options.hostfile
@click.option("--output", metavar="PROFILE.json", help=f"Where rank 0 writes the profile. Default: {default_path()}.")
@click.option("--chart", metavar="FILE.html", help="Draw a page.")
@click.option(
    "--seconds", type=click.FloatRange(0.5, 3600), default=10.0, show_default=True, help="About how long to measure."
)
@click.option("--json", "as_json", is_flag=True, help="Print the profile's file.")
@click.option(
    "--timeout", type=click.FloatRange(min=1), default=60.0, show_default=True, help="Seconds to wait for a rank."
)
@click.option("--ssh", default=None, metavar="COMMAND", help="ssh with options, if not plain 'ssh'.")
@click.option("--python", default=None, metavar="PATH", help="Python on the hosts, if not at the same path as here.")
def command(
    *,
    n: int | None,
    hostfile: str | None,
    output: str | None,
    chart: str | None,
    seconds: float,
    as_json: bool,
    timeout: float,
    ssh: str | None,
    python: str | None,
) -> None:
    """Measure the network between ranks, and their machines.

    By itself the command starts its own ranks; under `skyphos run`, torchrun, srun or mpiexec it joins theirs. Rank 0
    writes a profile, from which `skyphos.init` makes the first choices of `auto`, and `skyphos plan --profile` its
    predictions.

    \b
    skyphos probe -n 4 --chart probe.html
    skyphos probe --hostfile hosts --output cluster.json
    skyphos run --hostfile hosts -- skyphos probe
    """
    path = output or default_path()
    _check(path, chart, make_folder=os.path.abspath(path) == default_path())
    launcher = launcher_of_group(n)
    if launcher is not None:
        if hostfile is not None:
            raise BadInput(f"--hostfile, but {launcher} started this group: leave it out")
        _take_part(path, chart, seconds, as_json, timeout)
        return
    arguments = ["--output", os.path.abspath(path), "--seconds", repr(seconds), "--timeout", repr(timeout)]
    arguments += [] if chart is None else ["--chart", os.path.abspath(chart)]
    arguments += ["--json"] if as_json else []
    ranks = n or max(2, cores()) if hostfile is None else n
    sys.exit(start_group("probe", arguments, ranks, hostfile=hostfile, ssh=ssh, python=python))


def _check(path: str, chart: str | None, *, make_folder: bool) -> None:
    """Before anything is measured, refuse paths that cannot be written; only rank 0 writes."""
    from .output import PAGES, check_writable

    if discover().rank != 0:
        return
    if make_folder:
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}: pass --output") from None
    check_writable(path, (".json",))
    if chart is not None:
        check_writable(chart, PAGES)


def _take_part(path: str, chart: str | None, seconds: float, as_json: bool, timeout: float) -> None:
    """Run one rank."""
    import skyphos

    from ..probe.measure import probe
    from .progress import Progress

    try:
        # The profile of an earlier probe must not influence this one.
        os.environ["SKYPHOS_PROFILE"] = "none"
        comm = skyphos.init(timeout=timeout)
    except (PeerLost, Timeout) as error:
        _lost(error)
    except SkyphosError as error:
        # There is no group yet, so each rank prints its own error.
        click.echo(f"skyphos: {one_line(error)}", err=True)
        sys.exit(2 if isinstance(error, BadInput) else 1)
    with comm, Progress(1.0, visible=comm.rank == 0) as progress:
        try:
            found = probe(comm, seconds=seconds, report=progress.show_share)
        except (PeerLost, Timeout) as error:
            _lost(error)
        comm.barrier()
    if comm.rank == 0:
        _write(found, path, chart)
        click.echo(found.to_json().rstrip() if as_json else _summary(found, path, chart))


def _lost(error: PeerLost | Timeout) -> NoReturn:
    """Report the lost rank, on each remaining rank, since rank 0 may be the lost one."""
    click.echo(f"skyphos: {one_line(error)}; {_AGAIN}", err=True)
    sys.exit(1)


def _write(found: Measured, path: str, chart: str | None) -> None:
    """Write the files; each appears complete or not at all."""
    from ..files.whole_file import replacing
    from ..pages.probe import render
    from ..text.plain_text import encoded

    with replacing(path) as file:
        file.write(found.to_json().encode())
    if chart is not None:
        with replacing(chart) as file:
            file.write(encoded(render(found)))


def _summary(found: Measured, path: str, chart: str | None) -> str:
    """The summary as text."""
    from ..probe.summary import summary

    where = f"The profile is in {path}" + ("." if chart is None else f", the page in {chart}.")
    return f"{summary(found)}\n{where}"
