"""``source_rank``, ``is_completed`` and ``is_success`` of calls of the backend skyphos.

``torch.distributed`` hands its callers a C++ object for each call. That object passes ``wait`` and ``get_future`` on to
a backend made in Python, and answers everything else itself: a call is never completed, and nobody sent it.
:func:`teach` lets it ask the call, which is found by ``get_future``. Calls of other backends are answered as before.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Protocol

from torch._C._distributed_c10d import Work as C10dWork

__all__ = ["found", "teach"]


class _Call(Protocol):
    """What is asked."""

    source: int | None

    def is_completed(self) -> bool: ...
    def is_success(self) -> bool: ...


class _Search(threading.local):
    """The call that this thread looks for."""

    is_on = False
    call: _Call | None = None


_search = _Search()


def found(call: _Call) -> bool:
    """Whether ``get_future`` of a call is asked only in order to find the call."""
    if _search.is_on:
        _search.call = call
    return _search.is_on


def teach() -> None:
    """Let PyTorch's ``Work`` answer for calls of the backend skyphos."""
    for name, ask in _QUERIES.items():
        theirs = getattr(C10dWork, name)
        if not hasattr(theirs, "__wrapped__"):
            setattr(C10dWork, name, _with_ours(theirs, ask))


_QUERIES: dict[str, Callable[[_Call], Any]] = {
    "source_rank": lambda call: call.source,
    "_source_rank": lambda call: call.source,
    "is_completed": lambda call: call.is_completed(),
    "is_success": lambda call: call.is_success(),
}


def _with_ours(theirs: Callable[[C10dWork], Any], ask: Callable[[_Call], Any]) -> Callable[[C10dWork], Any]:
    @functools.wraps(theirs)
    def query(work: C10dWork) -> Any:
        call = _call_of(work)
        answer = None if call is None else ask(call)
        return theirs(work) if answer is None else answer

    return query


def _call_of(work: C10dWork) -> _Call | None:
    """The call that this C++ object stands for, if it is of the backend skyphos."""
    _search.is_on = True
    try:
        work.get_future()
    except RuntimeError:  # a backend whose calls have none
        return None
    finally:
        call, _search.is_on, _search.call = _search.call, False, None
    return call
