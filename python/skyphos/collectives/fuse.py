"""Fusion: non-blocking calls that start together and share writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["fuse"]


@contextmanager
def fuse(comm: Comm) -> Iterator[None]:
    """Start non-blocking calls together.

    Calls made with ``async_op=True`` inside the block start together at its end (or when this rank waits for
    anything): the messages of a round to the same rank are sent in one write, and rounds of different calls overlap.
    So many small calls take little longer than one. Results are bitwise those of separate calls. Not collective, but
    useful only if all ranks do it.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     with comm.fuse():
    ...         works = [comm.allreduce(np.full(2, k), async_op=True) for k in range(3)]
    ...     [work.wait().tolist() for work in works]
    [[0, 0], [1, 1], [2, 2]]
    """
    comm._native.hold()
    try:
        yield
    finally:
        comm._native.release()
