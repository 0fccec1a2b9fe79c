"""Exchange of blocks."""

from typing import final

from .arrays import Bytes
from .comm import Comm
from .report import Traffic

def exchange_blocks(comm: Comm, blocks: list[Bytes], push_bytes: int, fetches: int) -> BlockExchange: ...

@final
class BlockExchange:
    def next_block(self) -> tuple[int, Bytes] | None: ...
    def fail(self, message: str) -> None: ...
    def finish(self) -> Traffic: ...
