"""Board: the state of an iteration's tasks, the same on all ranks, and the moves of tasks that follow from it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..vectors.sparse_vector import SparseVector

__all__ = ["Board", "Status"]

# Ranks exchange the maximum of a number per task. That of a completed task exceeds any running time, and is larger if a
# lower rank completed it, which decides between two copies.
_DONE = 1 << 40

# After the numbers of the tasks each rank has this many of its own: time of a task, threads, and idle threads.
_NUMBERS = 3

# A running task is copied when it has run this many times as long as a task takes on the rank of the copy, and at least
# this many seconds; shorter tasks are not worth a copy.
_SLOW, _LEAST = 1.5, 0.1


@dataclass
class Status:
    """The progress of one rank.

    Attributes
    ----------
    seconds : float
        Time of a task on this rank; 0 while unknown.
    threads, idle : int
        Number of threads, and of threads without work.
    running : dict of int to float
        Seconds since their start, of tasks that run or that only this rank may start.
    done : list of int
        Tasks completed since the last report.
    """

    seconds: float
    threads: int
    idle: int
    running: dict[int, float] = field(default_factory=dict)
    done: list[int] = field(default_factory=list)


class Board:
    """The tasks of an iteration.

    All ranks have the same board: it changes only by reports that all ranks receive, and its decisions depend on
    nothing else.

    Parameters
    ----------
    owner : sequence of int
        The rank of each task.
    size : int
        Ranks.
    near : sequence of collection of int
        For each task the ranks that can run it without a transfer of its data.

    Examples
    --------
    >>> from skyphos.mapreduce.board import Board, Status
    >>> board = Board([0, 0, 0, 0, 1], 2, [{0, 1}] * 5)
    >>> quick = board.encode(1, Status(seconds=0.1, threads=1, idle=1, done=[4]))
    >>> slow = board.encode(0, Status(seconds=1.0, threads=1, idle=0, running={0: 0.2}))
    >>> import numpy as np
    >>> board.update(np.concatenate([quick.indices, slow.indices]), np.concatenate([quick.values, slow.values]))
    [(4, {1})]
    >>> board.moves()  # of the three that wait on rank 0, the last first
    [(3, 1), (2, 1), (1, 1)]
    """

    def __init__(self, owner: Sequence[int] | npt.NDArray[np.int64], size: int, near: Sequence[Collection[int]]):
        self._size, self._near = size, near
        #: Owner of each task, as of the last decision.
        self.owner = np.array(owner, np.int64)
        #: The rank that completed each task first, or -1.
        self.winner = np.full(len(self.owner), -1, np.int64)
        #: The rank that runs a second copy of a task.
        self.copies: dict[int, int] = {}
        self._running: dict[int, float] = {}
        self._seconds = np.zeros(size)
        self._threads = np.ones(size, np.int64)
        self._idle = np.zeros(size, np.int64)

    @property
    def is_complete(self) -> bool:
        """True if all tasks are completed."""
        return bool((self.winner >= 0).all())

    @property
    def quickest(self) -> float:
        """Seconds of a task on the fastest rank; 0 while unknown."""
        return float(min(self._seconds[self._seconds > 0], default=0.0))

    def encode(self, rank: int, status: Status) -> SparseVector:
        """The progress of a rank as a vector; ranks exchange the maximum of all of them."""
        count = len(self.owner)
        entries = {task: 1 + min(int(seconds * 1e3), _DONE >> 1) for task, seconds in status.running.items()}
        entries |= dict.fromkeys(status.done, _DONE + self._size - rank)
        base = count + _NUMBERS * rank
        entries |= {base: 1 + int(status.seconds * 1e6), base + 1: 1 + status.threads, base + 2: 1 + status.idle}
        return SparseVector(list(entries), np.array(list(entries.values()), np.int64), n=count + _NUMBERS * self._size)

    def update(self, indices: npt.NDArray[np.int64], values: npt.NDArray[np.int64]) -> list[tuple[int, set[int]]]:
        """Apply the maximum over all ranks; return newly completed tasks, each with the ranks that were to run it."""
        completed = []
        count = len(self.owner)
        indices, values = np.asarray(indices, np.int64), np.asarray(values, np.int64)
        of_tasks = indices < count
        self._running.clear()
        for task, value in zip(indices[of_tasks].tolist(), values[of_tasks].tolist(), strict=True):
            if value < _DONE:
                self._running[task] = (value - 1) / 1e3
            elif self.winner[task] < 0:
                owner = int(self.owner[task])
                completed.append((task, {owner, self.copies.pop(task, owner)}))
                self.winner[task] = self.owner[task] = self._size - (value - _DONE)
        for task in [task for task in self._running if self.winner[task] >= 0]:
            del self._running[task]  # the slower copy
        numbers = np.zeros(_NUMBERS * self._size, np.int64)
        numbers[indices[~of_tasks] - count] = values[~of_tasks] - 1
        by_rank = numbers.reshape(self._size, _NUMBERS)
        self._seconds, self._threads, self._idle = by_rank[:, 0] / 1e6, np.maximum(by_rank[:, 1], 1), by_rank[:, 2]
        return completed

    def _task_seconds(self) -> npt.NDArray[np.float64]:
        """Seconds per task of each rank with all its threads; where unknown, the median of other ranks."""
        known = self._seconds[self._seconds > 0]
        usual = float(np.median(known)) if known.size else 1.0
        return np.where(self._seconds > 0, self._seconds, usual) / self._threads

    def moves(self) -> list[tuple[int, int]]:
        """Pairs of a waiting task and the rank with idle threads to which it moves.

        Tasks move as long as that lets the rank that would end last end earlier.
        """
        idle = np.flatnonzero(self._idle > 0)
        left = self.winner < 0
        if not idle.size or not left.any():
            return []
        each = self._task_seconds()
        loads = np.bincount(self.owner[left], minlength=self._size)
        for rank in self.copies.values():
            loads[rank] += 1
        ends = loads * each
        waiting: list[list[int]] = [[] for _ in range(self._size)]
        for task in np.flatnonzero(left).tolist():
            if task not in self._running:
                waiting[self.owner[task]].append(task)
        moved: list[tuple[int, int]] = []
        while True:
            givers = [rank for rank in range(self._size) if waiting[rank] and self._idle[rank] == 0]
            if not givers:
                return moved
            giver = max(givers, key=lambda rank: float(ends[rank]))
            taker = int(idle[np.argmin((ends + each)[idle])])
            if ends[taker] + each[taker] >= ends[giver]:
                return moved
            givable = waiting[giver]
            task = next((task for task in reversed(givable) if taker in self._near[task]), givable[-1])
            givable.remove(task)
            self.owner[task] = taker
            ends[giver] -= each[giver]
            ends[taker] += each[taker]
            moved.append((task, taker))

    def second_copies(self) -> list[tuple[int, int]]:
        """Pairs of a running task and the rank with idle threads that runs a copy of it, the slowest task first.

        A copy goes to a rank on which tasks take far less time than the running one has taken.
        """
        each = self._task_seconds() * self._threads
        free = {int(rank): int(self._idle[rank]) for rank in np.flatnonzero(self._idle > 0)}
        for rank in self.copies.values():
            free.pop(rank, None)  # one copy per rank at a time
        # Waiting tasks go to any rank with idle threads; they are not copied.
        if any(self.winner[task] < 0 and task not in self._running for task in range(len(self.owner))):
            return []
        begun = []
        for task, seconds in sorted(self._running.items(), key=lambda one: (-one[1], one[0])):
            takers = [rank for rank in free if rank != self.owner[task] and seconds > max(_SLOW * each[rank], _LEAST)]
            if task in self.copies or not takers:
                continue
            taker = min(takers, key=lambda rank: (rank not in self._near[task], float(each[rank]), rank))
            free.pop(taker)
            self.copies[task] = taker
            begun.append((task, taker))
        return begun
