"""Meeting under ``torchrun``, whose own store holds MASTER_PORT: rank 0 says through that store where it is.

Rank 0 listens on a port that its kernel picks, and writes ``host:port token`` under a key; the others read it. The key
is ``skyphos/TORCHELASTIC_RUN_ID/k`` for a process's k-th group.

The store outlives restarts, so what a rank 0 wrote that has died is still there when everyone comes again.
TORCHELASTIC_RESTART_COUNT does not tell attempts apart: each node counts its own failures, so that ranks of one attempt
see different counts. But torchrun ends all processes before it starts the first one anew, and with rank 0 its
socket closed. So a reader takes an address only where somebody listens, and else looks again.

Cost: one value in the store a group, read once a rank; the import of torch.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..errors import Timeout

if TYPE_CHECKING:
    from ..bootstrap import Bootstrap

__all__ = ["meet"]

_REACH_S = 5.0  # for one connection to rank 0
_groups = itertools.count()


def meet(place: Bootstrap, timeout: float) -> Bootstrap:
    """Agree on a rendezvous through torchrun's store.

    Parameters
    ----------
    place : Bootstrap
        What :func:`skyphos.bootstrap.discover` found.
    timeout : float
        Seconds to wait for the store, and for rank 0.

    Returns
    -------
    Bootstrap
        With rank 0's address, its listening socket on rank 0, and a random token unless ``place`` has one. ``place``
        itself where torchrun's store does not hold MASTER_PORT, another rendezvous is named, or there is no torch.

    Raises
    ------
    Timeout
        The store cannot be reached, or rank 0 has not come.

    Examples
    --------
    >>> from skyphos.bootstrap import Bootstrap
    >>> from skyphos.engines.torchrun import meet
    >>> meet(Bootstrap(rank=0, world_size=2, rendezvous="127.0.0.1:7000"), 1.0).rendezvous
    '127.0.0.1:7000'
    """
    named = os.environ.get("SKYPHOS_RENDEZVOUS", "").strip()
    if named or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return place
    try:
        from torch.distributed import TCPStore
    except ImportError:
        return place
    host, port = os.environ["MASTER_ADDR"].strip(), int(os.environ["MASTER_PORT"])
    seconds = min(1e6, max(1.0, timeout))  # torch takes no endless time-out
    try:
        store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=seconds))
    except RuntimeError as error:
        raise Timeout(f"torchrun's store at {host}:{port} cannot be reached: {error}", call="init") from error
    key = f"skyphos/{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{next(_groups)}"
    if place.rank == 0:
        token = place.token or secrets.token_hex(16)
        listener, address = _listen(place, host, port)
        store.set(key, f"{address} {token}")
        return replace(place, rendezvous=address, token=token, listen_fd=listener.detach())
    address, token = _find(store, key, time.monotonic() + seconds)
    return replace(place, rendezvous=address, token=place.token or token)


def _listen(place: Bootstrap, master: str, port: int) -> tuple[socket.socket, str]:
    """A socket that listens, and how the other ranks reach it."""
    if place.local_size == place.world_size or master == "localhost" or master.startswith("127."):
        host, family, interface = "127.0.0.1", socket.AF_INET, "127.0.0.1"
    else:
        family, _, _, _, there = socket.getaddrinfo(master, port, type=socket.SOCK_DGRAM)[0]
        interface = ""
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((there[0], 0))
                host = master  # this host, which the others know by that name
            except OSError:
                probe.connect(there)  # sends nothing, but says from which address it would
                host = probe.getsockname()[0]
    listener = socket.create_server((interface, 0), family=family, backlog=1024)
    return listener, f"{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def _find(store: Any, key: str, deadline: float) -> tuple[str, str]:
    """Rank 0's address and token, once it listens. Short looks, between which Ctrl-C gets through."""
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
    raise Timeout(f"rank 0 did not come to init through torchrun's store: {said}", missing=(0,), call="init")
