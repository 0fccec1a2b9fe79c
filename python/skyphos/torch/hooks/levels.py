"""Who reduces with whom: all ranks at once, or the ranks of each host first and then the hosts.

::

    on each host    every rank gets the sum of its share of the vector         dense, through shared memory
    among hosts     ranks with the same share reduce it                        compressed
    on each host    all get the shares of all                                  dense

A host has as many shares as ranks, if all hosts have as many; else one, its first rank's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ... import _skyphos as native
from ...collectives.agreement import fail
from ...comm import Comm
from ...errors import SkyphosError
from ...inputs.arguments import resolve_op
from ...work import perform

__all__ = ["Levels"]

_Array = npt.NDArray[Any]


class Levels:
    """The groups of one or two levels. Made by all ranks together.

    Parameters
    ----------
    comm : Comm
        All ranks.
    levels : {1, 2}
        1: no host first. So it is too where each host has one rank.

    Attributes
    ----------
    across : Comm or None
        Those that reduce the same share; None on ranks without one, and where there is one host and two levels.
    units : int
        Whose gradients are compressed and averaged among each other: hosts, or ranks.
    shares : int
        Of a host.
    compresses : bool
        Whether anything is: not so where there is one host and two levels.
    owner : list
        This rank, the number of ranks, and with two levels those of each host: where what is held back is at home.
    """

    def __init__(self, comm: Comm, levels: int) -> None:
        hosts = comm.topology.hosts
        self.comm = comm
        self.two = levels == 2 and len(hosts) < comm.size
        self.units = len(hosts) if self.two else comm.size
        even = len({len(ranks) for ranks in hosts}) == 1
        self.shares = len(hosts[0]) if self.two and even else 1
        self.compresses = self.units > 1 or not self.two
        self.owner: list[Any] = [comm.rank, comm.size, [list(ranks) for ranks in hosts] if self.two else None]
        self.across: Comm | None = None
        if not self.two:
            self.across = comm.dup()
        else:
            host = next(number for number, ranks in enumerate(hosts) if comm.rank in ranks)
            # One for what goes in and one for what comes out: calls of one group have one order.
            self._inside, self._outside = _split(comm, host), _split(comm, host)
            if self.units > 1:
                place = hosts[host].index(comm.rank)
                self.across = comm._split_within(place if place < self.shares else None)

    @property
    def mean_of_units(self) -> float | None:
        """By what the sum of a host is multiplied, so that the mean of hosts is that of ranks; None: by nothing."""
        return self.units / self.comm.size if self.two else None

    def share(self, length: int) -> range:
        """Which of so many numbers this rank compresses, or reduces alone."""
        if not self.two:
            return range(length)
        each = -(-length // self.shares)
        start = min(length, self._inside.rank * each)
        return range(start, min(length, start + each)) if self._inside.rank < self.shares else range(0)

    def sum_inside(self, flat: _Array) -> Callable[[], _Array]:
        """Begin the sum of the host's ranks; what is returned waits for this rank's share of it."""
        each = -(-len(flat) // self.shares)
        padded = _padded(flat, each * self.shares)
        root = None if self.shares > 1 else 0
        mine = self.share(len(flat))
        out = np.empty(each if len(mine) or root is None else 0, flat.dtype)
        call = native.reduce_arrays(self._inside._native, padded, out, *resolve_op("sum"), root, True)
        work: Any = perform(call, True, lambda _: out[: len(mine)])
        wait: Callable[[], _Array] = work.wait
        return wait

    def fail_sum(self, error: Exception) -> Callable[[], _Array]:
        """In place of :meth:`sum_inside`: the error on all ranks of the host, as they wait."""
        try:
            fail(self._inside, error, goes_on=True)
        except SkyphosError as found:
            agreed = found

        def wait() -> _Array:
            raise agreed

        return wait

    def give_inside(self, share: _Array, into: _Array) -> None:
        """Give the host's ranks this rank's share of the result, and get theirs: the whole."""
        if self.shares == 1:
            came = self._outside.broadcast(share if self._outside.rank == 0 else None, 0)
            into[:] = came
            return
        each = -(-len(into) // self.shares)
        padded = _padded(share, each)
        # Straight into the result where it has room for all that comes.
        straight = each * self.shares == len(into)
        out = into if straight else np.empty(each * self.shares, into.dtype)
        native.move_arrays(
            self._outside._native, "allgather", padded.view(np.uint8), out.view(np.uint8), 0, "auto", False
        )
        if not straight:
            into[:] = out[: len(into)]

    def any_inside(self, said: bool) -> bool:
        """Whether a rank of the host says so: each knows of its own share."""
        return bool(self._outside.allgather(np.array([said], np.uint8)).any())

    def fail_inside(self, error: Exception) -> NoReturn:
        """In place of :meth:`give_inside`: the error on all ranks of the host."""
        fail(self._outside, error, goes_on=True)

    def tell_inside(self, said: Any) -> list[Any]:
        """What each rank of the host says, any object, by rank. Collective there."""
        return [
            self._inside.broadcast(said if self._inside.rank == root else None, root)
            for root in range(self._inside.size)
        ]

    def close(self) -> None:
        """Leave the groups."""
        if self.two:
            self._inside.close()
            self._outside.close()
        if self.across is not None:
            self.across.close()


def _padded(numbers: _Array, length: int) -> _Array:
    """With zeros up to a length; itself, if it has that."""
    if len(numbers) == length:
        return numbers
    padded = np.zeros(length, numbers.dtype)
    padded[: len(numbers)] = numbers
    return padded


def _split(comm: Comm, colour: int) -> Comm:
    group = comm._split_within(colour)
    assert group is not None
    return group
