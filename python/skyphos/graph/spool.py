"""Spool of graphs from stdin and pipes: read once, to a temporary file that all ranks of the host read.

``-`` is stdin; ``/dev/stdin``, ``/dev/fd/63`` (a shell's ``<(zcat g.gz)``), FIFOs and sockets are pipes. A pipe can be
read only once and has no seek, but a reader inspects the beginning of a file first, and each rank reads its own share.
So rank 0 alone reads the pipe.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from ..collectives.agreement import together
from ..errors import BadInput

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["is_stream", "shared", "spooled"]

_DESCRIPTOR = re.compile(r"/dev/stdin|/dev/fd/\d+|/proc/(?:self|\d+)/fd/\d+")


def is_stream(path: str) -> bool:
    """True if a name is that of a source that can be read only once, by one process.

    Examples
    --------
    >>> from skyphos.graph.spool import is_stream
    >>> is_stream("-"), is_stream("/dev/fd/63"), is_stream("edges.txt")
    (True, True, False)
    """
    if path == "-" or _DESCRIPTOR.fullmatch(path):
        return True
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)


@contextmanager
def spooled(path: str) -> Iterator[str]:
    """The name of a temporary file with the content of a stream, until the end of the block.

    Raises
    ------
    BadInput
        If the stream cannot be read, or stdin is a terminal or closed.
    """
    with tempfile.TemporaryDirectory(prefix="skyphos-") as folder:
        name = os.path.join(folder, "stream")
        with _opened(path) as stream, open(name, "wb") as file:
            try:
                shutil.copyfileobj(stream, file, 1 << 20)
            except OSError as error:
                raise BadInput(f"{path}: {error.strerror or error}") from None
        yield name


@contextmanager
def shared(comm: Comm, path: str) -> Iterator[str]:
    """On all ranks, the name of a temporary file with the content of rank 0's stream, until the end of the block.
    Collective.

    All ranks must have read the file when rank 0 leaves the block.

    Raises
    ------
    BadInput
        On all ranks, if the stream cannot be read, or a rank is on another host, where the file does not exist.
    """
    with ExitStack() as stack:
        mine = together(comm, lambda: stack.enter_context(spooled(path)) if comm.rank == 0 else "")
        name = os.fsdecode(
            bytes(comm.broadcast(np.frombuffer(os.fsencode(mine), np.uint8) if comm.rank == 0 else None))
        )
        together(comm, lambda: _check_seen(comm, name, path))
        yield name


def _check_seen(comm: Comm, name: str, path: str) -> None:
    if not os.path.exists(name):
        raise BadInput(
            f"{path}: rank {comm.rank} is on another host than rank 0, which alone reads what is piped: save the "
            "graph to a file that all hosts have"
        )


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path in ("-", "/dev/stdin", "/dev/fd/0"):
        if sys.stdin is None or sys.stdin.closed:
            raise BadInput(f"{path}: stdin is closed: there is no graph to read")
        if sys.stdin.isatty():
            raise BadInput(f"{path}: stdin is a terminal: send the graph there, as in `cat graph.txt | skyphos …`")
        yield sys.stdin.buffer
        return
    try:
        with open(path, "rb") as stream:
            yield stream
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from None
