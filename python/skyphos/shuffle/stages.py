"""Stages of a shuffle: within each host to one rank per key, then to the owner of the key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from ..collectives.blocks import exchange_blocks
from ..collectives.packing import Bytes
from ..errors import BadInput
from .stores import NOWHERE, Destinations, Store

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["Failed", "Link", "Stages", "only_wave", "stages_of", "unless_failed"]

T = TypeVar("T")

#: Receives the first error of this rank while the other ranks go on.
Failed: TypeAlias = list[BadInput]


@dataclass
class Link:
    """Exchange of blocks, with counts of bytes and frames sent and of bytes received.

    Blocks of up to ``push_bytes`` are sent at once. Longer ones are fetched by their receiver, ``fetches`` at a time.
    """

    push_bytes: int
    fetches: int
    sent_bytes: int = 0
    sent_frames: int = 0
    received_bytes: int = 0

    def add(self, sent_bytes: int, sent_frames: int, received_bytes: int) -> None:
        """Count an exchange."""
        self.sent_bytes += sent_bytes
        self.sent_frames += sent_frames
        self.received_bytes += received_bytes


def stages_of(comm: Comm) -> Stages:
    """The stages of a group: made at its first shuffle, then kept with it."""
    if comm._stages is None:
        comm._stages = Stages(comm)
    return comm._stages


class Stages:
    """The two stages of a group's shuffles: within each host, then between hosts."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        topology = comm.topology
        hosts = topology.hosts
        self._host_of = np.array(topology.numbers()[0], np.uint32)
        #: Ranks of this host.
        self.here = hosts[int(self._host_of[comm.rank])]
        #: Whether merging within hosts can save traffic: there are several hosts, and one has several ranks.
        self.has_hosts = len(hosts) > 1 and max(map(len, hosts)) > 1
        self._group: Comm | None = None

    def _host_group(self) -> Comm:
        """The group of this host's ranks. The first call is collective."""
        if self._group is None:
            group = self._comm._split_within(int(self._host_of[self._comm.rank]))
            assert group is not None
            self._group = group
        return self._group

    def close(self) -> None:
        """Leave the group of this host."""
        if self._group is not None:
            self._group.close()

    def on_host(
        self, store: Store, owners: Destinations, new: Callable[[], Any], link: Link, failed: Failed | None = None
    ) -> Any:
        """Send each key to one rank of this host, its owner if that is here. See :func:`exchange`."""
        group = self._host_group()
        if group.size == 1:
            return store
        slots = np.array([self.here.index(rank) if rank in self.here else rank % group.size for rank in self._ranks])
        return exchange(group, store, slots.astype(np.uint32)[owners], new, link, failed)

    @property
    def _ranks(self) -> range:
        return range(self._comm.size)

    def to_owners(
        self, store: Store, owners: Destinations, new: Callable[[], Any], link: Link, failed: Failed | None = None
    ) -> Any:
        """Send each key to its owner. See :func:`exchange`."""
        return exchange(self._comm, store, owners, new, link, failed)


def exchange(
    comm: Comm, store: Store, to: Destinations, new: Callable[[], Any], link: Link, failed: Failed | None = None
) -> Any:
    """Send the content of a store to the ranks ``to``, and gather the received blocks in a new store, in the order of
    ranks from this one on.

    If a block cannot be merged, the exchange fails on all ranks. With ``failed`` it continues: the first error is put
    there, and the caller reports it to the other ranks, which may have completed the exchange by then.
    """
    blocks = store.blocks(to, comm.size)
    merged = new()

    def take(_: int, block: Bytes) -> None:
        unless_failed(failed, lambda: merged.add_block(block))

    if comm.size == 1:
        take(0, blocks[0])
        return merged
    link.add(*exchange_blocks(comm, blocks, take, push_bytes=link.push_bytes, fetches=link.fetches))
    return merged


def unless_failed(failed: Failed | None, work: Callable[[], T]) -> T | None:
    """Run ``work`` and return its result; an error is put into ``failed``. After an earlier error, do nothing."""
    if failed is None:
        return work()
    if not failed:
        try:
            return work()
        except BadInput as error:
            failed.append(error)
    return None


def only_wave(to: Destinations, waves: Destinations, wave: int) -> Destinations:
    """The destinations, with ``NOWHERE`` for keys of other waves."""
    return np.where(waves == wave, to, np.uint32(NOWHERE))
