"""Answers of PyTorch's ``Work`` for Skyphos calls: ``source_rank``, ``is_completed`` and ``is_success``.

``torch.distributed`` hands its callers a C++ object for each call. That object passes ``wait`` and ``get_future`` on to
a backend made in Python and answers everything else itself, as if no call were ever completed or had a source.
:func:`extend_work` makes these methods ask the call, which they find through ``get_future``. Calls of other backends
get PyTorch's answers.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Protocol

from torch._C._distributed_c10d import Work as C10dWork

__all__ = ["extend_work", "is_query"]


class _Call(Protocol):
    """The answers of a call."""

    source: int | None

    def is_completed(self) -> bool: ...
    def is_success(self) -> bool: ...


class _Query(threading.local):
    """The query that this thread makes, and the call that it has found."""

    is_active = False
    call: _Call | None = None


_query = _Query()


def is_query(call: _Call) -> bool:
    """Whether ``get_future`` of a call is called only to find the call."""
    if _query.is_active:
        _query.call = call
    return _query.is_active


def extend_work() -> None:
    """Make PyTorch's ``Work`` answer for Skyphos calls. A second call does nothing."""
    for name, ask in _QUERIES.items():
        original = getattr(C10dWork, name)
        if not hasattr(original, "__wrapped__"):
            setattr(C10dWork, name, _extended(original, ask))


_QUERIES: dict[str, Callable[[_Call], Any]] = {
    "source_rank": lambda call: call.source,
    "_source_rank": lambda call: call.source,
    "is_completed": lambda call: call.is_completed(),
    "is_success": lambda call: call.is_success(),
}


def _extended(original: Callable[[C10dWork], Any], ask: Callable[[_Call], Any]) -> Callable[[C10dWork], Any]:
    @functools.wraps(original)
    def query(work: C10dWork) -> Any:
        call = _call_of(work)
        answer = None if call is None else ask(call)
        return original(work) if answer is None else answer

    return query


def _call_of(work: C10dWork) -> _Call | None:
    """The Skyphos call of a C++ object, or None if another backend made it."""
    _query.is_active = True
    try:
        work.get_future()
    except RuntimeError:  # a backend whose calls have no future
        return None
    finally:
        call, _query.is_active, _query.call = _query.call, False, None
    return call
