"""A shuffle from the first batch to the last key: what tasks gather, merged, sent and handed out."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ..arguments import Op, as_values
from ..errors import BadInput
from ..kinds import open_vector
from ..packing import untrusted
from ..together import raise_if, together
from .combine import Combine, Function, is_debug
from .explanation import ShuffleExplanation
from .keys import Keys, arrays_of, hashable, joined, listed, open_keys, select
from .spill import PARTS, Spill, memory_of_rank
from .stages import Link, only
from .stores import ObjectStore, Pair, Places, RowStore, chosen, split_by
from .survey import Form, agree, row_form

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["Partition", "Shuffle"]

#: (keys, ranks) → the rank of each.
Partition = Callable[[Any, int], npt.ArrayLike]


class Shuffle:
    """Values by key, gathered in batches from any number of tasks, then sent to their keys' owners.

    :meth:`Comm.shuffle` does it for one batch; its parameters are these, and two more: ``waves`` are the parts of the
    keys that go one after the other, at least; with ``objects=True`` values of a ``"list"`` are sent as they are, never
    as rows of an array. Every rank makes one alike.

    Examples
    --------
    >>> import skyphos as sky
    >>> from skyphos.shuffle import Shuffle
    >>> with sky.init() as comm:
    ...     words = Shuffle(comm, "count")
    ...     words.add(["to", "be", "or", "not"])
    ...     words.add(["to", "be"])
    ...     keys, counts = words.result()
    >>> dict(zip(keys, counts.tolist()))
    {'to': 2, 'be': 2, 'or': 1, 'not': 1}
    """

    def __init__(
        self,
        comm: Comm,
        combine: Op | Function = "sum",
        *,
        partition: Partition | None = None,
        mergeable: Callable[[Any], bool] | None = None,
        local_reduction: bool | Literal["process"] = True,
        push_bytes: int = 1 << 16,
        fetches: int = 4,
        waves: int = 1,
        memory: int | None = None,
        spill_dir: str | os.PathLike[str] | None = None,
        debug: bool | None = None,
        objects: bool = False,
    ) -> None:
        self._comm = comm
        self._objects = objects
        self._combine = Combine.of(combine)
        if local_reduction not in (True, "process", False):
            raise BadInput(f'local_reduction={local_reduction!r}: True (in the host), "process" or False')
        self._local = "process" if local_reduction == "process" else bool(local_reduction)  # NumPy has its own True
        # What is merged at owners alone needs nobody to ask.
        self._partition, self._mergeable = partition, mergeable if local_reduction else None
        if push_bytes < 0 or fetches < 1 or not 1 <= waves <= PARTS:
            raise BadInput(
                f"push_bytes={push_bytes}, fetches={fetches}, waves={waves}: bytes, at least one, and 1 to {PARTS}"
            )
        self._host, self._wire = (Link(int(push_bytes), int(fetches)) for _ in range(2))
        self._waves = _power_of_two(waves)
        if memory is not None and memory < 1:
            raise BadInput(f"memory={memory}: bytes that this rank may take for what it gathers")
        # Replicas do the same, whatever their hosts have.
        self._memory = sys.maxsize if memory is None and comm.replication > 1 else memory
        self._debug = is_debug(debug)
        self._form: Form | None = None
        self._back: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None = None
        #: Whether tasks come one after the other, by their numbers: then one store may do for all.
        self.in_turn = False
        self._stores: dict[int, Any] = {}
        # Bytes of each, as of its last batch: a store is asked only by who adds to it, for it waits for who does.
        self._bytes: dict[int, int] = {}
        # Tasks whose values may still be dropped, and so are in no file.
        self._held: set[int] = set()
        self._spill = Spill(spill_dir)
        self._lock = threading.Lock()
        self._count = 0
        self._told: dict[str, Any] = {"merged": 0, "keys": 0, "waves": 1}
        self._seconds = {"merge": 0.0, "host": 0.0, "owners": 0.0}

    @property
    def _runs_user_code(self) -> bool:
        """Whether what happens to one rank's values may fail on it alone."""
        return self._combine.function is not None or callable(self._combine.op) or self._mergeable is not None

    def add(self, keys: Any, values: Any = None, *, task: int = 0) -> None:
        """Gather a batch. Not collective; batches of different tasks may come from different threads at once.

        Parameters
        ----------
        keys : array or list
            Integers, ``str`` or ``bytes``: a NumPy or Arrow array, or a list. All batches of all ranks are of one kind.
        values : array or sequence, optional
            A number or a row of numbers for each key; any objects where ``combine`` is a function or ``"list"``. None
            with ``combine="count"``.
        task : int
            Values of one task are merged in the order in which they come, then those of tasks in their numbers' order.

        Raises
        ------
        BadInput
            Keys or values that cannot be sent, or are not what came before; what the function raised.
        """
        if isinstance(keys, (list, tuple)) and not keys:
            return  # nothing of no kind
        start = perf_counter()
        objects = self._combine.function is not None or self._objects
        rows: npt.NDArray[Any] | None = None
        back: Callable[[Any], Any] = _as_it_is
        if self._combine.counts:
            if values is not None:
                raise BadInput('combine="count" counts keys: it takes no values')
        elif values is None:
            raise BadInput('values are missing: a number, a row or an object for each key, or combine="count"')
        elif not objects:
            rows, back = self._rows(values)
            objects = rows is None
        if objects:
            opened, each = hashable(keys)
            if len(values) != len(each):
                raise BadInput(f"{len(values)} values for {len(each)} keys")
            form = Form(opened.form, "objects")
            self._open(form, opened.back, back)
            self._into(self._slot(task, form), each, values)
        else:
            opened = open_keys(keys)
            form = self._form_of(opened, rows)
            self._open(form, opened.back, back)
            self._add_rows(self._slot(task, form), opened, rows)
        with self._lock:
            self._count += len(keys)
            self._seconds["merge"] += perf_counter() - start

    def _rows(self, values: Any) -> tuple[npt.NDArray[Any] | None, Callable[[Any], Any]]:
        """Values as numbers, if they are some; None if they are objects to be listed."""
        back: Callable[[Any], Any] = _as_it_is
        try:
            if isinstance(values, (list, tuple)):
                array = np.asarray(values)
            else:
                array, back = open_vector(values)  # type: ignore[assignment]
        except (BadInput, ValueError, TypeError, OverflowError) as error:
            if self._combine.lists:
                return None, back
            why = "ragged rows" if "inhomogeneous" in str(error) else str(error)
            rows = "numbers or rows of as many numbers each"
            raise BadInput(f"values must be {rows} for combine={self._combine.name}: {why}") from None
        if not isinstance(array, np.ndarray):
            raise BadInput(f"values must be an array or a list, not {type(values).__name__}")
        if array.dtype == object or array.dtype.kind in "SUVM":
            if self._combine.lists:
                return None, back
            raise BadInput(f"values must be numbers for combine={self._combine.name}, not of type {array.dtype}")
        as_values(array.reshape(-1)[:1], min(array.size, 1), 1, "values")  # refuses types that it does not know
        return array, back

    def _form_of(self, keys: Keys, rows: npt.NDArray[Any] | None) -> Form:
        if rows is None:
            return Form(keys.form, "int64")
        if rows.ndim == 0 or rows.shape[0] != keys.count:
            raise BadInput(f"values of shape {rows.shape} for {keys.count} keys: one for each, along the first axis")
        dtype = "uint8" if rows.dtype == np.bool_ else rows.dtype.name
        return Form(keys.form, dtype, row_form(rows.shape[1:]))

    def _open(self, form: Form, to_keys: Callable[[Any], Any], to_values: Callable[[Any], Any]) -> None:
        """The first batch says what all are."""
        with self._lock:
            if self._form is None:
                if form.dtype == "objects" and not self._comm._native.trusted:
                    raise untrusted("objects would be sent as pickles, which run")
                self._new_store(form)  # what it refuses is refused before anything is kept
                self._form, self._back = form, (to_keys, to_values)
            elif form != self._form:
                raise BadInput(f"a batch has {form}, those before it had {self._form}: all must have the same")

    def _new_store(self, form: Form, lists: bool = False) -> Any:
        if form.dtype == "objects":
            return ObjectStore(self._combine, self._comm.rank, self._debug, lists)
        return RowStore(form.strings, form.dtype, form.width, self._combine, lists)

    def _new(self, form: Form) -> Any:
        store = self._new_store(form)
        return store if self._mergeable is None else Pair(store, self._new_store(form, lists=True))

    def _new_here(self, form: Form) -> Any:
        """For what this rank has: to be merged, or to be sent as it is."""
        return self._new(form) if self._local else self._new_store(form, lists=True)

    def _slot(self, task: int, form: Form) -> int:
        """The store of a task: keys of many tasks in one take less memory than in many."""
        return 0 if self.in_turn and self._combine.is_exact(form.dtype) else task

    def _store(self, task: int) -> Any:
        with self._lock:
            if task not in self._stores:
                assert self._form is not None
                self._stores[task] = self._new_here(self._form)
            return self._stores[task]

    def _add_rows(self, task: int, keys: Keys, rows: npt.NDArray[Any] | None) -> None:
        def bytes_of(some: npt.NDArray[Any] | None) -> npt.NDArray[np.uint8] | None:
            if some is None:
                return None
            flat = as_values(some.reshape(-1), some.size, 1, "values")
            return flat.view(np.uint8)

        store = self._store(task)
        if self._mergeable is None:
            store.add(keys.arrays, bytes_of(rows))
        else:
            values = np.ones(keys.count, np.int64) if rows is None else rows
            mask = split_by(self._mergeable, listed(keys.back(keys.arrays)), self._comm.rank)
            for part, some in ((store.store, mask), (store.apart, ~mask)):
                part.add(select(keys.arrays, some), bytes_of(values[some]))
        self._settle(task, store)

    def _into(self, task: int, keys: list[Any], values: Any) -> None:
        store = self._store(task)
        assert self._form is not None
        if self._mergeable is None:
            store.add(self._form.keys, *_both(keys, values))
        else:
            mask = split_by(self._mergeable, keys, self._comm.rank)
            for part, some in ((store.store, mask), (store.apart, ~mask)):
                part.add(self._form.keys, *_both(list(chosen(some, keys)), chosen(some, list(values))))
        self._settle(task, store)

    def _settle(self, task: int, store: Any) -> None:
        """Write a task's values to a file if all that is gathered takes more memory than it may."""
        taken = store.bytes
        with self._lock:
            self._bytes[task] = taken
            if self._memory is None:
                self._memory = memory_of_rank(len(self._comm._stages.here))
            if sum(self._bytes.values()) <= self._memory or task in self._held:
                return
            # What is small stays: a file for each batch would be many.
            if taken * 2 * len(self._stores) < self._memory:
                return
            del self._stores[task], self._bytes[task]
            self._spill.add(store)

    def hold(self, task: int) -> None:
        """What a task gives may still be dropped: until it is released it stays in memory."""
        with self._lock:
            self._held.add(task)

    def release(self, task: int) -> None:
        """What a task that was held gave counts."""
        with self._lock:
            self._held.discard(task)
            store = self._stores.get(task)
        if store is not None:
            self._settle(task, store)

    def drop(self, task: int) -> None:
        """What a task that was held gave does not count."""
        with self._lock:
            self._held.discard(task)
            self._stores.pop(task, None)
            self._bytes.pop(task, None)

    def merged_keys(self) -> tuple[Form | None, npt.NDArray[Any]] | None:
        """Merge what this rank's tasks have given: what it is, and its keys, in no order. The shuffle can still go on.

        Returns
        -------
        form, keys or None
            None: not numbers by integer keys, in memory.
        """
        form = self._form
        if form is None:
            return None if self._spill.bytes else (None, np.empty(0, np.int64))
        if form.strings or form.dtype == "objects" or self._mergeable or not self._local or self._spill.bytes:
            return None
        self._stores = {0: self._gathered(form, 0, 1)}
        return form, np.asarray(_default_back(form)(self._stores[0].keys()))

    def take_rows(self, form: Form) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """What :meth:`merged_keys` has merged, in place of a shuffle: keys, and rows of shape (k, …)."""
        if not self._stores:
            return np.empty(0, form.keys), np.empty((0, *form.row), form.dtype)
        keys, rows, _ = self._stores[0].take()
        self.close()
        return np.asarray(_default_back(form)(keys)), rows.reshape(-1, *form.row)

    def _fail(self, error: Exception) -> None:
        self.close()
        self._comm._fail(error)

    def parts(self) -> Iterator[tuple[Any, Any]]:
        """Send all, and hand out what this rank owns, wave by wave. Collective.

        Yields
        ------
        keys, values
            As :meth:`Comm.shuffle` returns them. Between two of them the next wave waits.
        """
        for form, merged in self._merged():
            yield self._result(form, [merged])

    def result(self) -> tuple[Any, Any]:
        """All that this rank owns, once it is there. Collective.

        Returns
        -------
        keys, values
            As :meth:`Comm.shuffle` returns them.
        """
        waves = list(self._merged())
        if not waves:
            return [], []
        return self._result(waves[0][0], [merged for _, merged in waves])

    def _merged(self) -> Iterator[tuple[Form, Any]]:
        comm = self._comm
        options = f"combine={self._combine.name}, local_reduction={self._local}"
        options += f", push_bytes={self._wire.push_bytes}, fetches={self._wire.fetches}"
        options += f", mergeable={self._mergeable is not None}, partition={self._partition is not None}"
        try:
            form, waves = agree(comm, self._form, options, self._waves_wanted())
            if form is None:
                return
            self._told["waves"] = waves
            for wave in range(waves):
                yield form, self._wave(form, wave, waves)
        finally:
            self.close()

    def _waves_wanted(self) -> int:
        held = sum(store.bytes for store in self._stores.values()) + self._spill.bytes
        fits = -(-held // self._memory) if self._spill.bytes and self._memory else 1
        return max(self._waves, _power_of_two(min(fits, PARTS)))

    def _wave(self, form: Form, wave: int, waves: int) -> Any:
        comm = self._comm
        stages = comm._stages
        new = lambda: self._new(form)  # noqa: E731
        start = perf_counter()
        try:
            store = self._gathered(form, wave, waves)
            if self._local:
                self._told["merged"] += len(store)
            else:
                self._told["merged"] = self._count
            owners = self._owners(form, store)
        except Exception as error:
            self._fail(error)
        start = self._lap("merge", start)
        if self._local is True and stages.has_hosts:
            store = self._agreed(lambda: stages.on_host(store, owners, new, self._host))
            owners = self._owners(form, store)
            start = self._lap("host", start)

        def to_owners() -> Any:
            alone = comm.size == 1 and self._local
            sent = store if alone else stages.to_owners(store, owners, new, self._wire)
            return sent.merged() if isinstance(sent, Pair) else sent

        store = self._agreed(to_owners)
        self._told["keys"] += len(store)
        self._lap("owners", start)
        return store

    def _agreed(self, stage: Callable[[], Any]) -> Any:
        """Run a stage; where it runs code of the user's, which may fail on one rank alone, it fails on all."""
        if not self._runs_user_code:
            return stage()
        failed: Exception | None = None
        try:
            store = stage()
        except BadInput as error:
            failed = error
        together(self._comm, lambda: raise_if(failed))
        return store

    def _lap(self, what: str, start: float) -> float:
        now = perf_counter()
        self._seconds[what] += now - start
        return now

    def _gathered(self, form: Form, wave: int, waves: int) -> Any:
        """What this rank has of a wave, merged over all its tasks."""
        tasks = [self._stores[task] for task in sorted(self._stores)]
        if waves == 1 and not self._spill.bytes:
            if not tasks:
                return self._new_here(form)
            first = tasks[0]
            for other in tasks[1:]:
                first.absorb(other)
            self._stores.clear()
            return first
        merged = self._new_here(form)
        for block in self._spill.blocks(wave, waves):
            merged.add_block(block)
        for store in tasks:
            owners, of_wave = store.places(1, waves)
            merged.add_block(store.blocks(only(owners, of_wave, wave), 1)[0])
        return merged

    def _owners(self, form: Form, store: Any) -> Places:
        """The owner of each key of a store."""
        size = self._comm.size
        if self._partition is None:
            return store.places(size, 1)[0]  # type: ignore[no-any-return]
        stores = [store.store, store.apart] if isinstance(store, Pair) else [store]
        none = np.empty(0, np.int64)
        arrays = [np.asarray(self._partition(_kept(form, one.keys()), size)) if len(one) else none for one in stores]
        for array, one in zip(arrays, stores, strict=True):
            if array.shape != (len(one),) or array.dtype.kind not in "iu":
                raise BadInput(
                    f"partition must return a rank for each key: an array of {len(one)} integers, not of type "
                    f"{array.dtype} and shape {array.shape}"
                )
        owners = np.concatenate(arrays)
        if owners.size and (owners.min() < 0 or owners.max() >= size):
            wrong = owners[(owners < 0) | (owners >= size)][0]
            raise BadInput(f"partition returned rank {wrong}, and ranks are 0 to {size - 1}")
        return owners.astype(np.uint32)

    def _result(self, form: Form, stores: list[Any]) -> tuple[Any, Any]:
        to_keys, to_values = self._back or (_default_back(form), _as_it_is)
        if form.dtype == "objects":
            whole = {key: value for store in stores for key, value in store.take().items()}
            return to_keys(arrays_of(form.keys, list(whole))), list(whole.values())
        taken = [store.take() for store in stores]
        keys = to_keys(joined([keys for keys, _, _ in taken]))
        rows = np.concatenate([rows for _, rows, _ in taken]).reshape(-1, *form.row)
        if not self._combine.lists:
            return keys, to_values(rows)
        counts = np.concatenate([counts for _, _, counts in taken if counts is not None])
        ends = [0, *np.cumsum(counts).tolist()]
        # Not np.split, which does more for each part.
        return keys, [to_values(rows[start:end]) for start, end in pairwise(ends)]

    def close(self) -> None:
        """Drop what was gathered, and the files."""
        self._stores.clear()
        self._spill.close()

    def explanation(self) -> ShuffleExplanation:
        """What it did on this rank."""
        return ShuffleExplanation(
            values=self._count,
            spilled_bytes=self._spill.bytes,
            host_bytes=self._host.sent_bytes,
            sent_bytes=self._wire.sent_bytes,
            sent_frames=self._host.sent_frames + self._wire.sent_frames,
            received_bytes=self._host.received_bytes + self._wire.received_bytes,
            seconds=dict(self._seconds),
            **self._told,
        )


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _as_it_is(x: Any) -> Any:
    return x


def _both(keys: list[Any], values: Any) -> tuple[list[Any], list[Any]]:
    return keys, values if isinstance(values, list) else list(values)


def _default_back(form: Form) -> Callable[[Any], Any]:
    """The kind of keys of a rank that had none: arrays of numbers, lists of strings."""
    return open_keys(np.empty(0, form.keys)).back if not form.strings else _list_back(form.keys)


def _list_back(form: str) -> Callable[[Any], Any]:
    return open_keys(["" if form == "str" else b""]).back


def _kept(form: Form, keys: Any) -> Any:
    """Keys as a partitioner sees them: an array of numbers, a list of strings."""
    if isinstance(keys, list):
        return np.array(keys, form.keys) if not form.strings else keys
    return _default_back(form)(keys)
