"""Groups of a one-level or two-level allreduce: all ranks at once, or first the ranks of each host and then the hosts.

Two levels::

    within each host   reduce-scatter: each rank gets the host's sum of its share    dense, through shared memory
    among hosts        allreduce among the ranks with the same share                 compressed
    within each host   allgather of the shares                                       dense

If all hosts have the same number of ranks, each rank has a share. Otherwise the first rank of a host has the whole.
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
    """The groups of one or two levels. All ranks of ``comm`` make a ``Levels`` together.

    Parameters
    ----------
    comm : Comm
        All ranks.
    levels : {1, 2}
        2 has the effect of 1 if each host has one rank.

    Attributes
    ----------
    has_two : bool
        Whether there are two levels.
    across : Comm or None
        The ranks with the same share. None on ranks without a share, and with two levels on one host.
    units : int
        Number of compressed contributions to a sum: one per host with two levels, one per rank with one.
    shares : int
        Number of shares in a host.
    compresses : bool
        Whether anything is compressed. With two levels on one host nothing is.
    owner : list
        Identifies a residual's owner: this rank, the number of ranks, and with two levels the ranks of each host.
    """

    def __init__(self, comm: Comm, levels: int) -> None:
        hosts = comm.topology.hosts
        self.comm = comm
        self.has_two = levels == 2 and len(hosts) < comm.size
        self.units = len(hosts) if self.has_two else comm.size
        even = len({len(ranks) for ranks in hosts}) == 1
        self.shares = len(hosts[0]) if self.has_two and even else 1
        self.compresses = self.units > 1 or not self.has_two
        self.owner: list[Any] = [comm.rank, comm.size, [list(ranks) for ranks in hosts] if self.has_two else None]
        self.across: Comm | None = None
        if not self.has_two:
            self.across = comm.dup()
        else:
            host = next(number for number, ranks in enumerate(hosts) if comm.rank in ranks)
            # Two groups of the host's ranks: two workers make the calls, and the calls of one group need one order.
            self._sum_group, self._gather_group = _split(comm, host), _split(comm, host)
            if self.units > 1:
                share = hosts[host].index(comm.rank)
                self.across = comm._split_within(share if share < self.shares else None)

    @property
    def host_sum_factor(self) -> float | None:
        """Multiplies each host's sum so that their mean is the mean over all ranks. None with one level."""
        return self.units / self.comm.size if self.has_two else None

    def share(self, length: int) -> range:
        """The indices of a vector of this length that are this rank's share."""
        if not self.has_two:
            return range(length)
        each = -(-length // self.shares)
        start = min(length, self._sum_group.rank * each)
        return range(start, min(length, start + each)) if self._sum_group.rank < self.shares else range(0)

    def sum_inside(self, flat: _Array) -> Callable[[], _Array]:
        """Start the sum over the host's ranks. The returned function waits for this rank's share of it."""
        each = -(-len(flat) // self.shares)
        padded = _padded(flat, each * self.shares)
        root = None if self.shares > 1 else 0
        mine = self.share(len(flat))
        out = np.empty(each if len(mine) or root is None else 0, flat.dtype)
        call = native.reduce_arrays(self._sum_group._native, padded, out, resolve_op("sum"), root, True)
        work: Any = perform(call, True, lambda _: out[: len(mine)])
        wait: Callable[[], _Array] = work.wait
        return wait

    def fail_sum(self, error: Exception) -> Callable[[], _Array]:
        """Instead of :meth:`sum_inside`: raise an error on all ranks of the host when they wait."""
        try:
            fail(self._sum_group, error, goes_on=True)
        except SkyphosError as raised:
            agreed = raised

        def wait() -> _Array:
            raise agreed

        return wait

    def allgather_shares(self, share: _Array, into: _Array) -> None:
        """Gather the shares of the host's ranks into the whole vector."""
        if self.shares == 1:
            into[:] = self._gather_group.broadcast(share if self._gather_group.rank == 0 else None, 0)
            return
        each = -(-len(into) // self.shares)
        padded = _padded(share, each)
        # Receive directly into the result if it has the padded length.
        is_direct = each * self.shares == len(into)
        out = into if is_direct else np.empty(each * self.shares, into.dtype)
        as_bytes = (padded.view(np.uint8), out.view(np.uint8))
        native.move_arrays(self._gather_group._native, native.ArrayMove.allgather(), *as_bytes, False)
        if not is_direct:
            into[:] = out[: len(into)]

    def any_inside(self, flag: bool) -> bool:
        """Whether any rank of the host has set its flag. Collective within the host."""
        return bool(self._gather_group.allgather(np.array([flag], np.uint8)).any())

    def fail_inside(self, error: Exception) -> NoReturn:
        """Instead of :meth:`allgather_shares`: raise an error on all ranks of the host."""
        fail(self._gather_group, error, goes_on=True)

    def allgather_inside(self, value: Any) -> list[Any]:
        """The objects of the host's ranks, by rank. Collective within the host."""
        return [
            self._sum_group.broadcast(value if self._sum_group.rank == root else None, root)
            for root in range(self._sum_group.size)
        ]

    def close(self) -> None:
        """Leave the groups."""
        if self.has_two:
            self._sum_group.close()
            self._gather_group.close()
        if self.across is not None:
            self.across.close()


def _padded(numbers: _Array, length: int) -> _Array:
    """The array, padded with zeros if it is shorter than a length."""
    if len(numbers) == length:
        return numbers
    padded = np.zeros(length, numbers.dtype)
    padded[: len(numbers)] = numbers
    return padded


def _split(comm: Comm, colour: int) -> Comm:
    group = comm._split_within(colour)
    assert group is not None
    return group
