"""Number of merge threads of a rank: the argument, ``SKYPHOS_THREADS``, or a share of the host's cores."""

from __future__ import annotations

import os

from . import variables
from .settings import whole

__all__ = ["named_threads", "thread_count"]


def thread_count(threads: int | None, local_size: int) -> int:
    """Merge threads: the argument, SKYPHOS_THREADS, or this host's cores divided by its ranks."""
    named = named_threads(threads)
    if named is not None:
        return named
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max(1, local_size))


def named_threads(threads: int | None) -> int | None:
    named = variables.whole_number("SKYPHOS_THREADS") if threads is None else threads
    what = "SKYPHOS_THREADS" if threads is None else "threads"
    return None if named is None else whole(named, what, 1, 4096)
