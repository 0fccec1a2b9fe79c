"""``skyphos run``: start a group of processes."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

import click

from ..errors import BadInput
from ..launch import hosts as launch_hosts
from ..launch import local as launch
from . import shared_options

__all__ = ["command"]

_PER_NODE_NAMES = ("--nproc-per-node", "--nproc_per_node")

#: Set if ``--`` precedes the target.
_SEPARATED = "skyphos.run.separated"


class _Run(click.Command):
    """Records whether ``--`` separates the options of ``skyphos run`` from the target."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            found, _, _ = self.make_parser(ctx).parse_args(list(args))
            given = found.get("arguments")
            from_target = 1 + (len(given) if isinstance(given, tuple) else 0)
            ctx.meta[_SEPARATED] = args[:-from_target][-1:] == ["--"]
        return super().parse_args(ctx, args)


@click.command("run", cls=_Run, context_settings={"allow_interspersed_args": False})
@shared_options.processes("Processes. Default: cores, or the host file's slots.")
@click.option(*_PER_NODE_NAMES, "per_node", type=click.IntRange(min=1), help="Instead of -n: processes on each host.")
@shared_options.hostfile
@click.option("-m", "module", is_flag=True, help="TARGET is a Python module.")
@click.option("--prefix/--no-prefix", default=True, help="Put '[rank] ' before each line of output. Default: on.")
@click.option(
    "-x",
    "export",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Send this variable to the hosts, or set it for all processes; repeatable.",
)
@click.option("--ssh", default=None, metavar="COMMAND", help="ssh with options, if not plain 'ssh'.")
@click.option("--python", default=None, metavar="PATH", help="Python on the hosts, if not at the same path as here.")
@click.option(
    "--grace", type=click.FloatRange(min=0), default=5.0, show_default=True, help="Seconds from SIGTERM to SIGKILL."
)
@click.option("--keep-going", is_flag=True, help="Processes that die do not end the others: see above.")
@click.argument("target")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context,
    *,
    n: int | None,
    per_node: int | None,
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

    Options of `skyphos run` go before TARGET, those of TARGET after it. An option of `skyphos run`, such as -n, is an
    error after a Python file or module, unless -- comes directly after or before TARGET.

    With --keep-going the other processes go on when one fails: use it for groups with replicas (init(replication=2))
    or programs that call comm.shrink(). One line reports each failure. The exit code is 0 if at least one process ended
    with 0 and all others died (killed by a signal, or lost with their host). Otherwise it is the code of the first
    process that ended by itself with another code; if all died, 128 + signal of the first.

    \b
    skyphos run -n 4 train.py --epochs 3
    skyphos run -n 4 train.py -- -n 100
    skyphos run -n 4 -m mypackage.train
    skyphos run --hostfile hosts -n 16 skyphos pagerank graph.txt
    """
    if n is not None and per_node is not None:
        raise BadInput("-n is the number of all processes, --nproc-per-node that of each host: give one of them")
    if target.startswith("-") and not ctx.meta[_SEPARATED]:
        raise BadInput(f"{target}: no such option of skyphos run")
    if arguments[:1] == ("--",):
        arguments = arguments[1:]
    elif not ctx.meta[_SEPARATED]:
        _check_order(
            ctx, target, arguments, module=module, has_count=any(given is not None for given in (n, per_node, hostfile))
        )
    exported = _exported(export)
    argv = launch.command_line(target, arguments, module=module, python=python)
    if hostfile is None:
        sys.exit(
            launch.run_local(
                argv,
                n or per_node or launch.cores(),
                prefix=prefix,
                env={**os.environ, **exported},
                grace_s=grace,
                keep_going=keep_going,
                report="failed",
            )
        )
    hosts = launch_hosts.parse_hostfile(hostfile)
    if per_node is not None:
        hosts = [(host, per_node) for host, _ in hosts]
    sys.exit(
        launch_hosts.run_hosts(
            argv,
            hosts,
            n,
            export=exported,
            ssh=ssh.split() if ssh else launch_hosts.SSH,
            python=python,
            prefix=prefix,
            grace_s=grace,
            keep_going=keep_going,
            report="failed",
        )
    )


def _exported(given: Sequence[str]) -> dict[str, str]:
    """The variables of ``-x``, each with the value given there, else its value in this process."""
    found: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not name or "\0" in one:
            raise BadInput(f"-x {one!r}: NAME, or NAME=VALUE")
        if not equals and name not in os.environ:
            raise BadInput(f"-x {name}: this variable is not set here; -x {name}=VALUE sets it")
        found[name] = value if equals else os.environ[name]
    return found


def _check_order(ctx: click.Context, target: str, arguments: Sequence[str], *, module: bool, has_count: bool) -> None:
    """Refuse an option of ``skyphos run`` after the target, to which it would be passed.

    Other programs have options of the same names (``head -n``, ``python -m``): after one of those, only a number of
    processes is refused, and only if none precedes the target.
    """
    ours = {name: param for param in ctx.command.params for name in (*param.opts, *param.secondary_opts)}
    if not module and not target.endswith(".py"):
        names = (*shared_options.PROCESSES_NAMES, *_PER_NODE_NAMES, *shared_options.HOSTFILE_NAMES)
        ours = {} if has_count else {name: ours[name] for name in names}
    for position, argument in enumerate(arguments):
        if argument == "--":
            return
        name, equals, _ = argument.partition("=")
        param = ours.get(name if name.startswith("--") else argument)
        if not isinstance(param, click.Option) or not argument.startswith("-"):
            continue
        end = position + (1 if equals or param.is_flag else 2)
        option, others = arguments[position:end], (*arguments[:position], *arguments[end:])
        begin, what = ["skyphos", "run"], [*(["-m"] if module else []), target]
        moved = [*begin, *_given(ctx, param), *option, *what, *others]
        handed_on = [*begin, *_given(ctx), *what, "--", *arguments]
        raise BadInput(
            f"{argument} after {target} is an argument of the program: write `{shlex.join(moved)}`, or leave "
            f"{argument} out; to hand it on, `{shlex.join(handed_on)}`"
        )


def _given(ctx: click.Context, but: click.Option | None = None) -> list[str]:
    """The given options for the number of processes and the hosts, as arguments; without option ``but``."""
    named = {"n": "-n", "per_node": "--nproc-per-node", "hostfile": "--hostfile"}
    return [
        word
        for name, option in named.items()
        if (but is None or name != but.name) and ctx.params.get(name) is not None
        for word in (option, str(ctx.params[name]))
    ]
