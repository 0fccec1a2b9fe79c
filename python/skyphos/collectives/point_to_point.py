"""Point-to-point messages: arrays, SparseVectors and objects of any kind, with tags.

None of these calls is collective: only the two ranks of a message take part, and an error of one does not affect
other ranks. A message has a description, so a receiver need not know its type or size.

Cost: one message, and one copy of the data on each side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from .. import _skyphos as native
from ..errors import BadInput, Mismatch, SkyphosError
from ..inputs.arguments import as_rank
from ..inputs.arrays import is_masked
from ..inputs.settings import truth, whole
from ..work import Work, perform
from .agreement import error_for_peers
from .packing import Bytes, array_bytes, described_array, is_pickle, pack_plain, read_object, untrusted

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["Status", "iprobe", "irecv", "isend", "probe", "recv", "send", "sendrecv"]

_MAX_TAG = 2**31 - 1


@dataclass(frozen=True)
class Status:
    """Source and tag of a message.

    Attributes
    ----------
    source, tag : int
        Its sender and its tag.
    nbytes : int
        Bytes on the wire, with the description of the object.

    Examples
    --------
    >>> import skyphos as sky
    >>> with sky.init() as comm:
    ...     comm.send("hello", dest=0, tag=7)
    ...     comm.probe().tag, comm.recv()
    (7, 'hello')
    """

    source: int
    tag: int
    nbytes: int


def send(comm: Comm, x: Any, dest: int, tag: int = 0) -> None:
    """Send an object to a rank. Not collective.

    Parameters
    ----------
    x : object
        An array, a :class:`SparseVector`, a number, text, bytes or a tensor, or anything that can be pickled.
        Pickles run code where they are read, so between hosts they need a token (:func:`skyphos.init`).
    dest : int
        The rank that receives the object; it may be this rank.
    tag : int, default 0
        From 0 to 2**31 - 1; a receive may select messages by tag.

    Raises
    ------
    PeerLost
        If the receiver is lost.
    Timeout
        If there was no progress for the group's ``timeout``. Up to 8 MiB are sent before ``dest`` receives; the rest
        of a larger message waits for the receive, so ranks that exchange large messages must use :meth:`sendrecv` or
        :meth:`isend`.
    BadInput
        For an invalid rank or tag; for an object that cannot be sent (then the receiver raises too).

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> def work(comm: Comm):
    ...     if comm.rank == 0:
    ...         comm.send(np.arange(3), dest=1, tag=5)
    ...         return None
    ...     return comm.recv(source=0, tag=5)
    >>> sky.local(2).run(work)
    [None, array([0, 1, 2])]
    """
    _send(comm, x, dest, tag, async_op=False)


def isend(comm: Comm, x: Any, dest: int, tag: int = 0) -> Work[None]:
    """Start to :meth:`send` an object, which must not be changed before the :class:`Work` is done, not even as the
    ``out`` of a receive."""
    work: Work[None] = _send(comm, x, dest, tag, async_op=True)
    return work


def recv(
    comm: Comm,
    source: int | None = None,
    tag: int | None = None,
    *,
    out: npt.NDArray[Any] | None = None,
    return_status: bool = False,
) -> Any:
    """Receive an object. Not collective.

    Messages of one sender are received in the order in which they were sent. A message goes to the first receive
    that fits, in the order in which receives were begun.

    Parameters
    ----------
    source : int, optional
        The rank that sent the object; None: any (not in groups with replicas, which might take different messages).
    tag : int, optional
        The tag of its message; None: any.
    out : array, optional
        Receives an array of its type and shape, and is returned.
    return_status : bool
        Also return a :class:`Status`: sender and tag.

    Returns
    -------
    A copy of the sent object, of the same kind. With ``return_status`` a tuple of that and the status.

    Raises
    ------
    PeerLost
        If ``source`` is lost and has sent no such message; with any source, if a rank is lost that might have sent
        one, or all others have left.
    Timeout
        If no such message arrived for the group's ``timeout``.
    Mismatch
        If ``out`` has another type or shape than the message, which is dropped; the error names both.
    BadInput
        If the sender could not send the object, or it cannot be read on this rank.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     comm.send(np.ones(2), dest=0, tag=1)
    ...     comm.recv(return_status=True)
    (array([1., 1.]), Status(source=0, tag=1, nbytes=88))
    """
    return _recv(comm, source, tag, out, return_status, async_op=False)


def irecv(
    comm: Comm,
    source: int | None = None,
    tag: int | None = None,
    *,
    out: npt.NDArray[Any] | None = None,
    return_status: bool = False,
) -> Work[Any]:
    """Start to :meth:`recv` an object, which :meth:`Work.wait` returns.

    Raises
    ------
    BadInput
        For an invalid rank or tag, or a read-only ``out``. Other errors are raised by the Work.
    """
    work: Work[Any] = _recv(comm, source, tag, out, return_status, async_op=True)
    return work


def sendrecv(
    comm: Comm,
    x: Any,
    dest: int,
    sendtag: int = 0,
    source: int | None = None,
    recvtag: int | None = None,
    *,
    out: npt.NDArray[Any] | None = None,
    return_status: bool = False,
) -> Any:
    """Send an object to one rank while receiving one from another, of any size. Not collective.

    Parameters are those of :meth:`send` and :meth:`recv`. If ``out`` shares memory with ``x``, ``x`` is copied.

    Returns
    -------
    As :meth:`recv`.

    Raises
    ------
    SkyphosError
        As in :meth:`send` and :meth:`recv`. If the send fails before a message has arrived, nothing is received, and
        the next receive gets the message. If it fails later, the error's ``result`` is the received object. If the
        receive fails, this raises when the send is over.

    Examples
    --------
    >>> import skyphos as sky
    >>> sky.local(3).run(lambda comm: comm.sendrecv(comm.rank, dest=(comm.rank + 1) % comm.size))
    [2, 0, 1]
    """
    arguments = _receive_arguments(comm, source, recvtag, out, return_status)
    sending = _send(comm, x, dest, sendtag, receiving=out, async_op=True)
    try:
        sending._native.advance()
        if sending.done():
            sending.wait()
        received = _receive(comm, *arguments, paired_send=sending, async_op=False)
    except Exception:
        sending.exception()  # the receiver must not get values that the caller writes after this call
        raise
    except BaseException:
        sending._native.withdraw()
        raise
    try:
        sending.wait()
    except SkyphosError as error:
        error.result = received
        raise
    return received


def probe(comm: Comm, source: int | None = None, tag: int | None = None) -> Status:
    """Wait for a message that :meth:`recv` would return, without receiving it. Not collective.

    Parameters and errors are those of :meth:`recv`.
    """
    return _status(native.probe(comm._native, *_filter(comm, source, tag)))


def iprobe(comm: Comm, source: int | None = None, tag: int | None = None) -> Status | None:
    """The status of a message that :meth:`recv` would return immediately; None if there is none yet. Not collective.

    Also None if the sender has closed the group, so that a loop over present messages simply ends; the waiting calls
    :meth:`probe` and :meth:`recv` then raise :class:`PeerLost`.

    Examples
    --------
    >>> import skyphos as sky
    >>> with sky.init() as comm:
    ...     print(comm.iprobe())
    None
    """
    seen = native.probe_now(comm._native, *_filter(comm, source, tag))
    return None if seen is None else _status(seen)


def _send(comm: Comm, x: Any, dest: int, tag: int, *, receiving: npt.NDArray[Any] | None = None, async_op: bool) -> Any:
    """``receiving``: an array that receives at the same time; sent parts that share its memory are copied."""
    dest, tag = as_rank(dest, comm.size, "dest"), whole(tag, "tag", 0, _MAX_TAG)
    try:
        parts = pack_plain(x)
        if is_pickle(parts) and not comm._native.trusted:
            raise untrusted(f"{type(x).__name__} would be sent as a pickle, which runs")
        if receiving is not None:
            parts = [part.copy() if np.may_share_memory(part, receiving) else part for part in parts]
    except BaseException as error:
        _fail_send(comm, error, dest, tag)
    started = native.send(comm._native, dest, tag, parts, async_op)
    return perform(started, async_op, lambda _: None)


def _fail_send(comm: Comm, error: BaseException, dest: int, tag: int) -> NoReturn:
    """Raise an error found before anything was sent, on this rank and on the receiver."""
    wire, text, raised = error_for_peers(error, comm.rank)
    native.fail_send(comm._native, dest, tag, text, wire)
    raise raised from None


def _recv(comm: Comm, source: Any, tag: Any, out: Any, return_status: Any, *, async_op: bool) -> Any:
    return _receive(comm, *_receive_arguments(comm, source, tag, out, return_status), async_op=async_op)


def _receive_arguments(
    comm: Comm, source: Any, tag: Any, out: Any, return_status: Any
) -> tuple[int | None, int | None, Any, bool]:
    _check_out(out)
    return *_filter(comm, source, tag), out, truth(return_status, "return_status")


def _receive(
    comm: Comm,
    source: int | None,
    tag: int | None,
    out: Any,
    return_status: bool,
    *,
    paired_send: Work[None] | None = None,
    async_op: bool,
) -> Any:
    """``paired_send``: if this send fails before a message has arrived, the receive fails too."""
    into: native.ReceiveInto | None = None
    if out is not None and out.flags.c_contiguous and (described := described_array(out)) is not None:
        into = native.ReceiveInto(described, array_bytes(out))
    send: Any = None if paired_send is None else paired_send._native
    started = native.recv(comm._native, source, tag, into, async_op, send)

    def finish(message: native.ReceivedMessage) -> Any:
        parts: list[Bytes] = message.parts
        received = out if message.in_place else read_object(comm, parts)
        if out is not None and not message.in_place:
            received = _put(received, out, message.status, comm.rank)
        return (received, _status(message.status)) if return_status else received

    return perform(started, async_op, finish)


def _status(status: native.MessageStatus) -> Status:
    return Status(status.source, status.tag, status.bytes)


def _filter(comm: Comm, source: Any, tag: Any) -> tuple[int | None, int | None]:
    """Source and tag of a receive. MPI's ``ANY_SOURCE`` and ``ANY_TAG``, negative numbers, get an error that helps."""
    source = None if source is None else _or_any(source, "source", lambda: as_rank(source, comm.size, "source"))
    tag = None if tag is None else _or_any(tag, "tag", lambda: whole(tag, "tag", 0, _MAX_TAG))
    return source, tag


def _or_any(value: Any, what: str, check: Any) -> Any:
    try:
        return check()
    except BadInput as error:
        if isinstance(value, int) and value < 0:
            raise BadInput(f"{error}; {what}=None takes any") from None
        raise


def _check_out(out: Any) -> None:
    if out is None:
        return
    if not isinstance(out, np.ndarray) or is_masked(out):
        kind = "a masked array" if isinstance(out, np.ndarray) else type(out).__name__
        raise BadInput(f"out must be a NumPy array, not {kind}: without out=, recv returns the object that was sent")
    if not out.flags.writeable:
        raise BadInput("out must be writable, and is a read-only array: pass a copy of it")


def _put(x: Any, out: npt.NDArray[Any], status: native.MessageStatus, rank: int) -> npt.NDArray[Any]:
    """Copy a received array to ``out``, which has the same type and shape."""
    if not isinstance(x, np.ndarray) or x.dtype != out.dtype or x.shape != out.shape:
        sent = f"{x.dtype} of shape {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__
        raise Mismatch(
            f"rank {status.source} sent {sent} with tag {status.tag}, rank {rank} receives it in an array of "
            f"{out.dtype} of shape {out.shape}: pass an array like the one that is sent, or receive without out="
        )
    out[...] = x
    return out
