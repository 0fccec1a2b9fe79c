"""Leftovers: processes that a rank started and that outlive it.

They are found by the rank's process group, and by the rank's variables in their environment, which a process keeps when
it starts its own session (``setsid``, a daemon). This works on Linux only; elsewhere only the group gets signals.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Origin", "adopt", "find", "send"]


_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


@dataclass(frozen=True)
class Origin:
    """Marks by which the processes that a child started are found.

    Attributes
    ----------
    group : int
        Their process group.
    variables : tuple of bytes
        ``NAME=value`` that are all in their environment. Empty: processes are found by their group alone.
    """

    group: int
    variables: tuple[bytes, ...] = ()


def find(origins: Sequence[Origin]) -> dict[Origin, list[int]]:
    """The running processes of each origin, without zombies.

    Examples
    --------
    >>> from skyphos.launch.leftovers import Origin, find
    >>> find([Origin(2**22 + 1)])
    {}
    """
    found: dict[Origin, list[int]] = {}
    by_group = {origin.group: origin for origin in origins}
    marked = [origin for origin in origins if origin.variables]
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with suppress(OSError, IndexError, ValueError):
            # After the name in brackets, which may hold anything: state, parent, group.
            state, parent, group = Path("/proc", entry, "stat").read_bytes().rpartition(b")")[2].split()[:3]
            if state in (b"Z", b"X"):
                if int(parent) == os.getpid() and int(group) in by_group and entry != group.decode():
                    os.waitpid(int(entry), os.WNOHANG)  # a process that this one adopted
                continue
            origin = by_group.get(int(group)) or (_marked(entry, marked) if marked else None)
            if origin is not None:
                found.setdefault(origin, []).append(int(entry))
    return found


def adopt(wanted: bool) -> bool:
    """Set whether orphaned descendants become children of this process; return the setting before.

    Then this process can wait for them. Otherwise process 1 adopts them, which in a container may never wait for them,
    so that zombies remain.
    """
    if not sys.platform.startswith("linux"):
        return False
    prctl, before = ctypes.CDLL(None, use_errno=True).prctl, ctypes.c_int()
    if prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) == 0:
        prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(wanted), 0, 0, 0)
    return bool(before.value)


def _marked(entry: str, origins: Sequence[Origin]) -> Origin | None:
    try:
        environment = frozenset(Path("/proc", entry, "environ").read_bytes().split(b"\0"))
    except OSError:  # the process of another user
        return None
    return next((origin for origin in origins if environment.issuperset(origin.variables)), None)


def send(number: int, origins: Collection[Origin], processes: dict[Origin, list[int]]) -> None:
    """Send a signal to the process groups of origins, and to those of their processes that have left the group."""
    for origin in origins:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(origin.group, number)
        for process in processes.get(origin, ()):
            with suppress(ProcessLookupError, PermissionError):
                if os.getpgid(process) != origin.group:
                    os.kill(process, number)
