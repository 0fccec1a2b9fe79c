"""The errors that Skyphos raises.

One base class, :class:`SkyphosError`, and one class for each thing that a caller may want to handle in its
own way. If Python has a class for the situation, ours is a subclass of it, so that ``except TimeoutError`` and
``except ConnectionError`` work in code that does not know Skyphos.

A collective that fails on one rank fails on all of them ("everyone raises or nobody"), so a group may catch
an error, agree on what to do, and make its next call.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from .call_names import in_words

if TYPE_CHECKING:
    from typing import Any, TypeVar

    E = TypeVar("E", bound=BaseException)

__all__ = ["BadInput", "Diverged", "Mismatch", "PeerLost", "Refused", "SkyphosError", "Timeout"]


def text_of(error: BaseException) -> str:
    """Return the text of an error, encodable even if its ``__str__`` fails or returns surrogates.

    Examples
    --------
    >>> from skyphos.errors import text_of
    >>> text_of(ValueError("no file 'a\\udcff'"))
    "no file 'a\\\\udcff'"
    """
    try:
        text = str(error)
    except BaseException as second:
        text = f"(no text: its __str__ raised {type(second).__name__})"
    return text.encode("utf-8", "backslashreplace").decode()


def mark_raised_by_all(error: E) -> E:
    """Mark an error as raised on all ranks, with the present time; return it.

    Examples
    --------
    >>> from skyphos.errors import is_raised_by_all, mark_raised_by_all
    >>> is_raised_by_all(mark_raised_by_all(ValueError()), since=0)
    True
    """
    error._raised_by_all_at = monotonic_ns()  # type: ignore[attr-defined]
    return error


def is_raised_by_all(error: BaseException, since: int) -> bool:
    """True if an error or its cause was marked at or after ``since`` (``time.monotonic_ns()``).

    A program may raise one exception object several times, so a mark of an earlier call must not count for a later one.

    Examples
    --------
    >>> from skyphos.errors import is_raised_by_all, mark_raised_by_all
    >>> reworded = ValueError("in restore: ranks disagree")
    >>> reworded.__cause__ = mark_raised_by_all(ValueError("ranks disagree"))
    >>> is_raised_by_all(reworded, since=0)
    True
    """
    return any(getattr(one, "_raised_by_all_at", -1) >= since for one in (error, error.__cause__))


class SkyphosError(RuntimeError):
    """Base of every error that Skyphos raises on purpose.

    It is a ``RuntimeError``, as the errors of mpi4py and ``torch.distributed`` are: code that handles theirs handles it
    too.

    Attributes
    ----------
    result : object
        The result of the call if it has one despite the error, else None. After a loss in
        :meth:`skyphos.Comm.broadcast` the remaining ranks have the object; :meth:`skyphos.Comm.sendrecv` may fail to
        send after it has received.

    Examples
    --------
    >>> from skyphos.errors import BadInput, SkyphosError
    >>> issubclass(BadInput, SkyphosError)
    True
    """

    result: Any = None

    #: The encoding that is sent to other ranks, if the native library raised the error.
    _wire: bytes | None = None

    def __init__(self, message: str = "") -> None:
        super().__init__(in_words(message))


class PeerLost(SkyphosError, ConnectionError):
    """Another rank of the group ended, or its connection broke.

    Parameters
    ----------
    message : str
        The lost rank, and the call.
    rank : int or None
        The lost rank, by its number in the group of the call; None: it is not in that group, but other ranks of the
        group can go on only without it.
    address : str or None
        Its last known address, ``host:port``.

    Examples
    --------
    >>> from skyphos.errors import PeerLost
    >>> lost = PeerLost("rank 3 (10.0.0.4:7101) closed its connection", rank=3, address="10.0.0.4:7101")
    >>> lost.rank, isinstance(lost, ConnectionError)
    (3, True)
    """

    def __init__(self, message: str = "", *, rank: int | None = None, address: str | None = None) -> None:
        super().__init__(message)
        self.rank = rank
        self.address = address


class Timeout(SkyphosError, TimeoutError):
    """Some ranks did not come to a call within the group's time-out.

    Parameters
    ----------
    message : str
        The missing ranks, the call, and the time.
    missing : tuple of int
        The missing ranks, by their numbers in the group of the call.
    call : str or None
        The call in which they were expected.

    Examples
    --------
    >>> from skyphos.errors import Timeout
    >>> late = Timeout("ranks 1, 2 did not come to barrier within 300 s", missing=(1, 2), call="barrier")
    >>> late.missing, isinstance(late, TimeoutError)
    ((1, 2), True)
    """

    def __init__(self, message: str = "", *, missing: tuple[int, ...] = (), call: str | None = None) -> None:
        super().__init__(message)
        self.missing = tuple(missing)
        self.call = None if call is None else in_words(call)


class Mismatch(SkyphosError):
    """Two ranks were in different calls, or in the same call with another n, dtype or operation.

    The message names both sides. The group stays usable: the call had no effect on any rank.

    Examples
    --------
    >>> from skyphos.errors import Mismatch
    >>> str(Mismatch("rank 0 is in reduce(op=sum), rank 2 in barrier"))
    'rank 0 is in reduce(op=sum), rank 2 in barrier'
    """


class Diverged(SkyphosError):
    """One rank completed a call that another left with an error at the same time.

    A rank that enters a call after a peer has left it with an error raises. But within the time of one message, one
    rank can complete a call that another leaves. Ranks then no longer agree which calls have succeeded, so every later
    call of the group raises this on all ranks. Make a new group with :meth:`skyphos.Comm.shrink`, and continue from a
    state that all ranks share, such as a checkpoint.

    Examples
    --------
    >>> from skyphos.errors import Diverged, SkyphosError
    >>> issubclass(Diverged, SkyphosError)
    True
    """


class BadInput(SkyphosError, ValueError):
    """An argument, a file or a setting that cannot be used as it is.

    The message says which one, what is wrong with it, and in a file on which line.

    Examples
    --------
    >>> from skyphos.errors import BadInput
    >>> isinstance(BadInput("edges.txt, line 7: not an edge: 'a b'"), ValueError)
    True
    """


class Refused(SkyphosError):
    """The group did not let this process in: wrong token, rank already taken, or another version.

    Examples
    --------
    >>> from skyphos.errors import Refused
    >>> str(Refused("rank 2 is already taken"))
    'rank 2 is already taken'
    """
