"""Threads that are stopped before the interpreter exits.

A thread that still runs at exit is stopped where it next asks for the interpreter lock. Inside an operation of torch,
C++ does not allow that and aborts the process, so a script that has succeeded would return 134.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["is_shutting_down", "start_thread"]

#: Seconds that the exit waits for all threads together. A thread may wait for a rank that does not come.
_JOIN_S = 2.0

_running: dict[threading.Thread, Callable[[], None]] = {}
_shutdown = threading.Event()


def start_thread(
    target: Callable[..., None], args: tuple[Any, ...], name: str, stop: Callable[[], None]
) -> threading.Thread:
    """Start a daemon thread. At exit ``stop`` is called, which wakes the thread if it waits for work."""

    def run() -> None:
        try:
            target(*args)
        finally:
            _running.pop(thread, None)

    thread = threading.Thread(target=run, name=name, daemon=True)
    _running[thread] = stop
    thread.start()
    return thread


def is_shutting_down() -> bool:
    """Whether the interpreter exits, so that no work may start."""
    return _shutdown.is_set()


@atexit.register
def _stop_all() -> None:
    _shutdown.set()
    until = time.monotonic() + _JOIN_S
    running = list(_running.items())
    for _, stop in running:
        stop()
    for thread, _ in running:
        thread.join(max(0.0, until - time.monotonic()))
