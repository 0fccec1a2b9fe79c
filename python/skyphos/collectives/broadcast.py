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
    "chain": "every link carries the message once, and all at the same time",
    "binomial": "the fewest rounds",
    "scatter_allgather": "in parts, where a chain would be long",
}


@dataclass(frozen=True)
class BroadcastExplanation:
    """A broadcast on this rank: algorithm and traffic; ``print`` it.

    Attributes
    ----------
    algorithm : str
        The algorithm that the root chose.
    reason : str
        Reason for the algorithm.
    message_bytes, chunk_bytes : int
        Bytes of the object, and of the largest chunk.
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


if TYPE_CHECKING:

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
    """Send ``root``'s object to all ranks. Collective.

    Parameters
    ----------
    obj : object
        On ``root``: an array, SparseVector, torch tensor or bytes, which are sent without conversion; or any object
        that can be pickled, whose arrays and other large buffers are not copied into the pickle. Ignored on other
        ranks.
    root : int
        The rank with the object.
    algorithm : str
        ``chain`` (chunk by chunk from each rank to the next, by hosts and racks: *Twister*, section 4.4),
        ``binomial`` (a tree), ``scatter_allgather`` (a part to each, then around a ring) or ``simple`` (from root
        to each). ``auto``: the one with the least time that root predicts; up to 32 KB a binomial tree.
    chunk_bytes : int, optional
        Upper bound on the bytes of a chunk, up to 131,072; root's value counts. None: chosen by prediction.
    on_loss : str
        If a rank is lost, the remaining ranks complete the broadcast, and then ``raise`` :class:`PeerLost` with the
        object as ``result``, or ``continue`` and return it.
    ack_timeout : float, optional
        Seconds without progress for which root waits for acknowledgements; root's value counts. None: the group's
        ``timeout``.
    explain : bool
        Also return a :class:`BroadcastExplanation`.
    async_op : bool
        As in :meth:`allreduce`.

    Returns
    -------
    On ``root`` the object itself, on other ranks a writable copy. With ``explain`` a tuple of that and the explanation.

    Raises
    ------
    BadInput
        If the object cannot be pickled, or read on some rank; for an unknown root or algorithm. Also for pickles
        between hosts in a group without a token: reading a pickle runs code of its sender, so :func:`skyphos.init`
        needs ``token=`` (or TLS).
    PeerLost
        If a rank was lost. Ranks that waited for it have requested the rest from another, and every remaining rank has
        the object as ``result``. There is no result if root was lost before another rank had all of the object, and in
        groups with replicas if all replicas of a rank are lost.
    Timeout
        If ranks did not acknowledge within ``ack_timeout``; ``missing`` lists them.

    Notes
    -----
    From 256 KB on, the data are sent to each host once: its ranks map the same memory, copy-on-write. Ranks that cannot
    (``shared_memory=False``, containers that do not see each other's processes) have a copy each. With
    ``async_op=True`` a pickle that one rank cannot read is an error on that rank only.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     comm.broadcast({"weights": np.arange(3.0), "step": 7})
    {'weights': array([0., 1., 2.]), 'step': 7}
    """
    root_rank = as_rank(root, comm.size, "root")
    as_name(algorithm, "algorithm")
    as_one_of(on_loss, get_args(OnLoss), "on_loss")
    chunk = None if chunk_bytes is None else whole(chunk_bytes, "chunk_bytes", 1, 2**63 - 1)
    limit_s = None if ack_timeout is None else real(ack_timeout, "ack_timeout", 0.0)
    explain, async_op = truth(explain, "explain"), truth(async_op, "async_op")
    parts = _packed(comm, obj) if comm.rank == root_rank else None
    options = native.BroadcastOptions(algorithm, chunk, limit_s)
    started = native.broadcast(comm._native, parts, root_rank, options, async_op)

    def finish(done: native.Broadcasted) -> Any:
        received: list[Bytes] = done.parts
        lost: PeerLost | None = done.missed
        pickled = is_pickle(received if parts is None else parts)
        objects = [obj] if parts is not None else []

        def read() -> None:
            if parts is None:
                objects.append(read_object(comm, received))

        # A blocking call has the same outcome on all ranks, so an unreadable pickle on one is an error on all.
        if pickled and lost is None and not async_op:
            try:
                together(comm, read)
            except PeerLost as error:
                lost = error
        if not objects:
            read()
        result = (objects[0], _explanation(algorithm, done)) if explain else objects[0]
        if lost is not None and on_loss == "raise":
            lost.result = result
            raise lost
        return result

    return perform(started, async_op, finish)


def _packed(comm: Comm, obj: Any) -> list[Bytes]:
    parts = pack(obj)
    if is_pickle(parts) and not comm._native.trusted:
        raise untrusted(f"{type(obj).__name__} would be sent as a pickle, which runs")
    return parts


def _explanation(requested: str, done: native.Broadcasted) -> BroadcastExplanation:
    reason = f'asked for "auto": {_WHY.get(done.algorithm, "")}' if requested == "auto" else "asked for"
    return BroadcastExplanation(
        done.algorithm,
        reason,
        done.message_bytes,
        done.chunk_bytes,
        sent_bytes=done.traffic.sent_bytes,
        sent_frames=done.traffic.sent_frames,
        received_bytes=done.traffic.received_bytes,
    )
