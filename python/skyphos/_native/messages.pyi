"""Messages between two ranks."""

from typing import Any, final

from .arrays import Array, Bytes
from .comm import Comm
from .work import Work

@final
class MessageStatus:
    @property
    def source(self) -> int: ...
    @property
    def tag(self) -> int: ...
    @property
    def bytes(self) -> int: ...

# Memory for the second part of a message whose first part is `first`. Any other message is received elsewhere.
@final
class ReceiveInto:
    def __new__(cls, first: bytes, out: Bytes) -> ReceiveInto: ...

@final
class ReceivedMessage:
    @property
    def status(self) -> MessageStatus: ...
    @property
    def parts(self) -> list[Bytes]: ...
    @property
    def in_place(self) -> bool: ...

# beside: a send; if it fails before a message has arrived, the receive fails too.
def recv(
    comm: Comm,
    source: int | None,
    tag: int | None,
    into: ReceiveInto | None,
    async_op: bool,
    beside: Work | None = None,
) -> Any: ...
def probe(comm: Comm, source: int | None, tag: int | None) -> MessageStatus: ...
def probe_now(comm: Comm, source: int | None, tag: int | None) -> MessageStatus | None: ...
def send(comm: Comm, dest: int, tag: int, parts: list[Array], async_op: bool) -> Any: ...
def fail_send(comm: Comm, dest: int, tag: int, message: str, wire: bytes | None = None) -> Exception: ...
