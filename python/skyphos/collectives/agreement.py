"""Agreement: errors that all ranks raise together, and numbers that all ranks get.

An error that one rank finds between two calls is reported to the others (:func:`report_error`, :func:`collective`), or
raised on all by a separate call (:func:`together`). Numbers are gathered by a configured reduce: if each index has
exactly one contributor, the "sum" is that rank's value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from .. import _skyphos as native
from ..errors import BadInput, PeerLost, SkyphosError, is_raised_by_all, mark_raised_by_all, text_of

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = [
    "agree_arguments",
    "collective",
    "error_for_peers",
    "fail",
    "gather_numbers",
    "raise_if",
    "reduce_number",
    "report_error",
    "together",
]

P = ParamSpec("P")
T = TypeVar("T")

# An error's message is sent to other ranks up to this many bytes.
_MESSAGE_BYTES = 1024


def reduce_number(comm: Comm, number: float, op: str = "sum", dtype: npt.DTypeLike = np.int64) -> Any:
    """Combine one number of each rank; every rank gets the result.

    Examples
    --------
    >>> import skyphos as sky
    >>> from skyphos.collectives.agreement import reduce_number
    >>> with sky.init() as comm:
    ...     reduce_number(comm, 7)
    7
    """
    slot = np.zeros(1, np.int64)
    return comm.configure_reduce(slot, slot, np.array([number], dtype), n=1, op=op)[0].item()


def gather_numbers(comm: Comm, number: int) -> npt.NDArray[np.int64]:
    """One number of each rank, by rank; every rank gets all.

    Examples
    --------
    >>> import skyphos as sky
    >>> from skyphos.collectives.agreement import gather_numbers
    >>> with sky.init() as comm:
    ...     gather_numbers(comm, 7)
    array([7])
    """
    return comm.configure_reduce([comm.rank], np.arange(comm.size), np.array([number], np.int64), n=comm.size)


def together(comm: Comm, work: Callable[[], T]) -> T:
    """Run ``work`` on this rank; if it fails on any rank, raise on all.

    A rank that fails alone would leave the others waiting in the next collective.

    Parameters
    ----------
    comm : Comm
        All its ranks must make this call.
    work : callable
        A function that makes no collective calls.

    Returns
    -------
    object
        The result of ``work`` on this rank.

    Raises
    ------
    SkyphosError
        On every rank, the error of the first rank that failed; :class:`BadInput` if it was one.

    Examples
    --------
    >>> import skyphos as sky
    >>> from skyphos.collectives.agreement import together
    >>> with sky.init() as comm:
    ...     together(comm, lambda: 6 * 7)
    42
    """
    error: BaseException | None = None
    result: T | None = None
    try:
        result = work()
    except BaseException as caught:  # any exception: the other ranks must raise too
        error = caught
    first = reduce_number(comm, comm.size if error is None else comm.rank, op="min")
    if first == comm.size:
        return result  # type: ignore[return-value]
    text = b""
    if comm.rank == first and error is not None:
        kind = "B" if isinstance(error, BadInput) else "S"
        is_ours = isinstance(error, SkyphosError)
        said = text_of(error) if is_ours else f"rank {first}: {_class_and_text(error)}"
        text = (kind + said).encode()[:_MESSAGE_BYTES]
    letters = np.frombuffer(text, np.uint8)
    positions = np.arange(_MESSAGE_BYTES)
    sent = positions[: len(letters)]
    received = comm.configure_reduce(sent, positions, letters, n=_MESSAGE_BYTES, missing="identity")
    if error is not None and not isinstance(error, Exception):
        raise mark_raised_by_all(error)  # this rank re-raises Ctrl-C and sys.exit() unchanged
    said = received.tobytes().rstrip(b"\0").decode("utf-8", "replace")
    raise mark_raised_by_all((BadInput if said[:1] == "B" else SkyphosError)(said[1:])) from error


def report_error(comm: Comm, error: BaseException, *, goes_on: bool = False) -> BaseException:
    """Make the group's next call fail on all ranks with an error found on this one; return what to raise here.

    A Python exception becomes a :class:`BadInput` with the same text; Ctrl-C and ``sys.exit()`` are not changed.
    With ``goes_on`` this rank still makes the calls that follow, like ranks that have not received the error yet.
    """
    wire, text, raised = error_for_peers(error, comm.rank)
    if comm.size > 1 and not comm._native.closed:
        comm._native.fail_call(text, wire, goes_on)
    return mark_raised_by_all(raised)


def fail(comm: Comm, error: BaseException, *, goes_on: bool = False) -> NoReturn:
    """Raise an error found before the start of a call, on all ranks. ``goes_on``: see :func:`report_error`."""
    raise report_error(comm, error, goes_on=goes_on) from None


def error_for_peers(error: BaseException, rank: int) -> tuple[bytes | None, str, BaseException]:
    """An error as sent to other ranks (the native library's encoding, else a text), and the one to raise here."""
    wire = error._wire if isinstance(error, SkyphosError) else None
    text, raised = text_of(error), error
    if not isinstance(error, Exception):
        text = "interrupted" if isinstance(error, KeyboardInterrupt) else _class_and_text(error)
        wire = native.wire_of_leaving(rank, text)
    elif not isinstance(error, SkyphosError):
        raised = BadInput(text)
    return wire, text, raised


def collective(
    comm_of: Callable[[Any], Comm] | None = None, *, argument: int = 0
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a collective: an error that this rank raises before, between or after the messages is raised on all.

    Such errors are refused arguments, Ctrl-C between the two parts of a call, and lack of memory. The group's next call
    fails on the other ranks, which would otherwise wait, or mistake that call for another. If another rank has
    completed the collective by then, later calls raise :class:`~skyphos.errors.Diverged` on all ranks.

    Parameters
    ----------
    comm_of : callable, optional
        Returns the group from the argument at position ``argument``. None: that argument is the group, named ``comm``.
    argument : int, default 0
        Position of the argument; 1 in methods that take the group.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                comm: Any = args[argument] if comm_of is None else comm_of(args[argument])
                member = comm._native
            except (AttributeError, IndexError):
                comm = kwargs.get("comm")
                member = getattr(comm, "_native", None)
                if member is None:
                    return function(*args, **kwargs)  # not a Comm: the function raises
            entered, first = monotonic_ns(), member.calls_begun()
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                raised = error if is_raised_by_all(error, since=entered) else report_error(comm, error)
                if not isinstance(raised, PeerLost):
                    member.note_failure_since(first)
                if raised is error:
                    raise
                raise raised from error

        return call

    return decorate


def _class_and_text(error: BaseException) -> str:
    """An error's class and text."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def agree_arguments(comm: Comm, function: str, **arguments: Any) -> None:
    """Raise :class:`Mismatch` on all ranks, naming the arguments, if ranks pass different ones. Collective.

    Examples
    --------
    >>> import skyphos as sky
    >>> from skyphos.collectives.agreement import agree_arguments
    >>> with sky.init() as comm:
    ...     agree_arguments(comm, "pagerank", damping=0.85, tol=1e-8)
    """
    if comm.size > 1:
        comm._native.agree_arguments(function, [(name, _as_text(value)) for name, value in arguments.items()])


# An argument's text is sent to other ranks up to this many characters; a longer one is cut, and gets a checksum.
_MAX_CHARACTERS = 200


def _as_text(value: Any) -> str:
    """An argument as text; equal arguments have equal texts."""
    if isinstance(value, Mapping):
        value = dict(sorted(value.items(), key=repr))
    if callable(value):
        value = getattr(value, "__qualname__", type(value).__name__)
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= _MAX_CHARACTERS:
        return text
    from zlib import crc32

    return f"{text[:_MAX_CHARACTERS]}… ({len(text)} characters, checksum {crc32(text.encode()):08x})"


def raise_if(error: BaseException | None) -> None:
    """Raise an error if there is one; for use with :func:`together`."""
    if error is not None:
        raise error
