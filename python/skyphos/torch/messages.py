"""Messages between two ranks: calls of a group of those two and a tag, which both make without a word."""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _skyphos as native
from ..comm import Comm
from ..work import Work, perform

__all__ = ["Messages", "group_name"]

#: Groups of two are named by their tag; those of a process group's ranks by more than any tag says.
_TAGS = 1 << 32


def group_name(text: str) -> int:
    """A number of 63 bits for a group's name, beyond those of tags.

    Examples
    --------
    >>> from skyphos.torch.messages import group_name
    >>> group_name("1") == group_name("1") != group_name("2")
    True
    """
    return _TAGS + int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % (1 << 63)


class Messages:
    """The groups of two that messages of a :class:`Comm` have needed so far: one for each direction and tag.

    Messages of one sender, receiver and tag arrive in the order in which they were sent, those of others in any.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._groups: dict[tuple[int, int, int], native.Comm] = {}
        self._lock = threading.Lock()

    def between(self, source: int, to: int, tag: int) -> native.Comm:
        """The group of these two, one of which is this rank."""
        with self._lock:
            group = self._groups.get((source, to, tag))
            if group is None:
                group = self._comm._native.group_of([source, to], tag)
                self._groups[source, to, tag] = group
            return group

    def send(self, to: int, tag: int, mine: npt.NDArray[np.uint8]) -> Work[Any]:
        """Begin to send bytes. It is over once they are handed over."""
        return _moved(self.between(self._comm.rank, to, tag), mine, mine[:0].copy())

    def receive(self, source: int, tag: int, out: npt.NDArray[np.uint8]) -> Work[Any]:
        """Begin to receive as many bytes as there is room for."""
        return _moved(self.between(source, self._comm.rank, tag), out[:0].copy(), out)

    def close(self) -> None:
        """Leave them all."""
        with self._lock:
            for group in self._groups.values():
                group.close()
            self._groups.clear()


def _moved(group: native.Comm, mine: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> Work[Any]:
    work: Work[Any] = perform(native.move_arrays(group, "message", mine, out, 0, "direct", True), True, lambda _: None)
    return work
