"""Collectives of Python objects: each rank's object is sent as one block of bytes.

The block is sent as the 64-bit words of a sparse vector, of which ranks may have any number of entries. So one call
sends objects of any sizes, and a rank that passes an array or vector instead gets a :class:`~skyphos.Mismatch`. Objects
other than arrays of numbers are pickled (:mod:`.packing`); except on the loopback, pickles need a token.

Cost: that of the collective of vectors with an entry for every 64 bytes, and one agreement of all ranks that they
could read the received objects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _skyphos as native
from ..call_names import NUMBERS, OBJECTS
from ..planning.explanation import WHY_SCHEDULE, explanation_of
from ..work import perform
from .agreement import together
from .packing import Bytes, is_pickle, joined, pack_plain, parted, read_object, untrusted

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["allgather_bytes", "allgather_objects", "alltoall_objects", "gather_objects", "scatter_objects"]

#: Words of an entry: short objects need little padding, and long ones have few indices.
_WIDTH = 8

_NO_WORDS = native.Vector(OBJECTS, _WIDTH, None, np.empty(0, np.uint64), None)


def _words_of(block: Bytes, n: int = OBJECTS) -> native.Vector:
    """Bytes as the entries of a vector of ``n`` rows, 64 bytes each."""
    entries = -(-block.size // (8 * _WIDTH))
    if block.size == 8 * _WIDTH * entries:
        words = block.view(np.uint64)
    else:
        words = np.zeros(_WIDTH * entries, np.uint64)
        words.view(np.uint8)[: block.size] = block
    return native.Vector(n, _WIDTH, np.arange(entries, dtype=np.uint32), words, None)


def _packed(comm: Comm, x: Any) -> native.Vector:
    parts = pack_plain(x)
    if is_pickle(parts) and not comm._native.trusted:
        raise untrusted(f"{type(x).__name__} would be sent as a pickle, which runs")
    return _words_of(joined(parts))


def _bytes_of(received: native.Vector) -> Bytes:
    memory: Bytes = received.values.view(np.uint8)
    return memory


def _read(comm: Comm, received: Sequence[Any], *, is_agreed: bool) -> list[Any]:
    """The received objects. If this rank cannot read one, it raises; with ``is_agreed`` all ranks do."""

    def read() -> list[Any]:
        blocks = [parted(_bytes_of(one)) for one in received]
        return [read_object(comm, parts) for parts in blocks]

    return together(comm, read) if is_agreed else read()


def allgather_bytes(comm: Comm, block: Bytes, finish: Callable[[list[Bytes]], Any], *, async_op: bool) -> Any:
    """Gather the bytes of all ranks, padded with zeros to a multiple of 64; return ``finish(blocks)``. Collective."""
    started = native.allgather(comm._native, _words_of(block, NUMBERS), "auto", async_op)
    return perform(started, async_op, lambda result: finish([_bytes_of(one) for one in result.vectors]))


def allgather_objects(comm: Comm, x: Any, algorithm: str, *, explain: bool, async_op: bool) -> Any:
    """The objects of all ranks, by rank."""
    mine = _packed(comm, x)
    started = native.allgather(comm._native, mine, algorithm, async_op)

    def finish(result: native.Gathered) -> Any:
        received = result.vectors
        # All ranks have the same bytes, so all know whether reading them may fail.
        may_fail = any(is_pickle(parted(_bytes_of(one))) for one in received)
        objects = _read(comm, received, is_agreed=may_fail and not async_op)
        if not explain:
            return objects
        words = sum(len(one.values) for one in received)
        return objects, explanation_of(
            algorithm, result.explanation, len(mine.values), words, is_dense=False, why=WHY_SCHEDULE
        )

    return perform(started, async_op, finish)


def gather_objects(comm: Comm, x: Any, root: int, *, async_op: bool) -> Any:
    """The objects of all ranks on ``root``."""
    mine = _packed(comm, x)
    started = native.gather(comm._native, mine, root, async_op)

    def finish(received: Any) -> Any:
        objects = _read(comm, received if comm.rank == root else [], is_agreed=not async_op)
        return objects if comm.rank == root else None

    return perform(started, async_op, finish)


def alltoall_objects(comm: Comm, xs: Sequence[Any], *, async_op: bool) -> Any:
    """The objects that each rank sent to this one."""
    mine = [_packed(comm, x) for x in xs]
    started = native.alltoall(comm._native, mine, _NO_WORDS, async_op)
    return perform(started, async_op, lambda received: _read(comm, received, is_agreed=not async_op))


def scatter_objects(comm: Comm, xs: Sequence[Any] | None, root: int, *, async_op: bool) -> Any:
    """The object that ``root`` sends to this rank."""
    mine = [_packed(comm, x) for x in ([] if xs is None else xs)] if comm.rank == root else []
    started = native.scatter(comm._native, mine, _NO_WORDS, root, async_op)
    return perform(started, async_op, lambda received: _read(comm, [received], is_agreed=not async_op)[0])
