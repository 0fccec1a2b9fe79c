"""``monitored_barrier``: a barrier whose error names the missing ranks.

The texts of its errors begin as Gloo's do, because scripts look for those.
"""

from __future__ import annotations

import time
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ...comm import Comm
from ...errors import Timeout
from ...work import Work
from .messages import Messages

__all__ = ["MonitoredBarrier"]

_CALL = "monitored_barrier"
_TAG = 0
_Numbers = npt.NDArray[np.int64]


class MonitoredBarrier:
    """Rank 0 collects one check-in message per rank, then tells every rank that checked in which ranks are missing.

    Messages carry the number of the barrier. Rank 0 ignores a check-in to an earlier barrier: that rank came too late
    and raises its own time-out.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm, self._messages = comm, Messages(comm, _CALL)
        self._number = 0
        #: Receives under way, by source rank. They may have begun in an earlier barrier.
        self._receives: dict[int, tuple[Work[Any], _Numbers]] = {}

    def wait(self, seconds: float | None, wait_all_ranks: bool) -> None:
        """Return on all ranks once all are here. Collective.

        ``wait_all_ranks`` affects only the error's text: whether it begins with all missing ranks or with the first.

        Raises
        ------
        Timeout
            Names the missing ranks, on rank 0 and on all ranks that came.
        """
        self._number += 1
        missing = self._check_in(seconds) if self._comm.rank else self._collect(seconds)
        if missing:
            first = missing if wait_all_ranks else missing[:1]
            cause = f"{_ranks(first)} failed to pass monitoredBarrier"
            if len(first) < len(missing):
                cause += f", nor did {_ranks(missing[1:]).lower()}"
            self._raise_timeout(cause, seconds, missing)

    def _collect(self, seconds: float | None) -> list[int]:
        """Rank 0's part. Returns the missing ranks."""
        until, others = _deadline(seconds), range(1, self._comm.size)
        # Start all receives first: waiting for a missing rank leaves no time for the ranks after it.
        for rank in others:
            self._start_receive(rank, 1)
        missing = [rank for rank in others if self._receive(rank, 1, until) is None]
        answer = np.zeros(self._comm.size, np.int64)
        answer[0] = self._number
        answer[missing] = 1
        for rank in set(others).difference(missing):
            self._send(rank, answer)
        return missing

    def _check_in(self, seconds: float | None) -> list[int]:
        """The other ranks' part. Returns the missing ranks, as rank 0 names them."""
        self._send(0, np.array([self._number], np.int64))
        # Rank 0 may come one time-out later than this rank, and answer up to one time-out after that.
        answer = self._receive(0, self._comm.size, _deadline(None if seconds is None else 2 * seconds))
        if answer is None:
            cause = "it does not answer, so it is not here, or gave up before this rank came"
            self._raise_timeout(cause, seconds, [0])
        return [rank for rank in range(1, self._comm.size) if answer[rank]]

    def _raise_timeout(self, cause: str, seconds: float | None, missing: list[int]) -> NoReturn:
        me = f"Rank {self._comm.rank}"
        if self._comm.rank == 0:
            text = f"{me} timed out in monitoredBarrier after {seconds} s: {cause}"
        else:
            text = (
                f"{me} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
                f"rank 0: {cause} (timeout: {seconds} s)"
            )
        raise Timeout(text, missing=tuple(missing), call=_CALL)

    def _send(self, to: int, numbers: _Numbers) -> None:
        self._messages.send(to, _TAG, _described(numbers), numbers).wait()

    def _receive(self, rank: int, length: int, until: float | None) -> _Numbers | None:
        """A rank's message of this barrier, or None if it does not come in time."""
        while True:
            work, numbers = self._start_receive(rank, length)
            try:
                work.wait(None if until is None else max(0.0, until - time.monotonic()))
            except Timeout:
                if not work.done():
                    return None
                raise
            del self._receives[rank]
            if numbers[0] == self._number:
                return numbers

    def _start_receive(self, rank: int, length: int) -> tuple[Work[Any], _Numbers]:
        """The receive of a rank's next message, which may be under way since an earlier barrier."""
        if rank not in self._receives:
            numbers = np.empty(length, np.int64)
            self._receives[rank] = self._messages.receive(rank, _TAG, _described(numbers), numbers), numbers
        return self._receives[rank]

    def close(self) -> None:
        """Leave the group of its messages."""
        self._messages.close()


def _ranks(ranks: list[int]) -> str:
    return f"Rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _described(numbers: _Numbers) -> str:
    return f"{len(numbers)} words"


def _deadline(seconds: float | None) -> float | None:
    """The time at which a time-out that starts now is over."""
    return None if seconds is None else time.monotonic() + seconds
