"""What ``torch.distributed`` gets for a call: a ``Work`` with a future."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import Work as C10dWork

from ..errors import Timeout

__all__ = ["Completion", "TorchWork"]


class _Waits(Protocol):
    """A call of ours that is under way, or several."""

    def done(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> Any: ...
    def exception(self, timeout: float | None = None) -> BaseException | None: ...


class Completion:
    """A thread that waits for calls whose futures somebody asked for, in the order in which they were made."""

    def __init__(self) -> None:
        self._awaited: queue.SimpleQueue[TorchWork | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def add(self, work: TorchWork) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="skyphos-futures", daemon=True)
                self._thread.start()
        self._awaited.put(work)

    def _run(self) -> None:
        while (work := self._awaited.get()) is not None:
            work.settle()

    def close(self) -> None:
        """Ends the thread after what it was given."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._awaited.put(None)
            if thread is not threading.current_thread():
                thread.join()


class TorchWork(C10dWork):
    """One call.

    ``torch.distributed`` hands callers a C++ object that asks this one to wait, and for its future. ``is_completed`` it
    answers itself, with False: ``get_future().done()`` says how it is.

    Parameters
    ----------
    call : Work, several, or None
        Ours; None where the call is over.
    finish : callable
        Puts what came into the caller's tensors; called once.
    outputs : list of Tensor
        What the future gives.
    """

    def __init__(
        self,
        call: _Waits | None,
        finish: Callable[[Any], None],
        outputs: list[Any],
        completion: Completion,
    ) -> None:
        super().__init__()
        self._call, self._finish, self._outputs, self._completion = call, finish, outputs, completion
        self._lock = threading.Lock()
        self._over = call is None
        self._error: BaseException | None = None
        self._end: torch.futures.Future[None] = torch.futures.Future()
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Wait until the caller's tensors hold the result; raises what the call ended with."""
        seconds = timeout.total_seconds()
        self._settle(seconds if seconds > 0 else None)
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensors of the result, or of the error."""
        with self._lock:
            ask = self._future is None
            if self._future is None:
                # What a callback raises is an error to C++ too; what `set_exception` sets is a value there.
                self._future = self._end.then(lambda _: self._outcome())
            future = self._future
        if ask and self._over:
            self._end.set_result(None)
        elif ask:
            self._completion.add(self)
        return future

    def settle(self) -> None:
        """Wait for the end, and tell the future."""
        self._settle(None)
        self._end.set_result(None)

    def _outcome(self) -> list[Any]:
        if self._error is not None:
            raise self._error
        return self._outputs

    def _settle(self, seconds: float | None) -> None:
        if self._over:
            return
        assert self._call is not None
        try:
            came = self._call.wait(seconds)
        except Timeout:
            if not self._call.done():
                raise  # it goes on
            came = None
        except Exception:
            came = None
        with self._lock:
            if self._over:
                return
            try:
                self._error = self._call.exception()
                if self._error is None:
                    self._finish(came)
            except Exception as error:
                self._error = error
            self._over = True
