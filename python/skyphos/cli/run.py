"""``skyphos run``: start a group of processes."""

from __future__ import annotations

import sys

import click

from .. import launch, launch_hosts

__all__ = ["command"]


@click.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "n", type=click.IntRange(min=1), help="Processes. Default: cores, or the host file's slots.")
@click.option("--hostfile", type=click.Path(dir_okay=False), help="Lines of 'host [slots=N]'; ranks start over ssh.")
@click.option("-m", "module", is_flag=True, help="TARGET is a Python module.")
@click.option("--prefix/--no-prefix", default=True, help="Put '[rank] ' before each line of output. Default: do.")
@click.option("-x", "export", multiple=True, metavar="NAME", help="Send this variable to the hosts; repeatable.")
@click.option("--ssh", default=None, metavar="COMMAND", help="ssh with options, if not plain 'ssh'.")
@click.option("--python", default=None, metavar="PATH", help="Python on the hosts, if not at the same path as here.")
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="Seconds from SIGTERM to SIGKILL.",
)
@click.option("--keep-going", is_flag=True, help="Processes that die do not end the others: see above.")
@click.argument("target")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    *,
    n: int | None,
    hostfile: str | None,
    module: bool,
    prefix: bool,
    export: tuple[str, ...],
    ssh: str | None,
    python: str | None,
    grace: float,
    keep_going: bool,
    target: str,
    arguments: tuple[str, ...],
) -> None:
    """Run TARGET as a group of processes that `skyphos.init()` joins.

    TARGET is a Python file (ends in .py), a module with -m, or a program. Its exit code is passed on; when
    one rank fails, the others are ended, and a line says which one it was.

    With --keep-going the others go on, as a group does that has replicas (init(replication=2)) or that shrinks
    (comm.shrink()). A line tells of each that fails. The exit code is 0 if one process or more ended with 0 and all
    others died: killed by a signal, or lost with their host. Else it is that of the first that ended by itself with
    another code; 128 + signal of the first that died if nobody was left.

    \b
    skyphos run -n 4 train.py --epochs 3
    skyphos run -n 4 -m mypackage.train
    skyphos run --hostfile hosts -n 16 skyphos pagerank graph.txt
    """
    argv = launch.command_line(target, arguments, module=module, python=python)
    if hostfile is None:
        sys.exit(
            launch.run_local(
                argv, n or launch.cores(), prefix=prefix, grace_s=grace, keep_going=keep_going, tell="failed"
            )
        )
    hosts = launch_hosts.parse_hostfile(hostfile)
    sys.exit(
        launch_hosts.run_hosts(
            argv,
            hosts,
            n,
            export=export,
            ssh=ssh.split() if ssh else launch_hosts.SSH,
            python=python,
            prefix=prefix,
            grace_s=grace,
            keep_going=keep_going,
            tell="failed",
        )
    )
