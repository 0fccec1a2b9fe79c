"""Health: the state of the processes of a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from . import _skyphos as native

__all__ = ["Health", "Loss", "health_of"]

Loss = Literal["left", "ended", "silent"]


@dataclass(frozen=True)
class Health:
    """How a process of a group is, as this one sees it (:meth:`Comm.health`).

    Attributes
    ----------
    process, rank, replica : int
        Its number among all processes, the rank that it is, and which replica of that rank, in the group that
        :func:`skyphos.init` made. Without replication process and rank are the same.
    address : str
        Host and address.
    lost : {"left", "ended", "silent"} or None
        None: it is there. Else it said goodbye; or its process has ended; or nothing is heard of it.
    cause : str or None
        How that was noticed.
    late : bool
        It is a replica of this process's rank and did not bring in time what it owed of a message above 4 KB, which
        replicas share out; this one sends in its place until it does. Other processes may not know.
    silent_s : float or None
        Seconds since something came from it; None where nobody knows (without replication, and of this process).
    won, beaten : int
        Chunks of messages that came from it first, and after another replica had brought them.
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
        """Whether it is there, as far as this process knows."""
        return self.lost is None


def health_of(comm: native.Comm) -> list[Health]:
    """All processes of a group's connections, by number."""
    return [
        Health(
            one.process,
            one.rank,
            one.replica,
            one.address,
            one.lost,
            one.cause,
            one.late,
            one.silent_s,
            one.won,
            one.beaten,
        )
        for one in comm.health()
    ]
