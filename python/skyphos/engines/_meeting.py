"""Groups of an engine's workers: rendezvous, running the function on each rank, and collecting the outcomes.

1. The driver makes a random token (:func:`settings_of` checks the arguments).
2. Rank 0's worker listens on a free port (:func:`listen`); the engine passes its address to the others.
3. Each worker joins the group, runs the function and returns an :class:`Outcome` (:func:`take_part`). An error is an
   outcome too: engines retry a function that raises, and a single rank must not be run again.
4. The driver waits until all have ended, or a short time after the first failure, and returns the results or raises
   the error that caused the others (:class:`Outcomes`).
"""

from __future__ import annotations

import pickle
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ..errors import BadInput, PeerLost, SkyphosError
from ..group import init
from ..inputs import variables

__all__ = [
    "Member",
    "Outcome",
    "Outcomes",
    "RankFailed",
    "address_toward",
    "failed",
    "listen",
    "pack",
    "package",
    "settings_of",
    "take_part",
]

# Arguments of init that the engine sets, and replication, which is useless if any lost worker fails the run.
_NOT_SETTINGS = ("rank", "world_size", "rendezvous", "token", "transport", "timeout", "replication", "share_hosts")

#: Seconds for ranks to end by themselves after one has failed: they notice it in their next call.
GRACE_S = 5.0


class RankFailed(SkyphosError):
    """The function raised on a rank; the exception itself is the ``__cause__``.

    Parameters
    ----------
    message : str
        The rank, its host, and the traceback.
    rank : int or None
        The rank.

    Examples
    --------
    >>> from skyphos.engines import RankFailed
    >>> RankFailed("rank 2 of 4 on n7 raised ValueError: negative weight", rank=2).rank
    2
    """

    def __init__(self, message: str = "", *, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


@dataclass(frozen=True)
class Member:
    """One rank of a group, and how it joins.

    Attributes
    ----------
    rank, size : int
    rendezvous : str or None
        ``host:port`` at which rank 0 listens; None in a group of one.
    token : str
    settings : mapping
        Further arguments of :func:`skyphos.init`.
    """

    rank: int
    size: int
    rendezvous: str | None
    token: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """Outcome of a rank: the result of the function, or the exception and its traceback as text."""

    rank: int
    host: str
    value: Any = None
    error: BaseException | None = None
    trace: str = ""


def package(name: str, extra: str) -> Any:
    """Import an engine's package; BadInput with the pip command if it is not installed.

    Examples
    --------
    >>> from skyphos.engines._meeting import package
    >>> package("no_such", "ray")
    Traceback (most recent call last):
    ...
    skyphos.errors.BadInput: sky.ray needs the package no_such, which is not installed: pip install 'skyphos[ray]'
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != name.partition(".")[0]:
            raise  # the engine is installed; another package is missing
        message = f"sky.{extra} needs the package {error.name}, which is not installed: pip install 'skyphos[{extra}]'"
        raise BadInput(message) from None


def settings_of(
    fn: Callable[..., Any], num_workers: int | None, timeout: float, init_options: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Further arguments of ``init`` on each rank; BadInput before anything is started."""
    if num_workers is not None and (not isinstance(num_workers, int) or num_workers < 1):
        raise BadInput(f"num_workers must be a whole number, at least 1, not {num_workers!r}")
    if not callable(fn):
        raise BadInput(f"run needs a function of a Comm, not {fn!r}")
    if not timeout > 0:
        raise BadInput(f"timeout must be a positive number of seconds, not {timeout!r}")
    for name in _NOT_SETTINGS:
        if name in (init_options or {}):
            raise BadInput(f"{name} cannot be among init_options: {_why_not(name)}")
    return {"timeout": timeout, **(init_options or {})}


def _why_not(name: str) -> str:
    if name == "timeout":
        return "it is an argument of run itself"
    if name in ("replication", "share_hosts"):
        return "run ends with the first worker that is lost, so replicas would save nothing"
    return "the engine sets it"


def listen(host: str) -> tuple[socket.socket, str]:
    """A socket that listens on a free port, and its ``host:port``; it stays open, so that no other program gets the
    port.

    Examples
    --------
    >>> from skyphos.engines._meeting import listen
    >>> listener, address = listen("127.0.0.1")
    >>> address == f"127.0.0.1:{listener.getsockname()[1]}"
    True
    >>> listener.close()
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family, backlog=1024)
    except OSError:  # a translated address (NAT, containers), which no interface of this machine has
        listener = socket.create_server(("", 0), family=family, backlog=1024)
    port = listener.getsockname()[1]
    return listener, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_toward(host: str) -> str:
    """This machine's address on the route to a host, by which the host reaches it. Nothing is sent."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def take_part(
    member: Member,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    listener: socket.socket | None,
    cpus: float,
    dumps: Any,
) -> Outcome:
    """Join the group, run ``fn(comm, *args)`` and leave the group, so that the other ranks notice an early end.

    ``cpus`` is the number that the engine gave this worker, ``dumps`` the engine's pickling function.
    """
    settings = dict(member.settings)
    if variables.text("SKYPHOS_THREADS") is None:
        # By default a rank would use all cores of the host.
        settings.setdefault("threads", max(1, int(cpus)))
    try:
        with init(
            rank=member.rank,
            world_size=member.size,
            rendezvous=member.rendezvous,
            token=member.token,
            transport="tcp",
            _listen_fd=None if listener is None else listener.detach(),
            **settings,
        ) as comm:
            return Outcome(member.rank, socket.gethostname(), fn(comm, *args))
    except BaseException as error:  # SystemExit too: it would end the engine's own worker
        return failed(member.rank, error, dumps)


