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
    """Let non-blocking calls travel together.

    Calls made with ``async_op=True`` inside the block start at its end (or when this rank waits for anything), all
    at once: the messages that each of their rounds sends to a rank leave in one write, and their rounds overlap. So
    many small calls take little longer than one. Results are those of the calls alone, to the bit. Not collective,
    but only useful if all ranks do so.

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
