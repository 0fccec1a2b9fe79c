"""Subcommands that run as a group: as ranks of a group that a launcher started, else as ranks that they start."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..errors import BadInput
from . import hosts as over_ssh
from . import local
from .bootstrap import discover

__all__ = ["launcher_of_group", "start_group"]


def launcher_of_group(n: int | None) -> str | None:
    """The launcher that started this process as a rank; None: the process is alone.

    Parameters
    ----------
    n : int or None
        Number of ranks that the user asked for.

    Raises
    ------
    BadInput
        If the launcher has started another number of ranks than ``n``.
    """
    process = discover()
    if process.launcher == "alone":
        return None
    if n is not None and n != process.world_size:
        raise BadInput(f"-n {n}, but {process.launcher} started a group of {process.world_size}: leave -n out")
    return process.launcher


def start_group(
    subcommand: str,
    arguments: Sequence[str],
    n: int | None,
    *,
    hostfile: str | None = None,
    ssh: str | None = None,
    python: str | None = None,
) -> int:
    """Run a subcommand of ``skyphos`` as a group, here or on the hosts of a file, and return its exit status.

    Parameters
    ----------
    subcommand, arguments : str, sequence of str
        As on the command line, without ``skyphos``.
    n : int or None
        Number of ranks. None: one for each usable core; with a host file one for each slot.
    hostfile, ssh, python : str, optional
        A host file; the ssh command with its options; the path of Python on the hosts.
    """
    command = [python or sys.executable, "-m", "skyphos.cli", subcommand, *arguments]
    if hostfile is None:
        return local.run_local(command, n or local.cores(), prefix=False, report="killed")
    return over_ssh.run_hosts(
        command,
        over_ssh.parse_hostfile(hostfile),
        n,
        ssh=ssh.split() if ssh else over_ssh.SSH,
        python=python,
        prefix=False,
        report="killed",
    )
