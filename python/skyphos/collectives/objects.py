"""Objects of any kind between ranks: gathered, exchanged and scattered as one stretch of bytes each.

A rank's object travels as the words of a sparse vector, whose ranks may have as many entries as they like: so one call
moves objects of any sizes, and a rank in a call for arrays or vectors is a :class:`~skyphos.Mismatch`. What is no array
of numbers is pickled (:mod:`.packing`), and pickles off the loopback need a token.

Cost: that of the collective of vectors with an entry for every 64 bytes, and one agreement of all ranks that they
could read what came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import _skyphos as native
from ..call_names import NUMBERS, OBJECTS
from ..errors import BadInput
from ..planning.explanation import WHY_SCHEDULE, explanation_of
from ..work import perform
from .agreement import together
from .packing import Bytes, is_pickle, joined, pack_plain, parted, unpack, untrusted

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["allgather_bytes", "allgather_objects", "alltoall_objects", "gather_objects", "scatter_objects"]

#: Words of an entry: few are lost where an object is short, and a long one has few indices.
_WIDTH = 8

_Words = tuple[npt.NDArray[Any] | None, npt.NDArray[Any], npt.NDArray[Any] | None]
_NO_WORDS = np.empty(0, np.uint64)


def _words_of(block: Bytes) -> _Words:
    """Bytes as the entries of a vector, of 64 bytes each."""
    entries = -(-block.size // (8 * _WIDTH))
    if block.size == 8 * _WIDTH * entries:
        words = block.view(np.uint64)
    else:
        words = np.zeros(_WIDTH * entries, np.uint64)
        words.view(np.uint8)[: block.size] = block
    return np.arange(entries, dtype=np.uint32), words, None


def _packed(comm: Comm, x: Any) -> _Words:
    parts = pack_plain(x)
    if is_pickle(parts) and not comm._native.trusted:
        raise untrusted(f"{type(x).__name__} would be sent as a pickle, which runs")
    return _words_of(joined(parts))


def _bytes_of(came: tuple[Any, Any, Any]) -> Bytes:
    memory: Bytes = came[1].view(np.uint8)
    return memory


def _read(comm: Comm, came: Sequence[Any], *, is_agreed: bool) -> list[Any]:
    """The objects that came; if this rank cannot read one, it is an error of all where ``is_agreed``."""

    def read() -> list[Any]:
        blocks = [parted(_bytes_of(one)) for one in came]
        if any(is_pickle(parts) for parts in blocks) and not comm._native.trusted:
            raise BadInput("a pickle came in a group that has proved no token")
        return [unpack(parts) for parts in blocks]

    return together(comm, read) if is_agreed else read()


def allgather_bytes(comm: Comm, block: Bytes, finish: Callable[[list[Bytes]], Any], *, async_op: bool) -> Any:
    """What ``finish`` makes of the bytes of all ranks, padded with zeros to a multiple of 64. Collective."""
    done = native.allgather(comm._native, NUMBERS, _WIDTH, _words_of(block), "auto", async_op)
    return perform(done, async_op, lambda result: finish([_bytes_of(one) for one in result[0]]))


def allgather_objects(comm: Comm, x: Any, algorithm: str, *, explain: bool, async_op: bool) -> Any:
    """The objects of all ranks, by rank."""
    mine = _packed(comm, x)
    done = native.allgather(comm._native, OBJECTS, _WIDTH, mine, algorithm, async_op)

    def finish(result: Any) -> Any:
        came, told = result
        # All ranks have the same bytes, so all agree on whether reading them may fail.
        may_fail = any(is_pickle(parted(_bytes_of(one))) for one in came)
        objects = _read(comm, came, is_agreed=may_fail and not async_op)
        if not explain:
            return objects
        words = sum(len(one[1]) for one in came)
        return objects, explanation_of(algorithm, told, len(mine[1]), words, is_dense=False, why=WHY_SCHEDULE)

    return perform(done, async_op, finish)


def gather_objects(comm: Comm, x: Any, root: int, *, async_op: bool) -> Any:
    """The objects of all ranks on ``root``."""
    mine = _packed(comm, x)
    done = native.gather(comm._native, OBJECTS, _WIDTH, mine, root, async_op)

    def finish(came: Any) -> Any:
        objects = _read(comm, came if comm.rank == root else [], is_agreed=not async_op)
        return objects if comm.rank == root else None

    return perform(done, async_op, finish)


def alltoall_objects(comm: Comm, xs: Sequence[Any], *, async_op: bool) -> Any:
    """The objects that each rank had for this one."""
    mine = [_packed(comm, x) for x in xs]
    done = native.alltoall(comm._native, OBJECTS, _WIDTH, mine, None, _NO_WORDS, async_op)
    return perform(done, async_op, lambda came: _read(comm, came, is_agreed=not async_op))


def scatter_objects(comm: Comm, xs: Sequence[Any] | None, root: int, *, async_op: bool) -> Any:
    """One of ``root``'s objects."""
    mine = [_packed(comm, x) for x in ([] if xs is None else xs)] if comm.rank == root else []
    done = native.alltoall(comm._native, OBJECTS, _WIDTH, mine, root, _NO_WORDS, async_op)
    return perform(done, async_op, lambda came: _read(comm, came, is_agreed=not async_op)[0])
