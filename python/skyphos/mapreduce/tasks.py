"""Tasks of a rank: its partitions, their data, read once, and the map calls over them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from ..collectives.agreement import fail
from ..errors import BadInput
from ..inputs.arguments import as_one_of
from ..shuffle.user_code import raised
from .assign import assign
from .fetch import Fetch, fetch, plan
from .loaders import Loader, loader_of
from .partitions import Partition, Partitions
from .runner import GivenUp
from .schedule import Schedule, run_scheduled

if TYPE_CHECKING:
    from ..comm import Comm
    from ..shuffle import Shuffle

__all__ = ["Batch", "MapFunction", "Tasks"]

#: Keys and values; without values, keys to be counted.
Batch = tuple[Any, Any]

#: (data of a partition, broadcast state) → a batch, several, or None.
MapFunction = Callable[[Any, Any], "Batch | Iterable[Batch] | None"]

# Bytes of a host's name that are sent to other ranks.
_NAME = 64


class Tasks:
    """The map tasks of this rank.

    Parameters
    ----------
    given : Partitions, path or sequence
        A partition file or its content, distributed over the ranks. Or a sequence of this rank's own data, each item a
        partition.
    loader : Loader or str, optional
        Reads partitions. None: the loader of their format.
    threads : int
        Concurrent tasks.
    schedule : str
        ``static``, ``dynamic`` or ``speculative``.
    """

    def __init__(self, given: Any, loader: Loader | str | None, threads: int, schedule: Schedule = "static") -> None:
        if isinstance(given, (str, os.PathLike)):
            given = Partitions.load(given)
        if loader is not None and not isinstance(given, Partitions):
            raise BadInput(f"loader={loader!r} is for partitions in files, which Partitions.of_files(files) makes")
        self._parts = given if isinstance(given, Partitions) else None
        self._loader = loader_of(loader or given.format) if isinstance(given, Partitions) else None
        if not isinstance(given, Partitions) and not isinstance(given, Iterable):
            raise BadInput(f"partitions must be a partition file or this rank's data in a sequence, not {given!r}")
        self._own = [] if isinstance(given, Partitions) else list(given)
        self._threads, self._schedule = threads, schedule
        as_one_of(schedule, get_args(Schedule), "schedule")
        if schedule != "static" and self._parts is None:
            raise BadInput(
                f"schedule={schedule!r} takes a partition file (skyphos split): "
                "data in the memory of this rank cannot be mapped by another"
            )
        self._data: dict[int, Any] = {}
        self._host = socket.gethostname()
        # The host of each rank, and the rank of each partition of a file.
        self._hosts: list[str] = []
        self._owner = np.empty(0, np.int64)
        #: Partitions of this rank, by their numbers.
        self.mine: list[int] = []
        #: Bytes of files that this rank has read, and how many of them came from other hosts.
        self.read_bytes = 0
        self.remote_bytes = 0
        #: Numbers of tasks that this rank took over from others in the last run, and that it copied.
        self.taken = 0
        self.copied = 0

    @property
    def can_be_read_again(self) -> bool:
        """True if other ranks can read the partitions of a lost one."""
        return self._parts is not None

    @property
    def in_turn(self) -> bool:
        """True if tasks run one after the other, in the order of their numbers."""
        return self._schedule == "static" and (self._threads == 1 or len(self.mine) < 2)

    def __len__(self) -> int:
        return len(self._own) if self._parts is None else len(self._parts)

    def description(self) -> str:
        """Description of the data for checkpoints, the same in each run."""
        if self._parts is None:
            return "the ranks' own data"
        return f"{len(self._parts)} partitions of {self._parts.rows} rows in {self._parts.bytes} bytes"

    def assign_partitions(self, comm: Comm) -> None:
        """Assign partitions to ranks, and fetch files that only other hosts have. Collective.

        A rank keeps partitions that it has read.
        """
        if self._schedule != "static" and comm.replication > 1:
            raise BadInput(f"schedule={self._schedule!r}: replicas of a rank must run the same tasks, so pass static")
        if self._parts is None:
            self.mine = list(range(len(self._own)))
            return
        names = np.zeros((1, _NAME), np.uint8)
        name = self._host.encode()[:_NAME]
        names[0, : len(name)] = np.frombuffer(name, np.uint8)
        hosts = self._hosts = [bytes(row).rstrip(b"\0").decode() for row in comm.allgather(names)[:, 0]]
        here = np.full(len(self._parts), -1, np.int64)
        here[[number for number in self.mine if number in self._data]] = comm.rank
        holders = comm.allreduce(here, op="max") if comm.size > 1 else here
        chosen = comm.broadcast(self._assigned(holders.tolist(), hosts) if comm.rank == 0 else None)
        self._set_owners(chosen, comm.rank)
        self._bring(comm, [(number, int(chosen[number])) for number in np.flatnonzero(holders < 0).tolist()])

    def _set_owners(self, owner: npt.NDArray[np.int64], rank: int) -> None:
        """Set the owners of partitions, and drop the data of those that this rank no longer owns."""
        self._owner = owner
        self.mine = np.flatnonzero(owner == rank).tolist()
        # A thread whose task another rank completed first may still be loading its data.
        self._data = {number: data for number, data in list(self._data.items()) if owner[number] == rank}

    def _bring(self, comm: Comm, moves: list[tuple[int, int]]) -> None:
        """Bring partitions to ranks whose hosts do not have them. Collective."""
        assert self._parts is not None
        parts = [self._parts.parts[number] for number, _ in moves]
        self._fetch(comm, plan(parts, [rank for _, rank in moves], self._hosts))

    def _fetch(self, comm: Comm, rounds: list[list[Fetch]]) -> None:
        def put(part: Partition, data: Any) -> None:
            self._data[part.number] = data

        assert self._loader is not None
        fetched_bytes = fetch(comm, rounds, self._loader, put)
        self.read_bytes += fetched_bytes
        self.remote_bytes += fetched_bytes

    def _assigned(self, holders: list[int], hosts: list[str]) -> Any:
        """The rank of each partition: its holder; partitions without one (-1) are distributed evenly."""
        assert self._parts is not None
        free = [part.number for part in self._parts if holders[part.number] < 0]
        chosen = np.array(holders)
        if free:
            given = assign([self._parts.parts[number].hosts for number in free], hosts)
            chosen[free] = given
        return chosen

    def _load(self, comm: Comm, number: int) -> Any:
        if self._parts is None:
            return self._own[number]
        if number not in self._data:
            assert self._loader is not None
            part = self._parts.parts[number]
            # Files of other hosts were fetched. If none of those hosts has a rank, the file may be on a shared disk.
            try:
                self._data[number] = self._loader.load(part.path)
            except BadInput as error:
                if not part.hosts or self._host in part.hosts:
                    raise
                raise BadInput(f"{error}; only {', '.join(part.hosts)} have it, and no rank runs there") from error
            self.read_bytes += part.bytes
            if part.hosts and self._host not in part.hosts:
                self.remote_bytes += part.bytes
        return self._data[number]

    def run(self, comm: Comm, function: MapFunction, state: Any, shuffle: Shuffle) -> None:
        """Run the tasks of this rank, and those that it takes over. Their output goes to ``shuffle``.

        Raises
        ------
        BadInput
            On all ranks, here or in their next call, if a partition cannot be read or ``function`` raised; the text has
            the partition and the traceback.
        """

        def task(number: int, hand_over: Callable[[Callable[[], None]], None] = _at_once) -> None:
            try:
                data = self._load(comm, number)
                for keys, values in _batches(function(data, state)):
                    hand_over(partial(shuffle.add, keys, values, task=number))
            except GivenUp:
                raise
            except Exception as error:  # any error of the user's function
                raise self._failed(comm, number, error) from error

        if self._schedule != "static" and comm.size > 1:
            self._run_scheduled(comm, task, shuffle)
            return
        try:
            self._run_static(task)
        except BaseException as error:
            fail(comm, error)

    def _run_static(self, task: Callable[[int], None]) -> None:
        if self.in_turn:
            for number in self.mine:
                task(number)
            return
        with ThreadPoolExecutor(min(self._threads, max(1, len(self.mine))), "skyphos-map") as pool:
            running = [pool.submit(task, number) for number in self.mine]
            try:
                for one in running:
                    one.result()
            finally:
                for one in running:
                    one.cancel()

    def _run_scheduled(self, comm: Comm, task: Callable[..., None], shuffle: Shuffle) -> None:
        assert self._parts is not None
        by_hosts = {
            hosts: [rank for rank, host in enumerate(self._hosts) if not hosts or host in hosts]
            for hosts in {part.hosts for part in self._parts}
        }
        done = run_scheduled(
            comm,
            self._owner,
            [by_hosts[part.hosts] for part in self._parts],
            threads=self._threads,
            work=task,
            bring=partial(self._bring, comm),
            store=shuffle,
            copies=self._schedule == "speculative",
        )
        self.taken, self.copied = done.taken, done.copied
        self._set_owners(done.owner, comm.rank)

    def _failed(self, comm: Comm, number: int, error: Exception) -> BadInput:
        which = f"partition {number}"
        if self._parts is not None:
            which += f" ({self._parts.parts[number].path})"
        where = f"rank {comm.rank}: map of {which}"
        return BadInput(f"{where}: {error}") if isinstance(error, BadInput) else raised(where, error)


def _at_once(put: Callable[[], None]) -> None:
    put()


def _batches(given: Any) -> Iterator[Batch]:
    """The output of a map function, as batches."""
    if given is None:
        return
    if isinstance(given, tuple) and len(given) == 2:
        yield given
        return
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise BadInput(
            f"a map function returns (keys, values), an iterable of such, or None, not {type(given).__name__}"
        )
    for batch in given:
        if not isinstance(batch, tuple) or len(batch) != 2:
            raise BadInput(f"a map function yields tuples of keys and values, not {type(batch).__name__}")
        yield batch


def reduced(comm: Comm, function: Callable[[Any, Any], Any], keys: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Reduce the values of each key.

    Raises
    ------
    BadInput
        If ``function`` raised; the text has the key and the traceback.
    """
    results = []
    for key, value in zip(keys, values, strict=True):
        try:
            results.append(function(key, value))
        except Exception as error:  # any error of the user's function
            raise raised(f"rank {comm.rank}: reduce", error, f" on key {key!r}") from error
    return results


__all__ += ["Partition", "reduced"]
