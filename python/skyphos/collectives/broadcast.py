"""Broadcast of arrays and Python objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args, overload

from .. import _skyphos as native
from ..errors import PeerLost
from ..inputs.arguments import as_name, as_one_of, as_rank
from ..inputs.settings import real, truth, whole
from ..work import Work, perform
from .agreement import collective, together
from .packing import Bytes, is_pickle, pack, read_object, untrusted

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..comm import Comm

__all__ = ["BroadcastExplanation", "broadcast"]

BroadcastAlgorithm = Literal["auto", "chain", "binomial", "scatter_allgather", "simple"]
OnLoss = Literal["raise", "continue"]
_WHY = {
    "chain": "every link carries it once, and all at the same time",
    "binomial": "the fewest rounds",
    "scatter_allgather": "in parts, where a chain would be long",
}


@dataclass(frozen=True)
class BroadcastExplanation:
    """A broadcast on this rank: algorithm and traffic; ``print`` it.

    Attributes
    ----------
    algorithm : str
        The route that the root took.
    reason : str
        Why this one.
    message_bytes, chunk_bytes : int
        Bytes of the object, and the most that a rank passed on at once.
    sent_bytes, sent_frames, received_bytes : int
        Payload to and from other ranks, and frames sent.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     _, how = comm.broadcast(np.arange(3.0), explain=True)
    >>> print(how)
    binomial: asked for "auto": the fewest rounds
      message: 72 bytes, in chunks of up to 131,072
      sent: 0 bytes in 0 frames; received: 0 bytes
    """

    algorithm: str
    reason: str
    message_bytes: int
    chunk_bytes: int
    sent_bytes: int
    sent_frames: int
    received_bytes: int

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.algorithm}: {self.reason}",
                f"  message: {self.message_bytes:,} bytes, in chunks of up to {self.chunk_bytes:,}",
                f"  sent: {self.sent_bytes:,} bytes in {self.sent_frames:,} frames; "
                f"received: {self.received_bytes:,} bytes",
            ]
        )


class BroadcastOptions(TypedDict, total=False):
    """Options of :func:`broadcast` that do not change the kind of its result."""

    algorithm: BroadcastAlgorithm
    chunk_bytes: int | None
    on_loss: OnLoss
    ack_timeout: float | None


@overload
def broadcast(
    comm: Comm, obj: Any = None, root: int = 0, *, explain: Literal[True], **options: Unpack[BroadcastOptions]
) -> tuple[Any, BroadcastExplanation]: ...
@overload
def broadcast(
    comm: Comm, obj: Any = None, root: int = 0, *, async_op: Literal[True], **options: Unpack[BroadcastOptions]
) -> Work[Any]: ...
@overload
def broadcast(
    comm: Comm,
    obj: Any = None,
    root: int = 0,
    *,
    explain: bool = False,
    async_op: bool = False,
    **options: Unpack[BroadcastOptions],
) -> Any: ...


@collective()
def broadcast(
    comm: Comm,
    obj: Any = None,
    root: int = 0,
    *,
    algorithm: BroadcastAlgorithm = "auto",
    chunk_bytes: int | None = None,
    on_loss: OnLoss = "raise",
    ack_timeout: float | None = None,
    explain: bool = False,
    async_op: bool = False,
) -> Any:
    """Bring ``root``'s object to all ranks. Collective.

    Parameters
    ----------
    obj : object
        On ``root``: an array, SparseVector, torch tensor or bytes, which go as they lie in memory; or anything
        else that can be pickled, whose arrays and other large buffers are not copied into the pickle. What other
        ranks pass is ignored.
    root : int
        The rank that has it.
    algorithm : str
        ``chain`` (chunk by chunk from each rank to the next, by hosts and racks: *Twister*, section 4.4),
        ``binomial`` (a tree), ``scatter_allgather`` (a part to each, then around a ring) or ``simple`` (from root
        to each). ``auto``: the one that root predicts to take the least time. Up to 32 KB go down a binomial tree.
    chunk_bytes : int, optional
        The most bytes of a chunk, up to 131,072; that of root counts. None: by the model.
    on_loss : str
        What becomes of a call in which a rank is lost, once all that are left have the object: ``raise``
        :class:`PeerLost`, whose ``result`` it is, or ``continue`` and return it.
    ack_timeout : float, optional
        Seconds that root waits for a rank to acknowledge that it has the object, while nothing moves; that of root
        counts. None: the group's ``timeout``.
    explain : bool
        Also return a :class:`BroadcastExplanation`.
    async_op : bool
        As in :meth:`allreduce`.

    Returns
    -------
    On ``root`` the object itself, elsewhere a copy, which may be written to. With ``explain`` a tuple: that, and
    the explanation.

    Raises
    ------
    BadInput
        The object cannot be pickled, or not be read on some rank; no such root or algorithm. Or it would have to be
        pickled, and ranks of other hosts have not proved a token: reading a pickle runs code that its sender
        chose, so :func:`skyphos.init` wants ``token=`` (or TLS) for that.
    PeerLost
        A rank was lost. Who waited for it has asked another for what was missing, from the last chunk that had
        come, and every rank that is left has the object: ``result``. Without one if root itself was lost before
        anybody had all of it, and in groups with replicas, where all of a rank's are gone then.
    Timeout
        Ranks did not acknowledge within ``ack_timeout``: ``missing``.

    Notes
    -----
    From 256 KB on, the bytes travel to each host once: its ranks map the same memory, and a page becomes a rank's
    own when it writes there. Ranks that cannot (``shared_memory=False``, containers that do not see each other's
    processes) have a copy each. With ``async_op=True`` a pickle that one rank cannot read is an error on that rank
    alone.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     comm.broadcast({"weights": np.arange(3.0), "step": 7})
    {'weights': array([0., 1., 2.]), 'step': 7}
    """
    number = as_rank(root, comm.size, "root")
    as_name(algorithm, "algorithm")
    as_one_of(on_loss, get_args(OnLoss), "on_loss")
    most = None if chunk_bytes is None else whole(chunk_bytes, "chunk_bytes", 1, 2**63 - 1)
    limit_s = None if ack_timeout is None else real(ack_timeout, "ack_timeout", 0.0)
    explain, async_op = truth(explain, "explain"), truth(async_op, "async_op")
    parts = _packed(comm, obj) if comm.rank == number else None
    options = native.BroadcastOptions(algorithm, most, limit_s)
    done = native.broadcast(comm._native, parts, number, options, async_op)

    def finish(done: native.Broadcasted) -> Any:
        received: list[Bytes] = done.parts
        lost: PeerLost | None = done.missed
        pickled = is_pickle(received if parts is None else parts)
        brought = [obj] if parts is not None else []

        def read() -> None:
            if parts is None:
                brought.append(read_object(comm, received))

        # What all must come to takes all: a pickle that one rank cannot read is an error of all of them.
        if pickled and lost is None and not async_op:
            try:
                together(comm, read)
            except PeerLost as error:
                lost = error
        if not brought:
            read()
        whole = (brought[0], _explanation(algorithm, done)) if explain else brought[0]
        if lost is not None and on_loss == "raise":
            lost.result = whole
            raise lost
        return whole

    return perform(done, async_op, finish)


def _packed(comm: Comm, obj: Any) -> list[Bytes]:
    parts = pack(obj)
    if is_pickle(parts) and not comm._native.trusted:
        raise untrusted(f"{type(obj).__name__} would be sent as a pickle, which runs")
    return parts


def _explanation(asked: str, done: native.Broadcasted) -> BroadcastExplanation:
    reason = f'asked for "auto": {_WHY.get(done.algorithm, "")}' if asked == "auto" else "asked for"
    return BroadcastExplanation(
        done.algorithm,
        reason,
        done.message_bytes,
        done.chunk_bytes,
        sent_bytes=done.traffic.sent_bytes,
        sent_frames=done.traffic.sent_frames,
        received_bytes=done.traffic.received_bytes,
    )
