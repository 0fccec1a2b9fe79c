"""A group of Dask workers: ``sky.dask.run(client, fn)``.

One task per worker, bound to it. Rank 0's worker first opens a port, and the driver passes its address to the others.
A task whose worker dies never completes, so the driver asks the scheduler for the remaining workers.
"""

from __future__ import annotations

import math
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from ..errors import BadInput, PeerLost, Timeout
from ._meeting import Member, Outcome, Outcomes, failed, listen, package, settings_of, take_part

__all__ = ["run"]

# The listening socket for a future group and the group's token, by worker, because workers may share a process.
_listeners: dict[str, tuple[socket.socket, str]] = {}


def run(
    client: Any,
    fn: Callable[..., Any],
    *args: Any,
    num_workers: int | None = None,
    timeout: float = 300.0,
    init_options: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Run ``fn(comm, *args)`` on Dask workers that form a group, and return the results by rank.

    Parameters
    ----------
    client : distributed.Client
    fn, *args : callable, objects
        Called on each rank with its :class:`skyphos.Comm` and ``args``; a ``Future`` is replaced by its value.
    num_workers : int, optional
        Number of workers, each of which is one rank; default all, in the order of their addresses.
    timeout, init_options : float and mapping, optional
        Seconds to wait for free workers, and for progress in a call; further arguments of :func:`skyphos.init`.

    Raises
    ------
    BadInput, Timeout, RankFailed, PeerLost
        If there are too few workers, none is free within ``timeout``, ``fn`` raised (the exception is the cause), or a
        worker ended.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> from distributed import Client  # doctest: +SKIP
    >>> with Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:  # doctest: +SKIP
    ...     sky.dask.run(client, lambda comm, x: comm.allreduce(np.array([x]))[0], 0.5)
    [np.float64(1.0), np.float64(1.0)]
    """
    settings = settings_of(fn, num_workers, timeout, init_options)
    package("distributed", "dask")
    workers, futures, rendezvous, token = sorted(client.nthreads()), [], None, secrets.token_hex(16)
    size = num_workers or len(workers)
    if not 1 <= size <= len(workers):
        what = f"num_workers={num_workers}, but the Dask cluster has {len(workers)} workers"
        raise BadInput(
            f"{what}: ask for fewer, or wait for them first (client.wait_for_workers({max(1, size)}, timeout=60))"
        )

    def submit(rank: int, body: Callable[..., Outcome], *given: Any) -> Any:
        # Not pure: Dask must not reuse the result of an equal call.
        futures.append(client.submit(body, *given, workers=[workers[rank]], pure=False, retries=0))
        return futures[-1]

    try:
        if size > 1:
            rendezvous = _collect_outcomes(client, [submit(0, _listen, token)], workers, timeout).results()[0]
        members = (Member(rank, size, rendezvous, token, settings) for rank in range(size))
        return _collect_outcomes(
            client, [submit(one.rank, _part, one, fn, *args) for one in members], workers
        ).results()
    finally:
        client.cancel(futures)


def _collect_outcomes(client: Any, futures: list[Any], workers: list[str], within_s: float = math.inf) -> Outcomes:
    """Wait for the task of each rank. A task that ends without an outcome, or whose worker is gone, is a lost rank."""
    distributed = package("distributed", "dask")
    outcomes, until = Outcomes(len(futures)), time.monotonic() + within_s
    while awaited := outcomes.awaited:
        with suppress(distributed.TimeoutError):
            distributed.wait([futures[rank] for rank in awaited], timeout=0.5, return_when="FIRST_COMPLETED")
        present = client.nthreads()
        for rank in awaited:
            if (future := futures[rank]).status == "finished":
                with suppress(distributed.TimeoutError):  # its worker may have just been lost
                    outcomes.add(future.result(timeout=10))
            elif future.status == "pending" and workers[rank] in present:
                pass
            elif future.status == "error" and not isinstance(error := future.exception(), distributed.KilledWorker):
                outcomes.add(failed(rank, error, package("cloudpickle", "dask").dumps))
            else:
                outcomes.lose(rank, f"{workers[rank]} has left the Dask cluster: it was killed, or its host is down")
        if outcomes.awaited and time.monotonic() > until:
            raise Timeout(f"the Dask worker at {workers[0]} had no free thread within {within_s:g} s")
    return outcomes


def _listen(token: str) -> Outcome:
    worker = package("distributed", "dask").get_worker()
    own = urlsplit(worker.address)  # the address that others use; without a host name in a cluster inside one process
    listener, address = listen("127.0.0.1" if own.scheme == "inproc" else str(own.hostname))
    _listeners[worker.address] = listener, token
    return Outcome(0, socket.gethostname(), address)


def _part(member: Member, fn: Callable[..., Any], *args: Any) -> Outcome:
    worker, dumps = package("distributed", "dask").get_worker(), package("cloudpickle", "dask").dumps
    listener, token = _listeners.pop(worker.address, (None, "")) if member.rank == 0 else (None, member.token)
    if member.size > 1 and token != member.token:
        return failed(0, PeerLost("the worker of rank 0 was started anew, and its group is gone", rank=0), dumps)
    return take_part(member, fn, args, listener=listener, cpus=worker.state.nthreads, dumps=dumps)
