"""The ``Work`` that ``torch.distributed`` gets for a call, with its future."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import Work as C10dWork

from ...errors import Timeout
from .ordered_worker import OrderedWorker, Promise
from .queries import is_query
from .shutdown_threads import start_thread
from .untraced import untraced

__all__ = ["TorchWork"]


class _Call(Protocol):
    """One or several Skyphos calls under way."""

    def done(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> Any: ...
    def exception(self, timeout: float | None = None) -> BaseException | None: ...


@untraced
class TorchWork(C10dWork):
    """One call.

    ``torch.distributed`` hands callers a C++ object, which calls ``wait`` and ``get_future`` of this one. Its other
    methods come here through :mod:`skyphos.torch.backend.queries`.

    Parameters
    ----------
    call : Work, several, or None
        The Skyphos call. None if it is over.
    finish : callable
        Copies the call's result into the caller's tensors. Called once.
    outputs : list of Tensor
        The future's value.
    worker : OrderedWorker or None
        Waits for the call if a caller asks for its future. None: a new thread waits for it, because it is a message,
        which may end before earlier ones.

    Attributes
    ----------
    source : int or None
        The sender's rank, once a receive is over.
    """

    def __init__(
        self, call: _Call | None, finish: Callable[[Any], None], outputs: list[Any], worker: OrderedWorker | None
    ) -> None:
        super().__init__()
        self._call, self._finish, self._outputs, self._worker = call, finish, outputs, worker
        self._lock = threading.Lock()
        self._is_over = call is None
        self._error: BaseException | None = None
        self._promise: Promise | None = None
        self.source: int | None = None

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Wait until the caller's tensors hold the result. Raises the call's error."""
        seconds = timeout.total_seconds()
        self._settle(seconds if seconds > 0 else None)
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether the call is over, and the caller's tensors hold the result if it succeeded. Does not wait."""
        if not self._is_over and self._call is not None and self._call.done():
            self._settle(None)
        return self._is_over

    def is_success(self) -> bool:
        """Whether the call is over and succeeded."""
        return self.is_completed() and self._error is None

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the result's tensors, or of the error."""
        if is_query(self):
            return torch.futures.Future()
        with self._lock:
            known = self._promise
            promise = self._promise = known or Promise()
        if known is None:
            self._settle_later(promise)
        return promise.future

    def _settle_later(self, promise: Promise) -> None:
        """Have the promise end as the call does."""
        if self._is_over:
            self._end(promise)
        elif self._worker is None:
            start_thread(self._settle_and_end, (promise,), "skyphos-message", lambda: None)
        elif self._worker.is_current_thread():
            # A callback that the worker runs asks for this future. Queued behind that callback, it might never end.
            self._settle_and_end(promise)
        else:
            self._worker.submit(lambda: self._settle_and_end(promise), promise)

    def _settle_and_end(self, promise: Promise) -> None:
        self._settle(None)
        self._end(promise)

    def _end(self, promise: Promise) -> None:
        if self._error is not None:
            promise.set_exception(self._error)
        else:
            promise.set_result(self._outputs)

    def _settle(self, seconds: float | None) -> None:
        """Wait for the call, then finish it once."""
        if self._is_over:
            return
        assert self._call is not None
        try:
            result = self._call.wait(seconds)
        except Timeout:
            if not self._call.done():
                raise  # this wait has timed out, not the call
            result = None
        except Exception:
            result = None
        with self._lock:
            if self._is_over:
                return
            try:
                self._error = self._call.exception()
                if self._error is None:
                    self._finish(result)
            except Exception as error:
                self._error = error
            self._is_over = True
