"""Shuffle of one rank: merges its tasks' values, sends them to their keys' owners, returns the values that it owns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ..collectives.agreement import collective, fail, raise_if, together
from ..errors import BadInput
from ..inputs.arguments import Op
from ..inputs.settings import whole
from ..inputs.units import as_bytes
from ..vectors.booleans import as_result
from .combine import Combine, Function
from .explanation import ShuffleExplanation
from .gatherer import Gatherer, default_back, unchanged
from .keys import arrays_of, joined
from .spill import PARTS
from .stages import Failed, Link, stages_of, unless_failed
from .stores import Destinations, SplitStore
from .survey import Form, agree

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["Partition", "Shuffle"]

#: (keys, ranks) → the rank of each.
Partition = Callable[[Any, int], npt.ArrayLike]


class Shuffle(Gatherer):
    """Values by key, gathered in batches from any number of tasks, then sent to their keys' owners.

    :meth:`Comm.shuffle` does it for one batch and has the same parameters. There are two more: ``waves`` is the least
    number of parts of the keys that are sent one after the other; with ``objects=True`` values of a ``"list"`` are sent
    as objects, never as rows of an array. Every rank constructs the same shuffle.

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
        memory: int | str | None = None,
        spill_dir: str | os.PathLike[str] | None = None,
        debug: bool | None = None,
        objects: bool = False,
    ) -> None:
        if local_reduction not in (True, "process", False):
            raise BadInput(f'local_reduction={local_reduction!r}: True (in the host), "process" or False')
        super().__init__(
            comm,
            Combine.of(combine),
            # If values are merged only at owners, `mergeable` is not needed.
            mergeable=mergeable if local_reduction else None,
            local="process" if local_reduction == "process" else bool(local_reduction),  # may be a numpy.bool
            memory=memory,
            spill_dir=spill_dir,
            debug=debug,
            objects=objects,
        )
        if partition is not None and not callable(partition):
            raise BadInput(f"partition must be a function of (keys, ranks), not {partition!r}")
        self._partition = partition
        push_bytes, fetches = as_bytes(push_bytes, "push_bytes", 0), whole(fetches, "fetches", 1, 2**31)
        waves = whole(waves, "waves", 1, PARTS)
        self._host, self._wire = (Link(push_bytes, fetches) for _ in range(2))
        self._waves = _power_of_two(waves)
        self._counts: dict[str, Any] = {"merged": 0, "keys": 0, "waves": 1}
        self._seconds |= {"host": 0.0, "owners": 0.0}

    @property
    def _runs_user_code(self) -> bool:
        """True if merging may fail on one rank only."""
        return self._combine.function is not None or callable(self._combine.op) or self._mergeable is not None

    def _fail(self, error: BaseException) -> None:
        self.close()
        fail(self._comm, error)

    def parts(self) -> Iterator[tuple[Any, Any]]:
        """Send all values, and yield, wave by wave, those that this rank owns. Collective.

        Yields
        ------
        keys, values
            As :meth:`Comm.shuffle` returns them. The next wave is sent when it is asked for.
        """
        for form, merged in self._merged():
            yield self._result(form, [merged])

    @collective(lambda shuffle: shuffle._comm)
    def result(self) -> tuple[Any, Any]:
        """Send all values, and return those that this rank owns. Collective.

        Returns
        -------
        keys, values
            As :meth:`Comm.shuffle` returns them.
        """
        waves = list(self._merged())
        if not waves:
            return self._nothing
        return self._result(waves[0][0], [merged for _, merged in waves])

    def _merged(self) -> Iterator[tuple[Form, Any]]:
        comm = self._comm
        options = {
            "combine": self._combine.name,
            "local_reduction": self._local,
            "push_bytes": self._wire.push_bytes,
            "fetches": self._wire.fetches,
            "mergeable": self._mergeable is not None,
            "partition": self._partition is not None,
        }
        try:
            form, waves = agree(comm, self._form, options, self._waves_wanted())
            if form is None:
                return
            self._take_form(form)
            self._counts["waves"] = waves
            for wave in range(waves):
                yield form, self._wave(form, wave, waves)
        finally:
            self.close()

    def _waves_wanted(self) -> int:
        gathered_bytes = sum(store.bytes for store in self._stores.values()) + self._spill.bytes
        fits = -(-gathered_bytes // self._memory) if self._spill.bytes and self._memory else 1
        return max(self._waves, _power_of_two(min(fits, PARTS)))

    def _wave(self, form: Form, wave: int, waves: int) -> Any:
        comm = self._comm
        stages = stages_of(comm)
        new = lambda: self._new_merging_store(form)  # noqa: E731
        start = perf_counter()
        try:
            store = self._gathered(form, wave, waves)
            if self._local:
                self._counts["merged"] += len(store)
            else:
                self._counts["merged"] = self._count
            owners = self._owners(form, store)
        except BaseException as error:
            self._fail(error)
        start = self._lap("merge", start)
        if self._local is True and stages.has_hosts:
            store = self._agreed(lambda failed: stages.on_host(store, owners, new, self._host, failed))
            owners = self._owners(form, store)
            start = self._lap("host", start)

        def to_owners(failed: Failed | None) -> Any:
            alone = comm.size == 1 and self._local
            sent = store if alone else stages.to_owners(store, owners, new, self._wire, failed)
            return unless_failed(failed, sent.merged) if isinstance(sent, SplitStore) else sent

        store = self._agreed(to_owners)
        self._counts["keys"] += len(store)
        self._lap("owners", start)
        return store

    def _agreed(self, stage: Callable[[Failed | None], Any]) -> Any:
        """Run a stage. If it runs the user's code, which may fail on one rank only, an error is raised on all ranks."""
        if not self._runs_user_code:
            return stage(None)
        failed: Failed = []
        store = stage(failed)
        together(self._comm, lambda: raise_if(failed[0] if failed else None))
        return store

    def _lap(self, what: str, start: float) -> float:
        now = perf_counter()
        self._seconds[what] += now - start
        return now

    def _owners(self, form: Form, store: Any) -> Destinations:
        """The owner of each key of a store."""
        size = self._comm.size
        if self._partition is None:
            return store.places(size, 1)[0]  # type: ignore[no-any-return]
        stores = [store.store, store.apart] if isinstance(store, SplitStore) else [store]
        none = np.empty(0, np.int64)
        arrays = [np.asarray(self._partition(_listed(form, one.keys()), size)) if len(one) else none for one in stores]
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
        to_keys, to_values = self._back or (default_back(form), unchanged)
        if form.dtype == "objects":
            whole = {key: value for store in stores for key, value in store.take().items()}
            return to_keys(arrays_of(form.keys, list(whole))), list(whole.values())
        taken = [store.take() for store in stores]
        keys = to_keys(joined([keys for keys, _, _ in taken]))
        rows = as_result(np.concatenate([rows for _, rows, _ in taken]), np.dtype(form.dtype)).reshape(-1, *form.row)
        if not self._combine.lists:
            return keys, to_values(rows)
        counts = np.concatenate([counts for _, _, counts in taken if counts is not None])
        ends = [0, *np.cumsum(counts).tolist()]
        # np.split is slower for each part.
        return keys, [to_values(rows[start:end]) for start, end in pairwise(ends)]

    def explanation(self) -> ShuffleExplanation:
        """The explanation of the shuffle on this rank."""
        return ShuffleExplanation(
            values=self._count,
            spilled_bytes=self._spill.bytes,
            host_bytes=self._host.sent_bytes,
            sent_bytes=self._wire.sent_bytes,
            sent_frames=self._host.sent_frames + self._wire.sent_frames,
            received_bytes=self._host.received_bytes + self._wire.received_bytes,
            seconds=dict(self._seconds),
            **self._counts,
        )


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _listed(form: Form, keys: Any) -> Any:
    """Keys as a ``partition`` function gets them: an array of numbers, a list of strings."""
    if isinstance(keys, list):
        return np.array(keys, form.keys) if not form.strings else keys
    return default_back(form)(keys)