def failed(rank: int, error: BaseException, dumps: Any) -> Outcome:
    """The outcome of a rank that raised; an exception that cannot be pickled is replaced by its text."""
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickle.loads(dumps(error))
    except Exception:
        error = RuntimeError(_text(error))
    return Outcome(rank, socket.gethostname(), error=error.with_traceback(None), trace=trace)


def pack(outcome: Outcome, dumps: Any) -> bytes:
    """The outcome as bytes; if the result cannot be pickled, the outcome is that error."""
    try:
        return bytes(dumps(outcome))
    except Exception as error:
        return bytes(dumps(failed(outcome.rank, error, dumps)))


class Outcomes:
    """Outcomes of the ranks of a group, in the order in which the driver received them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._outcomes: dict[int, Outcome] = {}
        self._lost: dict[int, str] = {}
        self._until: float | None = None

    def add(self, outcome: Outcome) -> None:
        self._outcomes[outcome.rank] = outcome
        if outcome.error is not None:
            self._begin_grace()

    def lose(self, rank: int, why: str) -> None:
        """Record that a rank's process ended without an outcome."""
        self._lost[rank] = why
        self._begin_grace()

    def _begin_grace(self) -> None:
        self._until = self._until or time.monotonic() + GRACE_S

    @property
    def awaited(self) -> list[int]:
        """Ranks to wait for; empty when the grace after a failure is over."""
        if self._until is not None and time.monotonic() > self._until:
            return []
        return [rank for rank in range(self._size) if rank not in self._outcomes and rank not in self._lost]

    def results(self) -> list[Any]:
        """The results of the function by rank; raises the error that caused the others."""
        raised = [one for one in self._outcomes.values() if one.error is not None]
        # PeerLost on one rank follows from the end of another, whose own error is the cause.
        first = next((one for one in raised if not isinstance(one.error, PeerLost)), None)
        if first is not None:
            raise RankFailed(self._description(first), rank=first.rank) from first.error
        for rank, why in self._lost.items():
            raise PeerLost(f"rank {rank} of {self._size} lost its worker: {why}", rank=rank)
        for one in raised:
            assert isinstance(one.error, PeerLost)
            raise PeerLost(self._description(one), rank=one.error.rank, address=one.error.address) from one.error
        return [self._outcomes[rank].value for rank in range(self._size)]

    def _description(self, one: Outcome) -> str:
        assert one.error is not None
        return f"rank {one.rank} of {self._size} on {one.host} raised {_text(one.error)}\n\n{one.trace}"


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
