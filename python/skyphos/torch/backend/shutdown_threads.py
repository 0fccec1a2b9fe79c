"""Threads beside the caller's, which end before the interpreter does.

One that is still there is stopped where it asks for the interpreter again. If that is inside an operation of torch, C++
does not allow it, and ends the process: a script that has done all it should would return 134.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["begin", "is_ending"]

#: How long the interpreter's end waits for them together: one may wait for a rank that does not come.
_PATIENCE_S = 2.0

_running: dict[threading.Thread, Callable[[], None]] = {}
_ending = threading.Event()


def begin(target: Callable[..., None], args: tuple[Any, ...], name: str, end: Callable[[], None]) -> threading.Thread:
    """Start a thread; ``end`` wakes it up if it waits for something to do, when :func:`is_ending` is true."""

    def run() -> None:
        try:
            target(*args)
        finally:
            _running.pop(thread, None)

    thread = threading.Thread(target=run, name=name, daemon=True)
    _running[thread] = end
    thread.start()
    return thread


def is_ending() -> bool:
    """Whether the interpreter ends, so that no more is to be begun."""
    return _ending.is_set()


@atexit.register
def _end_all() -> None:
    _ending.set()
    until = time.monotonic() + _PATIENCE_S
    there = list(_running.items())
    for _, end in there:
        end()
    for thread, _ in there:
        thread.join(max(0.0, until - time.monotonic()))
