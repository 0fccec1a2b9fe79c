"""Rendezvous through a key-value store of PyTorch: rank 0 writes its address there, and the other ranks read it."""

from __future__ import annotations

import secrets
import socket
import time
from typing import Any

from ..errors import Timeout

__all__ = ["listen", "meet"]

_REACH_S = 5.0  # for one connection to rank 0


def listen(master: str, port: int, *, one_host: bool) -> tuple[socket.socket, str]:
    """A listening socket, and the ``host:port`` by which ranks that reach ``master`` reach it.

    Examples
    --------
    >>> from skyphos.launch.torch_store import listen
    >>> listener, address = listen("127.0.0.1", 29500, one_host=True)
    >>> address == f"127.0.0.1:{listener.getsockname()[1]}"
    True
    >>> listener.close()
    """
    if one_host or master == "localhost" or master.startswith("127."):
        host, family, interface = "127.0.0.1", socket.AF_INET, "127.0.0.1"
    else:
        family, _, _, _, there = socket.getaddrinfo(master, port, type=socket.SOCK_DGRAM)[0]
        interface = ""
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((there[0], 0))
                host = master  # this host, which the others know by that name
            except OSError:
                probe.connect(there)  # sends nothing, but finds this host's address on the route to there
                host = probe.getsockname()[0]
    listener = socket.create_server((interface, 0), family=family, backlog=1024)
    return listener, f"{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def meet(
    store: Any, key: str, rank: int, master: tuple[str, int, bool], seconds: float, *, token: str | None = None
) -> tuple[str, str, int | None]:
    """Return rank 0's address, the group's token (random unless one is given), and on rank 0 the listening socket.

    ``master`` is a host and port that all ranks reach, and whether all are on one host; all ranks pass the same
    ``key``.
    """
    if rank != 0:
        address, random = _find(store, key, seconds)
        return address, token or random, None
    host, port, one_host = master
    listener, address = listen(host, port, one_host=one_host)
    token = token or secrets.token_hex(16)
    store.set(key, f"{address} {token}")
    return address, token, listener.detach()


def _find(store: Any, key: str, seconds: float) -> tuple[str, str]:
    """Rank 0's address and token, once it listens. Waits for short times, between which Ctrl-C is handled."""
    deadline = time.monotonic() + seconds
    pause, said = 0.01, "it has not said where it is"
    while time.monotonic() < deadline:
        if store.check([key]):
            address, token = store.get(key).decode().split()
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
                return address, token
            except OSError as error:
                said = f"it said {address}, which cannot be reached from here ({error})"
        time.sleep(pause)
        pause = min(2 * pause, 0.5)
    raise Timeout(f"rank 0 did not come to init through torch's store: {said}", missing=(0,), call="init")
