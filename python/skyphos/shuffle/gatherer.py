"""Gatherer: collects the output of the tasks of one rank, batch by batch, until it is sent."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ..collectives.agreement import fail
from ..collectives.packing import untrusted
from ..errors import BadInput
from ..inputs.arguments import as_values
from ..inputs.arrays import as_numpy, refuse_masked, supported
from ..inputs.units import as_bytes
from ..vectors.booleans import as_native_out, as_result
from ..vectors.kinds import open_vector
from .combine import Combine, is_debug
from .keys import Keys, listed, open_hashable, open_keys, select
from .spill import Spill, memory_of_rank
from .stages import only_wave, stages_of
from .stores import ObjectStore, RowStore, SplitStore, chosen, mergeable_mask, retype
from .survey import Form, row_form

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["Gatherer", "default_back", "unchanged"]


class Gatherer:
    """The output of the tasks of one rank, by key: a store for each task, or files.

    Parameters
    ----------
    combine : Combine
        Merges the values of a key.
    mergeable : callable, optional
        (key) → True if values of this key may be merged before they reach their owner; None: ``local`` decides for all
        keys.
    local : bool or "process"
        Where values are merged before they reach their owner. True: in this process and among the ranks of its host.
        ``"process"``: in this process. False: nowhere.
    memory : int or str, optional
        Memory limit in bytes; None: by the memory of the host.
    spill_dir : path, optional
        Folder of files.
    debug : bool, optional
        Whether functions are checked.
    objects : bool
        Whether values of a ``"list"`` are sent as objects, never as rows of an array.
    """

    def __init__(
        self,
        comm: Comm,
        combine: Combine,
        *,
        mergeable: Callable[[Any], bool] | None,
        local: bool | Literal["process"],
        memory: int | str | None,
        spill_dir: str | os.PathLike[str] | None,
        debug: bool | None,
        objects: bool,
    ) -> None:
        self._comm = comm
        self._objects = objects
        self._combine, self._mergeable, self._local = combine, mergeable, local
        memory = None if memory is None else as_bytes(memory, "memory")
        # Replicas must use the same number of waves, whatever the memory of their hosts.
        self._memory = sys.maxsize if memory is None and comm.replication > 1 else memory
        self._debug = is_debug(debug)
        self._form: Form | None = None
        # Conversions of keys, and of values, to the kinds in which the caller passed them.
        self._back: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None = None
        #: Whether tasks come one after the other, in the order of their numbers: then one store is enough for all.
        self.in_turn = False
        self._stores: dict[int, Any] = {}
        # Bytes of each store after its last batch. Asking a store would wait for the thread that adds to it.
        self._bytes: dict[int, int] = {}
        # Tasks whose values may still be dropped; they are not written to files.
        self._tentative: set[int] = set()
        self._spill = Spill(spill_dir)
        self._lock = threading.Lock()
        self._count = 0
        #: This rank's result if no rank has any values.
        self._nothing: tuple[Any, Any] = ([], [])
        self._seconds = {"merge": 0.0}

    def add(self, keys: Any, values: Any = None, *, task: int = 0) -> None:
        """Gather a batch. Not collective; batches of different tasks may come from different threads at once.

        Parameters
        ----------
        keys : array or list
            Integers, ``str`` or ``bytes``: a NumPy or Arrow array, or a list. All batches of all ranks have the same
            kind.
        values : array or sequence, optional
            A number or a row of numbers for each key; any objects if ``combine`` is a function or ``"list"``. None
            with ``combine="count"``.
        task : int
            Values of one task are merged in the order of the batches, then tasks in the order of their numbers.

        Raises
        ------
        BadInput
            For keys or values that cannot be sent or have another kind than earlier ones; for an error of the function.
        """
        if _is_nothing(keys):
            if self._form is None and isinstance(keys, np.ndarray):
                self._nothing = np.empty(0, np.int64), np.empty(0) if values is None else as_numpy(values, "values")
            return
        start = perf_counter()
        objects = self._combine.function is not None or self._objects
        rows: npt.NDArray[Any] | None = None
        back: Callable[[Any], Any] = unchanged
        if self._combine.counts:
            if values is not None:
                raise BadInput('combine="count" counts keys: it takes no values')
        elif values is None:
            raise BadInput('values are missing: a number, a row or an object for each key, or combine="count"')
        elif not objects:
            rows, back = self._rows(values)
            objects = rows is None
        if objects:
            opened, key_list = open_hashable(keys)
            refuse_masked(values, "values")
            if not hasattr(values, "__len__") or isinstance(values, (dict, set, str, bytes)):
                raise BadInput(f"values must be a list or an array, not {type(values).__name__}: pass list(values)")
            if len(values) != len(key_list):
                raise BadInput(f"{len(values)} values for {len(key_list)} keys")
            form = Form(opened.form, "objects", key_signs=opened.signs)
            self._open(form, opened.back, back)
            self._add_objects(self._store_number(task, form), key_list, values)
        else:
            opened = open_keys(keys)
            if rows is not None and rows.dtype == np.bool_:
                rows = rows.astype(self._combine.type_of(rows.dtype), copy=False)
            form = self._form_of(opened, rows, _signs_of(values, rows))
            self._open(form, opened.back, back)
            self._add_rows(self._store_number(task, form), opened, rows)
        with self._lock:
            self._count += len(keys)
            self._seconds["merge"] += perf_counter() - start

    def _rows(self, values: Any) -> tuple[npt.NDArray[Any] | None, Callable[[Any], Any]]:
        """Values as an array of numbers, and the conversion back; None for objects that are listed."""
        back: Callable[[Any], Any] = unchanged
        refuse_masked(values, "values")
        try:
            if isinstance(values, (list, tuple)):
                array = np.asarray(values)
            else:
                array, back = open_vector(values)  # type: ignore[assignment]
        except (BadInput, ValueError, TypeError, OverflowError) as error:
            if self._combine.lists and not isinstance(values, np.ndarray):
                return None, back
            why = "ragged rows" if "inhomogeneous" in str(error) else str(error)
            rows = "numbers or rows of numbers of one length"
            raise BadInput(f"values must be {rows} for combine={self._combine.name}: {why}") from None
        if not isinstance(array, np.ndarray):
            raise BadInput(f"values must be an array or a list, not {type(values).__name__}")
        if array.dtype.kind in "OSUVM" and not supported(array.dtype):
            if self._combine.lists:
                return None, back
            raise BadInput(f"values must be numbers for combine={self._combine.name}, not of type {array.dtype}")
        as_values(array.reshape(-1)[:1], min(array.size, 1), 1, "values")  # refuses unknown types
        return array, back

    def _form_of(self, keys: Keys, rows: npt.NDArray[Any] | None, signs: str | None) -> Form:
        if rows is None:
            return Form(keys.form, "int64", key_signs=keys.signs)
        if rows.ndim == 0 or rows.shape[0] != keys.count:
            raise BadInput(f"values of shape {rows.shape} for {keys.count} keys: one for each, along the first axis")
        return Form(keys.form, rows.dtype.name, row_form(rows.shape[1:]), keys.signs, signs)

    def _open(self, form: Form, to_keys: Callable[[Any], Any], to_values: Callable[[Any], Any]) -> None:
        """Take the kinds of keys and values from the first batch; refuse later batches of other kinds."""
        with self._lock:
            if self._form is None:
                if form.dtype == "objects" and not self._comm._native.trusted:
                    raise untrusted("objects would be sent as pickles, which run")
                self._new_store(form)  # if it raises, nothing has been stored
                self._form, self._back = form, (to_keys, to_values)
            elif form != self._form or form.key_signs != self._form.key_signs:
                joined = self._form.joined(form)
                if joined is None or joined.dtype != self._form.dtype:
                    raise BadInput(f"a batch has {form}, those before it had {self._form}: all must have the same")
                if joined.keys != self._form.keys:  # integers of lists now have a type
                    self._back = to_keys, self._back[1] if self._back else to_values
                self._form = joined

    def _new_store(self, form: Form, lists: bool = False) -> Any:
        if form.dtype == "objects":
            return ObjectStore(self._combine, self._comm.rank, self._debug, lists)
        return RowStore(form.strings, form.held, form.width, self._combine, lists)

    def _new_merging_store(self, form: Form) -> Any:
        store = self._new_store(form)
        return store if self._mergeable is None else SplitStore(store, self._new_store(form, lists=True))

    def _new_rank_store(self, form: Form) -> Any:
        """A store for this rank's values. With ``local=False`` it merges nothing."""
        return self._new_merging_store(form) if self._local else self._new_store(form, lists=True)

    def _store_number(self, task: int, form: Form) -> int:
        """The number of a task's store. Tasks in turn share store 0, which takes less memory than a store for each."""
        return 0 if self.in_turn and self._combine.is_exact(form.dtype) else task

    def _store(self, task: int) -> Any:
        with self._lock:
            if task not in self._stores:
                assert self._form is not None
                self._stores[task] = self._new_rank_store(self._form)
            return self._stores[task]

    def _add_rows(self, task: int, keys: Keys, rows: npt.NDArray[Any] | None) -> None:
        def bytes_of(some: npt.NDArray[Any] | None) -> npt.NDArray[np.uint8] | None:
            if some is None:
                return None
            flat = as_native_out(as_values(some.reshape(-1), some.size, 1, "values"))
            return flat.view(np.uint8)

        store = self._store(task)
        if self._mergeable is None:
            store.add(keys.arrays, bytes_of(rows))
        else:
            values = np.ones(keys.count, np.int64) if rows is None else rows
            mask = mergeable_mask(self._mergeable, listed(keys.back(keys.arrays)), self._comm.rank)
            for part, selected in ((store.store, mask), (store.apart, ~mask)):
                part.add(select(keys.arrays, selected), bytes_of(values[selected]))
        self._spill_if_full(task, store)

    def _add_objects(self, task: int, keys: list[Any], values: Any) -> None:
        store = self._store(task)
        assert self._form is not None
        if self._mergeable is None:
            store.add(self._form.keys, *_as_lists(keys, values))
        else:
            mask = mergeable_mask(self._mergeable, keys, self._comm.rank)
            for part, selected in ((store.store, mask), (store.apart, ~mask)):
                part.add(self._form.keys, *_as_lists(list(chosen(selected, keys)), chosen(selected, list(values))))
        self._spill_if_full(task, store)

    def _spill_if_full(self, task: int, store: Any) -> None:
        """Write a task's values to a file if all gathered values exceed the memory limit."""
        taken = store.bytes
        with self._lock:
            self._bytes[task] = taken
            if self._memory is None:
                self._memory = memory_of_rank(len(stages_of(self._comm).here))
            if sum(self._bytes.values()) <= self._memory or task in self._tentative:
                return
            # Small stores stay in memory; else each batch would make a file.
            if taken * 2 * len(self._stores) < self._memory:
                return
            del self._stores[task], self._bytes[task]
            self._spill.add(store)

    def hold(self, task: int) -> None:
        """Keep a task's output in memory until it is released or dropped."""
        with self._lock:
            self._tentative.add(task)

    def release(self, task: int) -> None:
        """Accept the output of a task that :meth:`hold` marked."""
        with self._lock:
            self._tentative.discard(task)
            store = self._stores.get(task)
        if store is not None:
            self._spill_if_full(task, store)

    def drop(self, task: int) -> None:
        """Drop the output of a task that :meth:`hold` marked."""
        with self._lock:
            self._tentative.discard(task)
            self._stores.pop(task, None)
            self._bytes.pop(task, None)

    def merged_keys(self) -> tuple[Form | None, npt.NDArray[Any]] | None:
        """Merge the output of this rank's tasks; return its form and keys, in no order. The shuffle can still continue.

        Returns
        -------
        form, keys or None
            None unless keys are integers, values are numbers, and all of them are in memory and may be merged.
        """
        form = self._form
        if form is None:
            return None if self._spill.bytes else (None, np.empty(0, np.int64))
        if form.strings or form.dtype == "objects" or self._mergeable or not self._local or self._spill.bytes:
            return None
        self._stores = {0: self._gathered(form, 0, 1)}
        return form, np.asarray(default_back(form)(self._stores[0].keys()))

    def take_rows(self, form: Form) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Take the values after :meth:`merged_keys`, instead of a shuffle: keys, and rows of shape (k, …)."""
        if not self._stores:
            return np.empty(0, form.keys), np.empty((0, *form.row), form.dtype)
        keys, rows, _ = self._stores[0].take()
        self.close()
        return np.asarray(default_back(form)(keys)), as_result(rows, np.dtype(form.dtype)).reshape(-1, *form.row)

    def _take_form(self, form: Form) -> None:
        """Convert to the form that all ranks agreed on, which gives integers of lists a type."""
        mine = self._form
        if mine is not None and mine != form:
            if form.dtype not in (mine.dtype, "objects"):
                if self._spill.bytes:
                    why = "are lists of int64 here and of uint64 elsewhere, and some are in files: pass arrays"
                    fail(self._comm, BadInput(f"values {why} of one type"))
                self._stores = {task: retype(store, self._new_rank_store(form)) for task, store in self._stores.items()}
            if mine.keys != form.keys and self._back is not None:
                self._back = open_keys([2**63] if form.keys == "uint64" else [-1]).back, self._back[1]
        self._form = form

    def _gathered(self, form: Form, wave: int, waves: int) -> Any:
        """This rank's share of a wave, merged over all its tasks."""
        tasks = [self._stores[task] for task in sorted(self._stores)]
        if waves == 1 and not self._spill.bytes:
            if not tasks:
                return self._new_rank_store(form)
            first = tasks[0]
            for other in tasks[1:]:
                first.absorb(other)
            self._stores.clear()
            return first
        merged = self._new_rank_store(form)
        for block in self._spill.blocks(wave, waves):
            merged.add_block(block)
        for store in tasks:
            owners, of_wave = store.places(1, waves)
            merged.add_block(store.blocks(only_wave(owners, of_wave, wave), 1)[0])
        return merged

    def close(self) -> None:
        """Drop all stores, and the files."""
        self._stores.clear()
        self._spill.close()


