"""Ordered worker: a thread that runs tasks in the order of their submission. Each task sets a promise."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .shutdown_threads import is_shutting_down, start_thread

__all__ = ["OrderedWorker", "Promise"]

_NOT_RUN = "the interpreter exits, and this task has not run"


class Promise:
    """The producer's end of a torch future: set to a value or to an error."""

    def __init__(self) -> None:
        self._is_set: torch.futures.Future[None] = torch.futures.Future()
        self._value: Any = None
        self._error: BaseException | None = None
        # C++ sees an error that a callback raises as an error, but one passed to `set_exception` as a value.
        self.future: torch.futures.Future[Any] = self._is_set.then(lambda _: self._outcome())

    def _outcome(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value

    def result(self) -> Any:
        """Wait for the value. Errors are raised with their own type; the future raises them as ``RuntimeError``."""
        self._is_set.wait()
        return self._outcome()

    def set_result(self, value: Any) -> None:
        """End with a value."""
        self._value = value
        self._is_set.set_result(None)

    def set_exception(self, error: BaseException) -> None:
        """End with an error."""
        self._error = error
        self._is_set.set_result(None)


_Queue = queue.SimpleQueue[tuple[Callable[[], None], Promise] | None]


class OrderedWorker:
    """A thread that runs tasks one after the other. It starts with the first task."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: _Queue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, task: Callable[[], None], promise: Promise) -> None:
        """Run a task after all earlier ones. If it raises, the promise ends with the error."""
        if is_shutting_down():
            return promise.set_exception(RuntimeError(_NOT_RUN))
        with self._lock:
            if self._thread is None:
                stop = partial(self._tasks.put, None)
                self._thread = start_thread(_run, (self._tasks,), self._name, stop)
                # The thread also ends when its worker is garbage.
                weakref.finalize(self, stop).atexit = False
        self._tasks.put((task, promise))

    def drain(self) -> None:
        """Wait until all tasks submitted so far have run."""
        if self._thread is not None and not is_shutting_down():
            done = Promise()
            self.submit(lambda: done.set_result(None), done)
            done.result()

    def is_current_thread(self) -> bool:
        """Whether the worker's thread calls this."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """End the thread after the tasks submitted so far."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._tasks.put(None)
            if thread is not threading.current_thread():
                thread.join()


def _run(tasks: _Queue) -> None:
    """Run tasks until None comes. (A method would keep its worker alive.)"""
    while (submitted := tasks.get()) is not None:
        task, promise = submitted
        try:
            if is_shutting_down():
                raise RuntimeError(_NOT_RUN)
            task()
        except BaseException as error:
            promise.set_exception(error)
        del submitted, task, promise  # release what the task holds before waiting for the next
