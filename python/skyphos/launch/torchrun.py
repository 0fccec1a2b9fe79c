"""Rendezvous under ``torchrun``, whose own store holds MASTER_PORT: rank 0 writes its address to that store.

Rank 0 listens on a port that its kernel picks, and writes ``host:port token`` under a key; the others read it. The key
is ``skyphos/TORCHELASTIC_RUN_ID/k`` for a process's k-th group.

The store outlives restarts, so after a restart it still holds the address of the previous rank 0.
TORCHELASTIC_RESTART_COUNT cannot distinguish attempts: each node counts its own failures, so ranks of one attempt
see different counts. But torchrun ends all processes before it restarts any, which closes the socket of the previous
rank 0. So a reader takes an address only if a process listens there, and else reads the store again.

Cost: one value in the store per group, read once per rank; the import of torch.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from ..errors import Timeout
from ..inputs import variables
from .torch_store import meet as meet_through

if TYPE_CHECKING:
    from ..launch.bootstrap import Bootstrap

__all__ = ["meet"]

_groups = itertools.count()


def meet(process: Bootstrap, timeout: float) -> Bootstrap:
    """Agree on a rendezvous through torchrun's store.

    Parameters
    ----------
    process : Bootstrap
        From :func:`skyphos.launch.bootstrap.discover`.
    timeout : float
        Seconds to wait for the store, and for rank 0.

    Returns
    -------
    Bootstrap
        With rank 0's address, its listening socket on rank 0, and a random token unless ``process`` has one.
        ``process`` itself if torchrun's store does not hold MASTER_PORT, another rendezvous is named, or torch is not
        installed.

    Raises
    ------
    Timeout
        The store cannot be reached, or rank 0 has not come.

    Examples
    --------
    >>> from skyphos.launch import Bootstrap
    >>> from skyphos.launch.torchrun import meet
    >>> meet(Bootstrap(rank=0, world_size=2, rendezvous="127.0.0.1:7000"), 1.0).rendezvous
    '127.0.0.1:7000'
    """
    named = variables.text("SKYPHOS_RENDEZVOUS")
    if named or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return process
    try:
        from torch.distributed import TCPStore
    except ImportError:
        return process
    host, port = os.environ["MASTER_ADDR"].strip(), int(os.environ["MASTER_PORT"])
    seconds = min(1e6, max(1.0, timeout))  # torch takes no endless time-out
    try:
        store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=seconds))
    except RuntimeError as error:
        raise Timeout(f"torchrun's store at {host}:{port} cannot be reached: {error}", call="init") from error
    key = f"skyphos/{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{next(_groups)}"
    master = (host, port, process.local_size == process.world_size)
    address, token, listen_fd = meet_through(store, key, process.rank, master, seconds, token=process.token)
    return replace(process, rendezvous=address, token=token, listen_fd=listen_fd)
