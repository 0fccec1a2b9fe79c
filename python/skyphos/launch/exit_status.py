"""Exit status of processes, and the status of a group that follows from them.

A process *died* if a signal killed it (a shell in between reports that as a status of 128 + signal), or if its host is
out of reach. A process that ends by itself with a status other than 0 has failed.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Exit", "group_status"]


@dataclass(frozen=True)
class Exit:
    """Exit of one process, or of all processes of a lost host.

    Attributes
    ----------
    who : str
        Rank and host, as text.
    code : int
        As :attr:`subprocess.Popen.returncode`: the status, or minus the signal.
    lost : bool
        ``code`` is that of the launcher's connection to the host; the status of the processes is unknown.

    Examples
    --------
    >>> from skyphos.launch.exit_status import Exit
    >>> print(Exit("rank 3 on n7", -9))
    rank 3 on n7 was killed by SIGKILL
    >>> print(Exit("rank 3 on n7", 2))
    rank 3 on n7 ended with status 2
    """

    who: str
    code: int
    lost: bool = False

    def __str__(self) -> str:
        how = f"was killed by {_name(-self.code)}" if self.code < 0 else f"ended with status {self.code}"
        return f"{self.who}: lost; the connection {how}" if self.lost else f"{self.who} {how}"

    @property
    def status(self) -> int:
        """The status as a shell reports it: 128 + signal if a signal killed the process."""
        return self.code if self.code >= 0 else 128 - self.code

    @property
    def died(self) -> bool:
        """True if a signal killed the process, or its host was lost."""
        return self.lost or 128 < self.status < 128 + signal.NSIG


def group_status(exits: Sequence[Exit]) -> int:
    """The status of a group that goes on when processes die, from the exits in order.

    0 if one or more ended with 0 and all others died. If processes failed by themselves, the status of the first of
    them, even where others ended with 0. If all died, the status of the first.

    Examples
    --------
    >>> from skyphos.launch.exit_status import Exit, group_status
    >>> group_status([Exit("rank 1", -9), Exit("rank 0", 0)])
    0
    >>> group_status([Exit("rank 1", -9), Exit("rank 0", 1), Exit("rank 2", 0)])
    1
    >>> group_status([Exit("rank 1", -9), Exit("rank 0", -15)])
    137
    """
    failed = [one.status for one in exits if one.status and not one.died]
    if failed:
        return failed[0]
    return 0 if any(one.status == 0 for one in exits) else exits[0].status


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
