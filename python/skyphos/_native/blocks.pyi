"""Exchange of byte blocks of any length, one for each rank.

Blocks of up to ``push_bytes`` are sent at once. Longer ones are fetched by their receiver, ``fetches`` at a time.
"""

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
