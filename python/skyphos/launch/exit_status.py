"""How the processes of a group ended, and what that makes of the group.

A process *died* if a signal killed it (a shell in between says so by a status of 128 + signal), or if its host is out
of reach. One that ends by itself with a status other than 0 says that something is wrong.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Ending", "group_status"]


@dataclass(frozen=True)
class Ending:
    """The end of one process, or of all that were on a host which was lost.

    Attributes
    ----------
    who : str
        Which rank, on which host.
    code : int
        As :attr:`subprocess.Popen.returncode`: the status, or minus the signal.
    lost : bool
        It is the launcher's connection to ``who`` that ended so; nothing more will be heard of them.

    Examples
    --------
    >>> from skyphos.launch.exit_status import Ending
    >>> print(Ending("rank 3 on n7", -9))
    rank 3 on n7 was killed by SIGKILL
    >>> print(Ending("rank 3 on n7", 2))
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
        """As a shell gives it: 128 + signal if killed by one."""
        return self.code if self.code >= 0 else 128 - self.code

    @property
    def died(self) -> bool:
        """Whether it was killed or lost, and did not end by itself."""
        return self.lost or 128 < self.status < 128 + signal.NSIG


def group_status(endings: Sequence[Ending]) -> int:
    """The status of a group that goes on without processes that die, from how they ended, in order.

    0 if one or more ended with 0 and all others died. A process that ends by itself with another status has something
    to tell, whoever else ended well: the first such status. If all died, that of the first.

    Examples
    --------
    >>> from skyphos.launch.exit_status import Ending, group_status
    >>> group_status([Ending("rank 1", -9), Ending("rank 0", 0)])
    0
    >>> group_status([Ending("rank 1", -9), Ending("rank 0", 1), Ending("rank 2", 0)])
    1
    >>> group_status([Ending("rank 1", -9), Ending("rank 0", -15)])
    137
    """
    failed = [one.status for one in endings if one.status and not one.died]
    if failed:
        return failed[0]
    return 0 if any(one.status == 0 for one in endings) else endings[0].status


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
