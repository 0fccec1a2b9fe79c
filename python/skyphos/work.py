"""Work: the handle of a non-blocking call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .errors import PeerLost, SkyphosError, Timeout
from .inputs.settings import real

if TYPE_CHECKING:
    from . import _skyphos
    from .collectives.in_thread import InThread

__all__ = ["Work", "perform"]

T = TypeVar("T")


class Work(Generic[T]):
    """Handle of a call under way; collectives return it with ``async_op=True``.

    All ranks make a group's calls, blocking or not, in the same order; they complete, and may be waited for, in any
    order. A call proceeds without being waited for. If its operation is a ufunc, it proceeds only while this process
    waits for some call, because Python code runs on the caller's threads. Do not write to arrays passed to a call
    before it is done. Closing the group ends its unfinished calls with an error on all ranks.

    Dropping a Work does not stop its call. A program that catches an exception, such as Ctrl-C, between a call and its
    ``wait()`` must wait for the call before it repeats the step: otherwise its next call meets a call of another step.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     work = comm.allreduce(np.array([1.0, 2.0]), async_op=True)
    ...     work.wait()
    array([1., 2.])
    """

    def __init__(
        self, native: _skyphos.Work | InThread, finish: Callable[[Any], T], failed: Callable[[], None] | None = None
    ) -> None:
        self._native = native
        self._failed = failed
        self._finish: Callable[[Any], T] | None = finish
        self._lock = threading.Lock()
        self._result: T | None = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"Work({self._native.name}, {'done' if self.done() else 'under way'})"

    def done(self) -> bool:
        """True if the call is over, with a result or an error. Does not wait."""
        return self._native.done()

    def wait(self, timeout: float | None = None) -> T:
        """Wait for the result, which is bitwise that of the blocking call.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None: until the call is over (the group's own time-out still ends it).

        Returns
        -------
        The result; later calls return the same object.

        Raises
        ------
        Timeout
            If the call is not done after ``timeout``; it continues, and may be waited for again.
        SkyphosError
            The error of the call, at each wait. Ctrl-C is raised once; later waits raise an error that names it.
        """
        self._settle(timeout)
        error = self._error
        if error is None:
            return self._result  # type: ignore[return-value]
        if not isinstance(error, Exception):
            self._error = SkyphosError(f"{self._native.name} was ended on this rank by {type(error).__name__}")
        raise error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the call's end and return its error, or None if it succeeded."""
        self._settle(timeout)
        return self._error

    def _settle(self, timeout: float | None) -> None:
        timeout = None if timeout is None else real(timeout, "timeout", 0.0)
        if not self._native.wait(timeout):
            call = self._native.name
            raise Timeout(f"{call} is not done after {timeout:g} s; it goes on: wait again", call=call)
        with self._lock:
            if self._finish is None:
                return
            finish, self._finish = self._finish, None
            try:
                self._result = finish(self._native.take())
            except BaseException as error:
                self._error = error
                if not isinstance(error, PeerLost):
                    self._native.note_failure()
                if self._failed is not None:
                    self._failed()

    def __await__(self) -> Generator[Any, None, T]:
        """Wait without blocking the event loop: another thread waits."""
        import asyncio  # imported here: it takes as long as all other imports together

        return asyncio.get_running_loop().run_in_executor(None, self.wait).__await__()


def perform(
    started: Any, async_op: bool, finish: Callable[[Any], T], failed: Callable[[], None] | None = None
) -> T | Work[T]:
    """The result of a native call, converted by ``finish``; with ``async_op`` the Work that will convert it.

    ``started`` is the call's native result, or with ``async_op`` its native work. ``failed`` is called if the Work ends
    with an error.
    """
    return Work(started, finish, failed) if async_op else finish(started)