def _is_nothing(keys: Any) -> bool:
    """True for an empty list, or an array that NumPy made of one: there are no keys, and their kind is unknown."""
    if isinstance(keys, np.ndarray):
        return keys.shape == (0,) and keys.dtype.kind in "fO"
    return isinstance(keys, (list, tuple)) and not keys


def _signs_of(values: Any, rows: npt.NDArray[Any] | None) -> str | None:
    """The integer types that can hold a list of integers; None for arrays, which have a type."""
    if rows is None or not isinstance(values, (list, tuple)) or rows.dtype.name not in ("int64", "uint64"):
        return None
    if rows.dtype == np.uint64:
        return "unsigned" if rows.max(initial=0) >= 2**63 else "any"
    return "signed" if rows.min(initial=0) < 0 else "any"


def unchanged(x: Any) -> Any:
    """Return the argument."""
    return x


def _as_lists(keys: list[Any], values: Any) -> tuple[list[Any], list[Any]]:
    return keys, values if isinstance(values, list) else list(values)


def default_back(form: Form) -> Callable[[Any], Any]:
    """The conversion of keys on a rank that added none: to arrays of numbers, or to lists of strings."""
    return open_keys(np.empty(0, form.keys)).back if not form.strings else _list_back(form.keys)


def _list_back(form: str) -> Callable[[Any], Any]:
    return open_keys(["" if form == "str" else b""]).back
