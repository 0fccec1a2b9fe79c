"""Exit handlers: at the end of a program its groups are closed in order, and peers receive the reason if it failed.

Without them peers would only see closed connections, would fail too, and would then report each other as lost.
"""

from __future__ import annotations

import atexit
import sys
import weakref
from types import TracebackType
from typing import TYPE_CHECKING

from ..errors import PeerLost, SkyphosError, text_of
from .failures import tell_launcher

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["close_failed", "close_later"]

# Seconds that unfinished non-blocking calls get at the end of a program: other ranks may wait for them.
_FINISH_S = 0.5

_open: weakref.WeakSet[Comm] = weakref.WeakSet()

_handlers_are_set = False


def close_later(comm: Comm) -> None:
    """Close a group when the program ends, in any way."""
    global _handlers_are_set  # noqa: PLW0603
    if not _handlers_are_set:
        _handlers_are_set = True
        atexit.register(_close_all)
        before = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            # First, so that peers receive the reason before they notice the closed connections.
            for one in list(_open):
                close_failed(one, error)
            # The launcher prints the traceback as Python would. A hook that the program has set is called in any case.
            if before is not sys.__excepthook__ or not tell_launcher(error):
                before(kind, error, trace)

        sys.excepthook = hook
    _open.add(comm)


def close_failed(comm: Comm, error: BaseException) -> None:
    """Close a group because of an error, and send the peers its class and message."""
    _close(comm, _reason(error))


def _reason(error: BaseException) -> str | None:
    """The error as text, traced back to the rank that failed first; None for ``sys.exit(0)``, which is no failure."""
    text = text_of(error)
    if isinstance(error, SystemExit) and not error.code:
        return None
    if isinstance(error, PeerLost):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _close_all() -> None:
    for comm in list(_open):
        _close(comm, None)


def _close(comm: Comm, why: str | None) -> None:
    _open.discard(comm)
    try:
        if comm._stages is not None:
            comm._stages.close()
        comm._native.close_at_exit(_FINISH_S, why)
    except SkyphosError as error:
        import logging  # here, since most programs never need it

        logging.getLogger("skyphos").warning("%s", text_of(error))
