"""Transfer of partition files that only other hosts have."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from ..collectives.agreement import raise_if, together
from ..collectives.blocks import exchange_blocks
from ..errors import BadInput
from ..shuffle.user_code import raised
from .loaders import Loader
from .partitions import Partition

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["Fetch", "fetch", "plan"]

# Larger files are announced, and sent only on request, so that a receiver holds one of them at a time.
_PUSH_BYTES = 1 << 16


@dataclass(frozen=True)
class Fetch:
    """Transfer of a partition from a rank whose host has it to the rank that maps it."""

    part: Partition
    source: int
    target: int


def plan(parts: Sequence[Partition], chosen: Sequence[int], hosts: Sequence[str]) -> list[list[Fetch]]:
    """The transfers in rounds; in a round each rank sends at most one partition and receives at most one.

    Parameters
    ----------
    parts : sequence of Partition
        The partitions to read.
    chosen : sequence of int
        The rank that maps each partition.
    hosts : sequence of str
        The host of each rank.

    Returns
    -------
    list of list of Fetch
        Transfers by round. Partitions on all hosts, or on no rank's host, are not transferred but read by their path.

    Examples
    --------
    >>> from skyphos.mapreduce.fetch import plan
    >>> from skyphos.mapreduce import Partition
    >>> parts = [Partition(0, "a", 1, 10, ("n1",)), Partition(1, "b", 1, 10, ("n1", "n2"))]
    >>> [[(one.part.number, one.source, one.target) for one in some] for some in plan(parts, [1, 1], ["n1", "n2"])]
    [[(0, 0, 1)]]
    """
    sent = np.zeros(len(hosts), np.int64)
    rounds: list[list[Fetch]] = []
    for part, target in zip(parts, chosen, strict=True):
        sources = [rank for rank, host in enumerate(hosts) if host in part.hosts]
        if not sources or hosts[target] in part.hosts:
            continue
        one = Fetch(part, min(sources, key=lambda rank: int(sent[rank])), target)
        sent[one.source] += max(part.bytes, 1)
        free = (some for some in rounds if all(one.source != o.source and one.target != o.target for o in some))
        free_round = next(free, None)
        if free_round is None:
            rounds.append([one])
        else:
            free_round.append(one)
    return rounds


def fetch(comm: Comm, rounds: list[list[Fetch]], loader: Loader, put: Callable[[Partition, Any], None]) -> int:
    """Make the transfers of a plan, and load the received partitions. Collective.

    Returns
    -------
    int
        Bytes received.

    Raises
    ------
    BadInput
        On all ranks, if a file is missing on the host that should have it, or damaged.
    """
    received_bytes = 0
    for this_round in rounds:
        blocks = [np.empty(0, np.uint8) for _ in range(comm.size)]

        def read(this_round: list[Fetch] = this_round, blocks: list[Any] = blocks) -> None:
            for one in this_round:
                if one.source == comm.rank:
                    blocks[one.target] = _bytes_of(comm, one.part)

        together(comm, read)
        failed: list[Exception] = []
        mine = {one.source: one.part for one in this_round if one.target == comm.rank}

        def take(source: int, content: Any, mine: dict[int, Partition] = mine, failed: list[Any] = failed) -> None:
            nonlocal received_bytes
            if source not in mine:
                return
            received_bytes += content.nbytes
            try:
                put(mine[source], _loaded(loader, mine[source], content))
            except BadInput as error:
                failed.append(BadInput(f"rank {comm.rank}: {error}; rank {source} sent the file"))
            except Exception as error:  # any error of a user's loader
                which = f" on partition {mine[source].number} ({mine[source].path})"
                failed.append(raised(f"rank {comm.rank}: the loader", error, which))

        exchange_blocks(comm, blocks, take, push_bytes=_PUSH_BYTES, fetches=1)
        together(comm, lambda failed=failed: raise_if(*failed or [None]))  # type: ignore[misc]
    return received_bytes


def _file_of(path: str) -> tuple[str, str]:
    """The file, and the dataset in it, which a name may give after a colon."""
    file, colon, name = path.rpartition(":")
    return (path, "") if not colon or os.path.exists(path) else (file, colon + name)


def _bytes_of(comm: Comm, part: Partition) -> Any:
    try:
        return np.fromfile(_file_of(part.path)[0], np.uint8)
    except OSError as error:
        raise BadInput(
            f"rank {comm.rank}: {part.path}: {error.strerror or error}, and the partition file says that this host "
            f"({', '.join(part.hosts)}) has it"
        ) from None


def _loaded(loader: Loader, part: Partition, content: Any) -> Any:
    """The content of a file that was received as bytes."""
    file, dataset = _file_of(part.path)
    with TemporaryDirectory(prefix="skyphos-") as folder:
        here = Path(folder, os.path.basename(file))
        content.tofile(here)
        try:
            return loader.load(f"{here}{dataset}")
        except BadInput as error:
            raise BadInput(str(error).replace(str(here), file)) from None
