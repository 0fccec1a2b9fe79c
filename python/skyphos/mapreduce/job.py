"""Iterative map-reduce (*Twister*, section 3): broadcast, map, shuffle, reduce, combine, and again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from ..checkpoint import Checkpoint
from ..collectives.agreement import agree_arguments, gather_numbers, raise_if, together
from ..collectives.agreement import collective as _collective
from ..errors import BadInput, PeerLost
from ..inputs.arguments import Op, as_one_of
from ..inputs.settings import whole
from ..shuffle import Shuffle
from ..shuffle.combine import Combine, Function
from ..shuffle.keys import listed
from ..shuffle.stages import stages_of
from ..shuffle.user_code import raised
from .collect import to_root
from .loaders import Loader
from .saves import Saves
from .schedule import Schedule
from .sums import Collective, Sums, check_same, checksum_of
from .tasks import MapFunction, Tasks, reduced
from .timing import Iteration

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["MapReduce"]

#: (key, its values) → its result.
ReduceFunction = Callable[[Any, Any], Any]

#: (keys, results) → the state that the next iteration begins with.
CombineFunction = Callable[[Any, Any], Any]


class MapReduce:
    """An iterative job over the same data.

    Each iteration broadcasts a state to all ranks; runs ``map`` on every partition, several at a time on threads; sends
    values to the owners of their keys, merging them on the path (:meth:`skyphos.Comm.shuffle`); runs ``reduce`` there
    while further keys are in transfer; and passes all results to ``combine`` on one rank, which returns the next state.
    Partitions are read once and stay in memory.

    Parameters
    ----------
    comm : Comm
        The group. Every rank constructs the same job.
    map : callable
        (data of a partition, state) → (keys, values), an iterable of such batches, or None. With ``reduce="count"``
        values are None.
    reduce : str, ufunc or callable
        A named operation of :meth:`~skyphos.Comm.shuffle`, by which values also merge before they reach their owner; or
        a function (key, values) → result, which gets all values of the key in a list (numbers: in an array of rows).
    combine : callable, optional
        (keys, results) → the next state, from all keys, on one rank or on each (``collective``). None: results stay
        with the owners of their keys, and the state does not change.
    partitions : path, Partitions or sequence
        A partition file (``skyphos split``), distributed evenly, if possible to hosts that have the partitions. Or a
        sequence of this rank's own data, each item a partition.
    merge : str, ufunc or callable, optional
        Merges the values of a key before a ``reduce`` function gets them, as ``combine`` of
        :meth:`~skyphos.Comm.shuffle`; the function then gets a list of one value.
    reducers : int, optional
        Number of parts of the keys, in the whole group, that are reduced one after the other. None: one per rank.
    threads : int, optional
        Concurrent map tasks of a rank. None: the host's processors divided by its ranks.
    loader : Loader or str, optional
        Reads partitions. None: the loader of their format.
    schedule : str
        ``static``: each rank runs the tasks assigned to it. ``dynamic``: idle ranks take over tasks that have not
        started, if that ends the iteration sooner, and keep their data. ``speculative``: idle ranks also run second
        copies of tasks that take far longer than others; the first copy to end counts, so ``map`` must have no effect
        but its result. The last two need a partition file, and the last bits of rounded sums then depend on which rank
        ran which task.
    collective : str
        If ``reduce`` is a named operation, keys are integers from 0 and values numbers, one sparse allreduce can
        replace the shuffle, the gathering of results and the next broadcast. ``combine`` then runs on every rank, and
        must return the same there (which is checked). ``auto``: an allreduce, unless results are large (64 MB) and the
        state is less than a quarter of their size; ``shuffle``: never an allreduce; ``allreduce``: always, and
        :class:`BadInput` if it is impossible.
    checkpoint : Checkpoint or path, optional
        Where states are saved after each iteration (:class:`skyphos.Checkpoint`). A job that finds a checkpoint resumes
        from it, with bitwise the same results. Objects other than arrays are stored as pickles: use only files that you
        trust.
    on_loss : str
        When a rank is lost, ``restart``: the iteration restarts on the remaining ranks, which take over its partitions
        (needs a partition file); ``raise``: :class:`PeerLost`.

    Raises
    ------
    BadInput
        On all ranks, if a partition is missing or damaged; if a function raised (the text has the rank, the partition
        or key, and the traceback); if the checkpoint is of another job.

    Examples
    --------
    >>> import skyphos as sky
    >>> from skyphos.mapreduce import MapReduce
    >>> texts = ["to be or not to be", "that is the question"]
    >>> def words(text, state):
    ...     return text.split(), None
    >>> with sky.init() as comm:
    ...     job = MapReduce(comm, map=words, reduce="count", partitions=texts)
    ...     keys, counts = job.run()
    >>> dict(zip(keys, counts.tolist()))["to"]
    2
    """

    @_collective(argument=1)
    def __init__(
        self,
        comm: Comm,
        *,
        map: MapFunction,
        reduce: Op | ReduceFunction = "sum",
        combine: CombineFunction | None = None,
        partitions: Any,
        merge: Op | Function | None = None,
        reducers: int | None = None,
        threads: int | None = None,
        loader: Loader | str | None = None,
        schedule: Schedule = "static",
        collective: Collective = "auto",
        checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
        on_loss: str = "restart",
    ) -> None:
        self.comm = comm
        #: Times and counts of this rank's iterations.
        self.iterations: list[Iteration] = []
        self._map, self._combine = map, combine
        self._reduce: ReduceFunction | None = None
        if callable(reduce) and not isinstance(reduce, np.ufunc):
            self._reduce = reduce
            self._merge: Op | Function = "list" if merge is None else merge
        elif merge is not None:
            raise BadInput(f"reduce={reduce!r} says how values merge: merge= needs a function as reduce")
        else:
            self._merge = reduce
        self._lists = Combine.of(self._merge).lists
        if on_loss not in ("restart", "raise"):
            raise BadInput(f'on_loss={on_loss!r}: "restart" or "raise"')
        as_one_of(collective, get_args(Collective), "collective")
        is_named = self._reduce is None and isinstance(Combine.of(self._merge).op, str)
        if collective == "allreduce" and (combine is None or not is_named):
            raise BadInput('collective="allreduce" takes a named operation as reduce, and combine')
        for what, function in (("map", map), ("combine", combine)):
            if not callable(function) and (what == "map" or function is not None):
                raise BadInput(f"{what} must be a function, not {function!r}")
        threads = None if threads is None else whole(threads, "threads", -(2**31), 4096)
        reducers = None if reducers is None else whole(reducers, "reducers", -(2**31), 2**31)
        if (threads is not None and threads < 1) or (reducers is not None and reducers < 1):
            raise BadInput(f"threads={threads}, reducers={reducers}: at least one")
        at_once = max(1, (os.cpu_count() or 1) // len(stages_of(comm).here)) if threads is None else threads
        self._tasks = Tasks(partitions, loader, at_once, schedule)
        agree_arguments(
            comm,
            "MapReduce",
            # Functions may differ by rank, as long as their results fit together.
            reduce="a function" if self._reduce is not None else Combine.of(reduce).name,
            combine=combine is not None,
            merge=None if merge is None else Combine.of(merge).name,
            reducers=reducers,
            schedule=schedule,
            collective=collective,
            checkpoint=checkpoint is not None,
            on_loss=on_loss,
        )
        self._reducers = reducers
        self._on_loss, self._collective = on_loss, collective
        self._saves = None if checkpoint is None else Saves(checkpoint, self._description())
        # The iteration that made this rank's state, and the rank that has the newest state.
        self._done, self._root = 0, 0
        self._state: Any = None
        # Whether all ranks have the newest state.
        self._is_everywhere = False
        self._is_assigned = False

    @_collective(lambda job: job.comm)
    def run(self, state: Any = None) -> Any:
        """Run one iteration. Collective.

        Parameters
        ----------
        state : object
            The state that ``map`` gets, from rank 0.

        Returns
        -------
        object
            With ``combine`` the next state, on all ranks; without it the keys and results that this rank owns.
        """
        return self.iterate(state, iterations=1)

    @_collective(lambda job: job.comm)
    def iterate(self, state: Any = None, *, iterations: int, until: Callable[[Any, Any], bool] | None = None) -> Any:
        """Run iterations. Collective.

        Parameters
        ----------
        state : object
            The first state, from rank 0; ignored if there is a checkpoint.
        iterations : int
            Upper bound on all iterations, those before the checkpoint included.
        until : callable, optional
            (state before, state after) → True to stop; called on one rank.

        Returns
        -------
        object
            As :meth:`run`, for the last iteration.
        """
        iterations = whole(iterations, "iterations", 0, 2**63 - 1)
        if until is not None and not callable(until):
            raise BadInput(f"until must be a function, not {until!r}")
        agree_arguments(self.comm, "MapReduce.iterate", iterations=iterations, until=until is not None)
        self._state, self._done, self._root, self._is_everywhere = state, 0, 0, False
        found = self._saves.restore(self.comm) if self._saves is not None else None
        if found is not None:
            self._done, saved = found
            self._state = saved if self.comm.rank == 0 else self._state
        result, over = None, False
        while not over and self._done < iterations:
            start, iteration = perf_counter(), Iteration(self._done + 1)
            try:
                result, over = self._once(iteration, until)
            except PeerLost as error:
                self._go_on_without(error)
                continue
            iteration.total = perf_counter() - start
            self.iterations.append(iteration)
        return self._broadcast_state() if self._combine is not None else result

    @_collective(lambda job: job.comm)
    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a page with the times of each stage on each rank, and which stages overlapped. Collective.

        Parameters
        ----------
        path : path
            A self-contained HTML file, which rank 0 writes.

        Raises
        ------
        BadInput
            On all ranks, if it cannot be written.
        """
        from .report import gather, write

        found = gather(self.comm, self.iterations)
        together(self.comm, lambda: write(os.fspath(path), found) if self.comm.rank == 0 else None)

    def _once(self, iteration: Iteration, until: Callable[[Any, Any], bool] | None) -> tuple[Any, bool]:
        """Run an iteration; return its result, and whether to stop."""
        comm, tasks = self.comm, self._tasks
        before = tasks.read_bytes, tasks.remote_bytes
        if not self._is_assigned:
            tasks.assign_partitions(comm)
            self._is_assigned = True
        with iteration.time("broadcast"):
            state = self._broadcast_state()
        waves = 1 if self._reducers is None else -(-self._reducers // comm.size)
        shuffle = Shuffle(comm, self._merge, waves=waves)
        shuffle.in_turn = tasks.in_turn
        with iteration.time("map"):
            try:
                tasks.run(comm, self._map, state, shuffle)
            except BaseException:
                shuffle.close()
                raise
        may_sum = self._combine is not None and self._reduce is None and self._collective != "shuffle"
        sums = self._sums(shuffle, iteration) if may_sum else None
        if sums is not None:
            with iteration.time("allreduce"):
                keys, results, iteration.sent_bytes = sums.everywhere(comm, shuffle, Combine.of(self._merge))
        else:
            keys, results = self._reduced(shuffle, iteration)
            iteration.sent_bytes = shuffle.explanation().sent_bytes
        iteration.keys = len(keys)
        iteration.tasks, iteration.taken, iteration.copied = len(tasks.mine), tasks.taken, tasks.copied
        iteration.read_bytes, iteration.remote_bytes = tasks.read_bytes - before[0], tasks.remote_bytes - before[1]
        over = False
        if self._combine is not None:
            with iteration.time("combine"):
                combine = self._combine_on_rank_0 if sums is None else self._combine_on_all_ranks
                over = combine(keys, results, state, until)
        self._done += 1
        if self._saves is not None:
            with iteration.time("checkpoint"):
                self._saves.save(comm, self._done, self._state, is_mine=comm.rank == self._root)
        return (keys, results), over

    def _sums(self, shuffle: Shuffle, iteration: Iteration) -> Sums | None:
        """The agreed allreduce that replaces the shuffle and all later stages; None for a shuffle."""
        comm, is_wanted = self.comm, self._collective == "allreduce"
        start = perf_counter()
        sums = Sums.agreed(comm, shuffle, Combine.of(self._merge), self._state, at_any_size=is_wanted)
        iteration.count("shuffle" if sums is None else "allreduce", start)
        if sums is None and is_wanted:
            shuffle.close()
            raise BadInput(
                'collective="allreduce" takes integer keys from 0 on, rows of numbers of one shape and type on all '
                'ranks, and memory for them; with collective="shuffle" keys and values may be of any kind'
            )
        return sums

    def _reduced(self, shuffle: Shuffle, iteration: Iteration) -> tuple[Any, Any]:
        """Keys and results of this rank. A wave is reduced while the next is in transfer."""
        parts: Iterator[tuple[Any, Any]] = shuffle.parts()

        def following() -> tuple[Any, Any] | None:
            with iteration.moving():
                return next(parts, None)

        done_parts: list[tuple[Any, Any]] = []
        failed: Exception | None = None
        if self._reduce is None:
            with iteration.time("shuffle"):
                return shuffle.result()
        with ThreadPoolExecutor(1, "skyphos-shuffle") as pool:
            coming = pool.submit(following)
            while True:
                with iteration.time("shuffle"):
                    part = coming.result()
                if part is None:
                    break
                coming = pool.submit(following)
                if failed is not None:
                    continue  # the others wait for what this rank sends
                with iteration.time("reduce"):
                    try:
                        keys, values = part
                        of_each = values if self._lists else [[value] for value in values]
                        done_parts.append((keys, reduced(self.comm, self._reduce, listed(keys), of_each)))
                    except BadInput as error:
                        failed = error
        together(self.comm, lambda: raise_if(failed))
        all_keys = [key for keys, _ in done_parts for key in listed(keys)]
        return all_keys, [result for _, results in done_parts for result in results]

    def _combine_on_rank_0(
        self, keys: Any, results: Any, before: Any, until: Callable[[Any, Any], bool] | None
    ) -> bool:
        """Make the next state on rank 0; return on all ranks whether to stop."""
        comm = self.comm
        keys, results = to_root(comm, keys, results)
        enough = False

        def combine() -> None:
            nonlocal enough
            if comm.rank != 0:
                return
            assert self._combine is not None
            try:
                self._state = self._combine(keys, results)
                enough = until is not None and bool(until(before, self._state))
            except Exception as error:  # whatever it raises
                raise raised("rank 0: combine", error) from error

        together(comm, combine)
        self._root, self._is_everywhere = 0, False
        return bool(gather_numbers(comm, enough)[0])

    def _combine_on_all_ranks(
        self, keys: Any, results: Any, before: Any, until: Callable[[Any, Any], bool] | None
    ) -> bool:
        """Make the next state on every rank; return rank 0's decision to stop."""
        comm = self.comm
        enough, checksum = False, 0
        failed: BaseException | None = None
        try:
            assert self._combine is not None
            self._state = self._combine(keys, results)
            enough = until is not None and bool(until(before, self._state))
            checksum = checksum_of(self._state) if comm.size > 1 else 0
        except Exception as error:  # whatever it raises
            failed = raised(f"rank {comm.rank}: combine", error)
        except BaseException as error:
            failed = error
        by_rank = comm.allgather(np.array([failed is not None, enough, checksum], np.int64))
        if by_rank[:, 0].any():
            together(comm, lambda: raise_if(failed))
        check_same(by_rank[:, 2])
        self._root, self._is_everywhere = 0, True
        return bool(by_rank[0, 1])

    def _broadcast_state(self) -> Any:
        """Bring the newest state to all ranks, if they do not have it yet, and return it."""
        if self.comm.size > 1 and not self._is_everywhere:
            self._state = self.comm.broadcast(self._state, self._root)
        return self._state

    def _go_on_without(self, error: PeerLost) -> None:
        """Shrink the group, and continue from the newest state of any rank."""
        if self._on_loss == "raise" or not self._tasks.can_be_read_again:
            raise error
        self.comm = self.comm.shrink()
        done = gather_numbers(self.comm, self._done)
        self._root, self._done = int(np.argmax(done)), int(done.max())
        self._is_assigned = self._is_everywhere = False

    def _description(self) -> str:
        """Names of the job's functions and data; a checkpoint with other names is refused."""
        names = [getattr(f, "__qualname__", type(f).__name__) for f in (self._map, self._reduce, self._combine) if f]
        return f"{', '.join(names)}; {Combine.of(self._merge).name}; {self._tasks.description()}"
