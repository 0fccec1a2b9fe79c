"""Messages from one rank to another, as bytes with a description."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _skyphos as native
from ...comm import Comm
from ...errors import Mismatch
from ...work import Work

__all__ = ["Messages", "group_name"]


def group_name(text: str) -> int:
    """A number of 63 bits for a group's name.

    Examples
    --------
    >>> from skyphos.torch.backend.messages import group_name
    >>> group_name("1") == group_name("1") != group_name("2")
    True
    """
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % (1 << 63)


class Messages:
    """Messages among the ranks of a :class:`Comm`, in a group of their own: none of others can be taken for them.

    Those of one sender and tag arrive in the order in which they were sent.
    """

    def __init__(self, comm: Comm, name: str) -> None:
        self._rank = comm.rank
        self._group = comm._native.group_of(list(range(comm.size)), group_name(name))

    def send(self, to: int, tag: int, what: str, mine: npt.NDArray[Any]) -> Work[None]:
        """Begin to send an array and what it is, in words. It is over once the bytes are handed over."""
        parts = [np.frombuffer(what.encode(), np.uint8), mine.view(np.uint8)]
        return Work(native.send(self._group, to, tag, parts, True), lambda _: None)

    def receive(self, source: int | None, tag: int, what: str, out: npt.NDArray[Any]) -> Work[int]:
        """Begin to receive what ``out`` has room for, of one rank or (None) of any; the work gives that rank.

        The work ends with ``Mismatch`` if the message is another thing than ``what``.
        """

        def finish(came: Any) -> int:
            (sender, _, _), parts, is_in_out = came
            if not is_in_out:
                sent = parts[0].tobytes().decode()
                raise Mismatch(f"rank {sender} sent {sent} with tag {tag}, and rank {self._rank} receives {what}")
            return int(sender)

        return Work(native.recv(self._group, source, tag, what.encode(), out.view(np.uint8), True), finish)

    def close(self) -> None:
        """Leave the group."""
        self._group.close()
