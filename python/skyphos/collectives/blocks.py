"""Blocks of bytes from every rank to every other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .. import _skyphos as native
from .packing import Bytes

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["exchange_blocks"]


def exchange_blocks(
    comm: Comm, blocks: list[Bytes], take: Callable[[int, Bytes], None], *, push_bytes: int, fetches: int
) -> tuple[int, int, int]:
    """Send a block to each rank, and pass the received blocks to ``take``, in rank order from this rank on. Collective.

    Parameters
    ----------
    blocks : list of arrays of bytes
        Blocks by receiving rank. The list is emptied.
    take : callable
        Called with (rank, its block). An exception ends the exchange on all ranks.
    push_bytes, fetches : int
        Blocks of up to ``push_bytes`` are sent at once. Longer ones are fetched by their receiver, at most ``fetches``
        at a time.

    Returns
    -------
    sent_bytes, sent_frames, received_bytes : int
    """
    own = blocks[comm.rank]
    blocks[comm.rank] = np.empty(0, np.uint8)
    under_way = native.exchange_blocks(comm._native, blocks, push_bytes, fetches)
    blocks.clear()
    try:
        take(comm.rank, own)
        del own
        while (block := under_way.next_block()) is not None:
            take(*block)
    except BaseException as error:  # also Ctrl-C: the other ranks wait for this one
        under_way.fail(str(error) or type(error).__name__)
        raise
    traffic = under_way.finish()
    return traffic.sent_bytes, traffic.sent_frames, traffic.received_bytes
