"""A group of Dask workers: ``sky.dask.run(client, fn)``.

One task a worker, bound to it. Rank 0's worker first holds a port, the driver hands its address to the others. A task
whose worker dies waits for ever to be run again there, so the driver asks the scheduler who is left.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from ..errors import BadInput, PeerLost, Timeout
from ._meeting import Endings, Outcome, Place, failed, hold, package, settings_of, take_part

__all__ = ["run"]

# The port that a worker holds for a group to come. Workers may share a process, and a driver may die in between.
_held: dict[str, tuple[socket.socket, str]] = {}


def run(
    client: Any,
    fn: Callable[..., Any],
    *args: Any,
    num_workers: int | None = None,
    timeout: float = 300.0,
    init_options: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Run ``fn(comm, *args)`` on the workers of a Dask cluster, which are a group.

    Parameters
    ----------
    client : distributed.Client
    fn : callable
        Called on each rank with its :class:`skyphos.Comm`. What it returns must pickle.
    *args
        Further arguments, the same for all ranks; a ``Future`` arrives as what it stands for.
    num_workers : int, optional
        How many workers, each of which is one rank; default all.
    timeout : float, default 300.0
        Seconds without any progress in making the group or in a call: so long may workers be busy with other tasks.
    init_options : mapping, optional
        Further arguments of :func:`skyphos.init`, such as ``tls`` or ``profile``.

    Returns
    -------
    list
        What ``fn`` returned, by rank: in the order of the workers' addresses.

    Raises
    ------
    BadInput, Timeout, RankFailed, PeerLost
        No ``distributed``, or fewer workers. Rank 0's worker is busy longer than ``timeout``.
        ``fn`` raised on a rank (the exception is the cause). A worker ended.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> from distributed import Client  # doctest: +SKIP
    >>> def body(comm, scale):
    ...     x = sky.SparseVector([comm.rank, 9], np.array([1.0, scale]), n=10)
    ...     return comm.allreduce(x).to_dense()[9]
    >>> with Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:  # doctest: +SKIP
    ...     sky.dask.run(client, body, 0.5)
    [np.float64(1.0), np.float64(1.0)]
    """
    settings = settings_of(fn, num_workers, timeout, init_options)
    package("distributed", "dask")
    workers, futures, rendezvous, token = sorted(client.nthreads()), [], None, secrets.token_hex(16)
    size = len(workers) if num_workers is None else num_workers
    if not 1 <= size <= len(workers):
        raise BadInput(
            f"num_workers={num_workers}, but the Dask cluster has {len(workers)} workers: ask for fewer, or wait for "
            f"them first (client.wait_for_workers({max(1, size)}, timeout=60))"
        )

    def submit(rank: int, body: Callable[..., Outcome], *given: Any) -> Any:
        # Not pure: the same call is another run. No other worker: that one is a rank itself.
        futures.append(client.submit(body, *given, workers=[workers[rank]], pure=False, retries=0))
        return futures[-1]

    try:
        if size > 1:
            rendezvous = _follow(client, [submit(0, _hold, token)], workers, timeout).results()[0]
        places = [Place(rank, size, rendezvous, token, settings) for rank in range(size)]
        return _follow(client, [submit(one.rank, _part, one, fn, *args) for one in places], workers).results()
    finally:
        client.cancel(futures)


def _follow(client: Any, futures: list[Any], workers: list[str], within_s: float = math.inf) -> Endings:
    """Wait for outcomes and look for workers that are no more."""
    distributed = package("distributed", "dask")
    endings, until = Endings(len(futures)), time.monotonic() + within_s
    while awaited := endings.awaited:
        with contextlib.suppress(TimeoutError):
            distributed.wait([futures[rank] for rank in awaited], timeout=0.5, return_when="FIRST_COMPLETED")
        there = client.nthreads()
        for rank in awaited:
            future = futures[rank]
            if future.status == "finished":
                endings.add(future.result())
            elif future.status == "pending" and workers[rank] in there:
                continue
            elif future.status == "error" and not isinstance(future.exception(), distributed.KilledWorker):
                endings.add(failed(rank, future.exception(), package("cloudpickle", "dask").dumps))
            else:
                endings.lose(rank, f"{workers[rank]} has left the Dask cluster: it was killed, or its host is down")
        if endings.awaited and time.monotonic() > until:
            raise Timeout(f"the Dask worker at {workers[0]} had no free thread within {within_s:g} s")
    return endings


def _hold(token: str) -> Outcome:
    worker = package("distributed", "dask").get_worker()
    # The address that the other workers know. In a cluster inside one process there is none.
    place = urlsplit(worker.address)
    listener, address = hold("127.0.0.1" if place.scheme == "inproc" else str(place.hostname))
    _held[worker.address] = listener, token
    return Outcome(0, socket.gethostname(), address)


def _part(place: Place, fn: Callable[..., Any], *args: Any) -> Outcome:
    worker, dumps = package("distributed", "dask").get_worker(), package("cloudpickle", "dask").dumps
    listener, token = _held.pop(worker.address, (None, None)) if place.rank == 0 else (None, None)
    if place.rank == 0 and place.size > 1 and token != place.token:
        return failed(0, PeerLost("the worker of rank 0 was started anew, and its group is gone", rank=0), dumps)
    return take_part(place, fn, args, listener=listener, cpus=worker.state.nthreads, dumps=dumps)
