"""Work that is done in order beside the caller's thread, and the futures that tell of it."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .shutdown_threads import begin, is_ending

__all__ = ["Answer", "Line"]

_ENDS = "the interpreter ends, and this has not begun"


class Answer:
    """A torch future, and how it ends: with a value, or with an error that who waits for it gets."""

    def __init__(self) -> None:
        self._end: torch.futures.Future[None] = torch.futures.Future()
        self._value: Any = None
        self._error: BaseException | None = None
        # What a callback raises is an error to C++ too; what `set_exception` sets is a value there.
        self.future: torch.futures.Future[Any] = self._end.then(lambda _: self._outcome())

    def _outcome(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value

    def result(self) -> Any:
        """Wait for the value; an error is raised as what it is. (Who waits for the future gets a ``RuntimeError``.)"""
        self._end.wait()
        return self._outcome()

    def give(self, value: Any) -> None:
        """End with a value."""
        self._value = value
        self._end.set_result(None)

    def fail(self, error: BaseException) -> None:
        """End with an error."""
        self._error = error
        self._end.set_result(None)


class Line:
    """A thread that does what it is told, one thing after the other. It begins with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: queue.SimpleQueue[tuple[Callable[[], None], Answer] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def put(self, what: Callable[[], None], answer: Answer) -> None:
        """Do this after all before it; if it raises, that is the answer."""
        if is_ending():
            return answer.fail(RuntimeError(_ENDS))
        with self._lock:
            if self._thread is None:
                end = partial(self._told.put, None)
                self._thread = begin(_do, (self._told,), self._name, end)
                # It ends with a line that nobody has any more, too.
                weakref.finalize(self, end).atexit = False
        self._told.put((what, answer))

    def drain(self) -> None:
        """Wait until all that it was told is done."""
        if self._thread is not None and not is_ending():
            done = Answer()
            self.put(lambda: done.give(None), done)
            done.result()

    def is_here(self) -> bool:
        """Whether this thread is the line's own."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """End the thread after what it was told."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._told.put(None)
            if thread is not threading.current_thread():
                thread.join()


def _do(told: queue.SimpleQueue[tuple[Callable[[], None], Answer] | None]) -> None:
    """Do what a line is told until it says no more. (Not its method: a thread would keep it.)"""
    while (one := told.get()) is not None:
        what, answer = one
        try:
            if is_ending():
                raise RuntimeError(_ENDS)
            what()
        except BaseException as error:
            answer.fail(error)
        del one, what, answer  # the next may be long in coming
