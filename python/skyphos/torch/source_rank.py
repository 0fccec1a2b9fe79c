"""Who sent what a receive from any rank got.

``torch.distributed`` asks the C++ object of a call for it. That object passes ``wait`` and ``get_future`` on to a backend
made in Python, and nothing else, so it has no answer. :func:`teach` gives it one: PyTorch's own method is asked first, and
where it has no answer, ``get_future`` finds the call.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Protocol

from torch._C._distributed_c10d import Work as C10dWork

__all__ = ["found", "teach"]


class _Received(Protocol):
    #: The rank that sent it, once it has come.
    source: int | None


class _Search(threading.local):
    """The call that this thread looks for."""

    is_on = False
    call: _Received | None = None


_search = _Search()


def found(call: _Received) -> bool:
    """Whether ``get_future`` of a call is asked only in order to find the call."""
    if _search.is_on:
        _search.call = call
    return _search.is_on


def teach() -> None:
    """Let ``source_rank`` of PyTorch's ``Work`` know receives of the backend skyphos."""
    for name in ("source_rank", "_source_rank"):
        known = getattr(C10dWork, name)
        if not hasattr(known, "__wrapped__"):
            setattr(C10dWork, name, _with_ours(known))


def _with_ours(known: Callable[[C10dWork], int]) -> Callable[[C10dWork], int]:
    @functools.wraps(known)
    def source_rank(work: C10dWork) -> int:
        try:
            return known(work)
        except RuntimeError:
            source = getattr(_call_of(work), "source", None)
            if source is None:
                raise
            return int(source)

    return source_rank


def _call_of(work: C10dWork) -> Any:
    """The call that this C++ object stands for, if it is of the backend skyphos."""
    _search.is_on = True
    try:
        work.get_future()
    except RuntimeError:  # a backend whose calls have none
        return None
    finally:
        call, _search.is_on, _search.call = _search.call, False, None
    return call
