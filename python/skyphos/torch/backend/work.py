"""What ``torch.distributed`` gets for a call: a ``Work`` with a future."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import Work as C10dWork

from ...errors import Timeout
from .ordered_worker import Answer, Line
from .queries import found
from .shutdown_threads import begin
from .untraced import untraced

__all__ = ["TorchWork"]


class _Waits(Protocol):
    """A call of ours that is under way, or several."""

    def done(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> Any: ...
    def exception(self, timeout: float | None = None) -> BaseException | None: ...


@untraced
class TorchWork(C10dWork):
    """One call.

    ``torch.distributed`` hands callers a C++ object that asks this one to wait, and for its future; the rest it asks by
    way of :mod:`skyphos.torch.backend.queries`.

    Parameters
    ----------
    call : Work, several, or None
        Ours; None where the call is over.
    finish : callable
        Puts what came into the caller's tensors; called once.
    outputs : list of Tensor
        What the future gives.
    line : Line or None
        Waits for the call where somebody asks for its future. None: a thread of its own, for a call that may end before
        those that began before it, as messages do.

    Attributes
    ----------
    source : int or None
        Of a receive that has ended: who sent it.
    """

    def __init__(
        self,
        call: _Waits | None,
        finish: Callable[[Any], None],
        outputs: list[Any],
        line: Line | None,
    ) -> None:
        super().__init__()
        self._call, self._finish, self._outputs, self._line = call, finish, outputs, line
        self._lock = threading.Lock()
        self._over = call is None
        self._error: BaseException | None = None
        self._answer: Answer | None = None
        self.source: int | None = None

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Wait until the caller's tensors hold the result; raises what the call ended with."""
        seconds = timeout.total_seconds()
        self._settle(seconds if seconds > 0 else None)
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether the call is over, and the caller's tensors hold the result if it went well. Does not wait."""
        if not self._over and self._call is not None and self._call.done():
            self._settle(None)
        return self._over

    def is_success(self) -> bool:
        """Whether it is over and went well."""
        return self.is_completed() and self._error is None

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensors of the result, or of the error."""
        if found(self):
            return torch.futures.Future()
        with self._lock:
            known = self._answer
            answer = self._answer = known or Answer()
        if known is None:
            self._end(answer)
        return answer.future

    def _end(self, answer: Answer) -> None:
        """Let the answer end as the call does."""
        if self._over:
            self._tell(answer)
        elif self._line is None:
            begin(self._settle_and_tell, (answer,), "skyphos-message", lambda: None)
        elif self._line.is_here():
            # A callback of another future may wait for this one, and the line would wait for the callback.
            self._settle_and_tell(answer)
        else:
            self._line.put(lambda: self._settle_and_tell(answer), answer)

    def _settle_and_tell(self, answer: Answer) -> None:
        self._settle(None)
        self._tell(answer)

    def _tell(self, answer: Answer) -> None:
        if self._error is not None:
            answer.fail(self._error)
        else:
            answer.give(self._outputs)

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
