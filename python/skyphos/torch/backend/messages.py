"""Point-to-point messages, each with a text that describes its contents."""

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
    """A group's name as a number of 63 bits, its hash.

    Examples
    --------
    >>> from skyphos.torch.backend.messages import group_name
    >>> group_name("1") == group_name("1") != group_name("2")
    True
    """
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % (1 << 63)


class Messages:
    """Messages among the ranks of a :class:`Comm`, in a group of their own, so that no other message can match.

    Messages of one sender and tag arrive in the order in which they were sent.
    """

    def __init__(self, comm: Comm, name: str) -> None:
        self._rank = comm.rank
        self._group = comm._native.group_of(list(range(comm.size)), group_name(name))

    def send(self, to: int, tag: int, contents: str, array: npt.NDArray[Any]) -> Work[None]:
        """Start to send an array and the text that describes it. The work is over when the transport has the bytes."""
        parts = [np.frombuffer(contents.encode(), np.uint8), array.view(np.uint8)]
        return Work(native.send(self._group, to, tag, parts, True), lambda _: None)

    def receive(self, source: int | None, tag: int, contents: str, out: npt.NDArray[Any]) -> Work[int]:
        """Start to receive into an array from one rank, or (None) from any. The work's result is the sender's rank.

        The work ends with ``Mismatch`` if the message's text differs from ``contents``.
        """

        def finish(received: native.ReceivedMessage) -> int:
            sender = received.status.source
            if not received.in_place:
                sent = received.parts[0].tobytes().decode()
                raise Mismatch(f"rank {sender} sent {sent} with tag {tag}, and rank {self._rank} receives {contents}")
            return sender

        into = native.ReceiveInto(contents.encode(), out.view(np.uint8))
        return Work(native.recv(self._group, source, tag, into, True), finish)

    def close(self) -> None:
        """Leave the group."""
        self._group.close()
