"""``monitored_barrier``: a barrier that says who is missing. Errors begin as Gloo's do, which scripts look for."""

from __future__ import annotations

import time
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ...comm import Comm
from ...errors import Timeout
from ...work import Work
from .messages import Messages

__all__ = ["Roll"]

_CALL = "monitored_barrier"
_TAG = 0
_Words = npt.NDArray[np.int64]


class Roll:
    """Rank 0 waits for a word of each other rank, and answers all that came: who did not.

    Words carry the number of the barrier. One of an earlier barrier is of a rank that came too late for it: its own
    time-out tells it, and here it is left aside.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm, self._messages = comm, Messages(comm, _CALL)
        self._number = 0
        #: Words that are awaited still, since an earlier barrier.
        self._awaited: dict[int, tuple[Work[Any], _Words]] = {}

    def call(self, seconds: float | None, wait_all_ranks: bool) -> None:
        """Return on all ranks once all are here. Collective. ``wait_all_ranks`` is how the error counts the missing.

        Raises
        ------
        Timeout
            Names those that did not come, on rank 0 and on all that came.
        """
        self._number += 1
        missing = self._come(seconds) if self._comm.rank else self._count(seconds)
        if missing:
            first = missing if wait_all_ranks else missing[:1]
            cause = f"{_ranks(first)} failed to pass monitoredBarrier"
            if len(first) < len(missing):
                cause += f", nor did {_ranks(missing[1:]).lower()}"
            self._time_out(cause, seconds, missing)

    def _count(self, seconds: float | None) -> list[int]:
        """Rank 0: who does not come."""
        until, others = _after(seconds), range(1, self._comm.size)
        # All at once: one that does not come uses up the time of those after it.
        for rank in others:
            self._expect(rank, 1)
        missing = [rank for rank in others if self._receive(rank, 1, until) is None]
        answer = np.zeros(self._comm.size, np.int64)
        answer[0] = self._number
        answer[missing] = 1
        for rank in set(others).difference(missing):
            self._send(rank, answer)
        return missing

    def _come(self, seconds: float | None) -> list[int]:
        """Another rank: who does not come, as rank 0 says."""
        self._send(0, np.array([self._number], np.int64))
        # Rank 0 may come by the time-out later, and answers by another one after that.
        answer = self._receive(0, self._comm.size, _after(None if seconds is None else 2 * seconds))
        if answer is None:
            self._time_out("it does not answer, so it is not here, or gave up before this rank came", seconds, [0])
        return [rank for rank in range(1, self._comm.size) if answer[rank]]

    def _time_out(self, cause: str, seconds: float | None, missing: list[int]) -> NoReturn:
        me = f"Rank {self._comm.rank}"
        if self._comm.rank == 0:
            text = f"{me} timed out in monitoredBarrier after {seconds} s: {cause}"
        else:
            text = (
                f"{me} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
                f"rank 0: {cause} (timeout: {seconds} s)"
            )
        raise Timeout(text, missing=tuple(missing), call=_CALL)

    def _send(self, to: int, words: _Words) -> None:
        self._messages.send(to, _TAG, _described(words), words).wait()

    def _receive(self, rank: int, length: int, until: float | None) -> _Words | None:
        """The words of a rank in this barrier; None, if they do not come in time."""
        while True:
            work, words = self._expect(rank, length)
            try:
                work.wait(None if until is None else max(0.0, until - time.monotonic()))
            except Timeout:
                if not work.done():
                    return None
                raise
            del self._awaited[rank]
            if words[0] == self._number:
                return words

    def _expect(self, rank: int, length: int) -> tuple[Work[Any], _Words]:
        """The word that a rank sends next, which may be awaited since an earlier barrier."""
        if rank not in self._awaited:
            words = np.empty(length, np.int64)
            self._awaited[rank] = self._messages.receive(rank, _TAG, _described(words), words), words
        return self._awaited[rank]

    def close(self) -> None:
        """Leave the group of its messages."""
        self._messages.close()


def _ranks(some: list[int]) -> str:
    return f"Rank{'s' * (len(some) > 1)} {', '.join(map(str, some))}"


def _described(words: _Words) -> str:
    return f"{len(words)} words"


def _after(seconds: float | None) -> float | None:
    """The moment when a time-out that begins now is over."""
    return None if seconds is None else time.monotonic() + seconds
