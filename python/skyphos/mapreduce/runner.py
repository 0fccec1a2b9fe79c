"""Runner: threads of one rank that run tasks, which other ranks may take over or copy."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from time import perf_counter

from .board import Status

__all__ = ["GivenUp", "Runner"]

# Shortest and longest time between two exchanges with the other ranks, in seconds.
_SHORTEST, _LONGEST = 2e-3, 5e-2


class GivenUp(Exception):
    """Raised when a task hands over output after another rank has completed it."""


class Runner:
    """Runs tasks on threads.

    While ranks exchange their progress (:meth:`report` to :meth:`go_on`), only tasks start that were reported as
    running. Threads are daemons: one that is still in a task which another rank has completed is not waited for.

    Parameters
    ----------
    tasks : list of int
        The tasks, in the order in which they run.
    threads : int
        Number of threads.
    work : callable
        (task) → None; runs the task, and passes its output to :meth:`hand_over`.
    """

    def __init__(self, tasks: list[int], threads: int, work: Callable[[int], None]) -> None:
        self._work, self._threads = work, threads
        self._changed = threading.Condition()
        self._waiting = deque(tasks)
        #: Waiting tasks that may start while ranks exchange their progress.
        self._claimed: deque[int] = deque()
        self._started: dict[int, float] = {}
        self._done: list[int] = []
        self._copies: set[int] = set()
        self._failed: BaseException | None = None
        self._exchanging, self._closed = False, False
        self._dropped: set[int] = set()
        self._output_locks: dict[int, threading.Lock] = {}
        #: Seconds of all tasks that this rank completed, and their number.
        self._completed_s, self._completed = 0.0, 0
        self._exchange_s, self._exchange_start = 0.0, 0.0
        #: Tasks of other ranks that this rank took over, and those that it began a copy of.
        self.taken, self.copied = 0, 0

    def start(self) -> None:
        """Start the threads."""
        for number in range(self._threads):
            threading.Thread(target=self._run, name=f"skyphos-map-{number}", daemon=True).start()

    def _run(self) -> None:
        while (task := self._next()) is not None:
            failed: BaseException | None = None
            try:
                self._work(task)
            except BaseException as error:  # any error ends the job
                failed = error
            with self._changed:
                seconds = perf_counter() - self._started.pop(task)
                if task in self._dropped:
                    continue
                if failed is None:
                    self._done.append(task)
                    self._completed_s, self._completed = self._completed_s + seconds, self._completed + 1
                elif task in self._copies:
                    self._dropped.add(task)  # the owner of the task will report the error
                elif self._failed is None:
                    self._failed = failed
                self._changed.notify_all()

    def _next(self) -> int | None:
        with self._changed:
            while not self._closed:
                queue = self._claimed or (None if self._exchanging else self._waiting)
                if queue:
                    task = queue.popleft()
                    self._started[task] = perf_counter()
                    self._output_locks[task] = threading.Lock()
                    return task
                # Wake `wait`: a thread is idle.
                self._changed.notify_all()
                self._changed.wait()
            return None

    @property
    def _seconds(self) -> float:
        """Mean seconds of a task; running tasks count once they have taken longer than completed ones."""
        now = perf_counter()
        mean_seconds = self._completed_s / self._completed if self._completed else 0.0
        running = (now - started for task, started in self._started.items() if task not in self._dropped)
        return max(mean_seconds, max(running, default=0.0))

    @property
    def _idle(self) -> int:
        wanted = len(self._started) + len(self._claimed) + len(self._waiting)
        return max(0, self._threads - wanted)

    def wait(self, quickest: float) -> None:
        """Wait until ranks are to exchange their progress: for a share of ``quickest``, or until a thread is idle.

        ``quickest`` is the time of a task on the fastest rank.
        """
        with self._changed:
            pause = min(max(quickest / 8, _SHORTEST), _LONGEST)
            end = perf_counter() + pause
            while (rest := end - perf_counter()) > 0 and not self._failed and not self._idle:
                self._changed.wait(rest)

    def report(self) -> Status:
        """The progress of this rank. Until :meth:`go_on` only tasks that it lists as running are begun.

        Raises
        ------
        Exception
            The exception that a task raised.
        """
        with self._changed:
            if self._failed is not None:
                raise self._failed
            self._exchanging, self._exchange_start = True, perf_counter()
            seconds = self._seconds
            # The number of tasks that may start until the other ranks have answered.
            claims = math.ceil(2 * self._threads * self._exchange_s / seconds - 0.1) if seconds else 0
            while self._claimed:
                self._waiting.appendleft(self._claimed.pop())
            for _ in range(min(claims, len(self._waiting))):
                self._claimed.append(self._waiting.popleft())
            now, unlisted = perf_counter(), self._dropped | self._copies
            own = {task: now - at for task, at in self._started.items() if task not in unlisted}
            done, self._done = self._done, []
            running = dict.fromkeys(self._claimed, 0.0) | own
            return Status(seconds, self._threads, self._idle, running, done)

    def go_on(self, gained: list[int], lost: list[int], copies: list[int]) -> None:
        """Resume starting tasks, with those taken over from other ranks and without those given away."""
        with self._changed:
            seconds_taken = perf_counter() - self._exchange_start
            self._exchange_s = seconds_taken if not self._exchange_s else 0.5 * (self._exchange_s + seconds_taken)
            for task in lost:
                self._waiting.remove(task)
            self._waiting.extend(gained + copies)
            self._copies.update(copies)
            self.taken += len(gained)
            self.copied += len(copies)
            self._exchanging = False
            self._changed.notify_all()

    def drop(self, task: int) -> None:
        """Stop storing output of a task that another rank has completed."""
        with self._changed:
            if task in self._waiting:
                self._waiting.remove(task)
            self._dropped.add(task)
            lock = self._output_locks.get(task)
            self._changed.notify_all()
        if lock is not None:
            with lock:
                pass

    def hand_over(self, task: int, put: Callable[[], None]) -> None:
        """Run ``put``, which stores the output of a task, unless another rank has completed the task.

        Raises
        ------
        GivenUp
            If another rank has completed the task, or the run is over.
        """
        with self._output_locks[task]:
            if task in self._dropped or self._closed:
                raise GivenUp
            put()

    def close(self) -> None:
        """Start no more tasks, and store no more output of running ones."""
        with self._changed:
            self._closed = True
            locks = list(self._output_locks.values())
            self._changed.notify_all()
        for lock in locks:
            with lock:
                pass
