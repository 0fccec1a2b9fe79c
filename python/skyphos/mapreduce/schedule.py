"""Schedules of tasks: static, dynamic (idle ranks take over tasks) and speculative (idle ranks copy slow ones)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ..collectives.agreement import fail
from .board import Board
from .runner import Runner

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["Schedule", "Scheduled", "Store", "run_scheduled"]

#: ``static``: as assigned; ``dynamic``: waiting tasks move to ranks with idle threads; ``speculative``: also tasks that
#: take far longer than others are copied there, and the first copy to end counts.
Schedule = Literal["static", "dynamic", "speculative"]


class Store(Protocol):
    """Takes the results of tasks: a :class:`skyphos.shuffle.Shuffle`."""

    def hold(self, task: int) -> None:
        """Mark the output of a task as provisional: it may still be dropped."""

    def release(self, task: int) -> None:
        """Accept the output of a task."""

    def drop(self, task: int) -> None:
        """Drop the output of a task."""


@dataclass(frozen=True)
class Scheduled:
    """The result of a schedule on this rank.

    Attributes
    ----------
    owner : ndarray of int64
        The rank that completed each task first.
    taken, copied : int
        Numbers of tasks that this rank took over from others, and that it copied.
    """

    owner: npt.NDArray[np.int64]
    taken: int
    copied: int


def run_scheduled(
    comm: Comm,
    owner: npt.NDArray[np.int64],
    near: Sequence[Collection[int]],
    *,
    threads: int,
    work: Callable[[int, Callable[[Callable[[], None]], None]], None],
    bring: Callable[[list[tuple[int, int]]], None],
    store: Store,
    copies: bool,
) -> Scheduled:
    """Run all tasks. Collective.

    Parameters
    ----------
    owner : ndarray of int64
        The rank to which each task is assigned at first.
    near : sequence of collection of int
        For each task the ranks that can run it without a transfer of its data.
    threads : int
        Concurrent tasks of this rank.
    work : callable
        (task, hand_over) → None; runs the task, and passes functions that store its output to ``hand_over``.
    bring : callable
        ([(task, rank)]) → None; transfers the data of tasks to ranks that lack them. Called on all ranks.
    store : Store
        Takes the results of tasks.
    copies : bool
        Whether tasks that take far longer than others are copied to a second rank.

    Raises
    ------
    Exception
        On all ranks, the exception that a task raised.
    """
    me, board = comm.rank, Board(owner, comm.size, near)

    def run(task: int) -> None:
        if copies:
            store.hold(task)
        work(task, lambda put: runner.hand_over(task, put))

    runner = Runner(np.flatnonzero(owner == me).tolist(), threads, run)
    runner.start()
    try:
        while True:
            runner.wait(board.quickest)
            try:
                status = runner.report()
            except BaseException as error:  # an error of a task
                fail(comm, error)
            maxima = comm.allreduce(board.encode(me, status), op="max", algorithm="recursive_doubling")
            try:
                for task, assigned in board.update(maxima.indices, maxima.values):
                    if board.winner[task] == me:
                        store.release(task)
                    elif me in assigned:
                        runner.drop(task)
                        store.drop(task)
            except BaseException as error:  # for instance a full disk, where output goes to a file
                fail(comm, error)
            if board.is_complete:
                return Scheduled(board.owner, runner.taken, runner.copied)
            owner_before = board.owner.copy()
            moves = board.moves()
            second = board.second_copies() if copies else []
            if moves or second:
                bring(moves + second)
            lost = [task for task, _ in moves if owner_before[task] == me]
            runner.go_on([task for task, to in moves if to == me], lost, [task for task, to in second if to == me])
    finally:
        runner.close()
