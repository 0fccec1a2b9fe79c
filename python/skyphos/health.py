"""Health: the state of the processes of a group."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from . import _skyphos as native

__all__ = ["Health", "Loss", "health_of"]

Loss = Literal["left", "ended", "silent"]


@dataclass(frozen=True)
class Health:
    """State of a process of a group, as seen by this process (:meth:`Comm.health`).

    Attributes
    ----------
    process, rank, replica : int
        Number of the process, its rank, and its number among the replicas of that rank, in the group that
        :func:`skyphos.init` made. Without replication process and rank are the same.
    address : str
        Host and address.
    lost : {"left", "ended", "silent"} or None
        None: the process is alive. "left": it closed the group; "ended": it died; "silent": it does not answer.
    cause : str or None
        How the loss was noticed.
    late : bool
        True for a replica of this process's rank that did not send its part of a message in time. Replicas divide
        messages above 4 KB; this process sends for the late one until it is in time again. Other processes may not
        know.
    silent_s : float or None
        Seconds since the last data from it; None if unknown (without replication, and for this process).
    won, beaten : int
        Chunks of messages that arrived from it first, and after another replica's copy.
    """

    process: int
    rank: int
    replica: int
    address: str
    lost: Loss | None
    cause: str | None
    late: bool
    silent_s: float | None
    won: int
    beaten: int

    @property
    def alive(self) -> bool:
        """True if the process is alive, as far as this one knows."""
        return self.lost is None


def health_of(comm: native.Comm) -> list[Health]:
    """State of each process of the group that :func:`skyphos.init` made, by number."""
    names = [field.name for field in fields(Health)]
    return [Health(*(getattr(one, name) for name in names)) for one in comm.health()]
