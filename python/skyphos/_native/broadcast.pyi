"""``broadcast`` of bytes."""

from typing import Any, final

from .arrays import Bytes
from .comm import Comm
from .report import Traffic

@final
class BroadcastOptions:
    def __new__(
        cls, algorithm: str = "auto", chunk_bytes: int | None = None, ack_timeout: float | None = None
    ) -> BroadcastOptions: ...

@final
class Broadcasted:
    @property
    def parts(self) -> list[Bytes]: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def chunk_bytes(self) -> int: ...
    @property
    def message_bytes(self) -> int: ...
    @property
    def traffic(self) -> Traffic: ...
    # The PeerLost for a rank that was lost during the call, or None.
    @property
    def missed(self) -> Any: ...

def broadcast(comm: Comm, parts: list[Bytes] | None, root: int, options: BroadcastOptions, async_op: bool) -> Any: ...
