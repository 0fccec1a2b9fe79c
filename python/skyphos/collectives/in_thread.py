"""Calls that consist of several collectives, run on a thread in a group of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["InThread"]


class InThread:
    """A call under way on a thread, with the methods of a native one that :class:`skyphos.Work` uses.

    Examples
    --------
    >>> from skyphos.collectives.in_thread import InThread
    >>> from skyphos.work import Work
    >>> Work(InThread("sum", lambda: 1 + 2), lambda result: result).wait()
    3
    """

    def __init__(self, name: str, call: Callable[[], Any]) -> None:
        self.name = name
        self._call = call
        self._is_over = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None
        # A program that ends without waiting closes the group, which ends the call.
        threading.Thread(target=self._run, name=f"skyphos-{name}", daemon=True).start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error
        del self._call
        self._is_over.set()

    def done(self) -> bool:
        """True if the call is over."""
        return self._is_over.is_set()

    def wait(self, timeout: float | None) -> bool:
        """Wait for at most ``timeout`` seconds; return True if the call is over."""
        return self._is_over.wait(timeout)

    def note_failure(self) -> None:
        """Does nothing: failures of the call's own group end with that group."""

    def take(self) -> Any:
        """The result; raises the call's error."""
        if self._error is not None:
            raise self._error
        return self._result
