"""Stores of values by key: rows in the native table, objects in a dictionary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .. import _skyphos as native
from ..collectives.packing import Bytes, joined, pack, parted, unpack
from ..errors import BadInput
from .combine import Checker, Combine
from .keys import KeyArrays, arrays_of

__all__ = ["Destinations", "ObjectStore", "RowStore", "Store"]

#: Number of the destination of each key.
Destinations = npt.NDArray[np.uint32]

#: Destination of keys that are in no block.
NOWHERE = 2**32 - 1

#: (key) → True if its values may be merged before they reach its owner.
Mergeable = Callable[[Any], bool]

_EMPTY = np.empty(0, np.uint8)


class Store(Protocol):
    """Values by key. The first value of a key is stored; later ones are merged into it, or appended to its list."""

    @property
    def bytes(self) -> int:
        """Approximate memory in bytes."""

    def __len__(self) -> int:
        """Number of keys."""

    def absorb(self, other: Any) -> None:
        """Add the content of another store."""

    def places(self, ranks: int, waves: int) -> tuple[Destinations, Destinations]:
        """The owner and the wave of each key, by its hash."""

    def blocks(self, to: Destinations, count: int) -> list[Bytes]:
        """A block of keys and values for each destination."""

    def add_block(self, block: Bytes) -> None:
        """Add the content of a block."""

    def keys(self) -> Any:
        """A copy of the keys."""


class RowStore:
    """Rows of numbers by key."""

    def __init__(self, strings: bool, dtype: str, width: int, combine: Combine, lists: bool = False) -> None:
        as_lists = combine.lists or lists or combine.op is None
        op = None if as_lists else native.Operation(combine.op, combine.identity)
        self._table = native.KeyTable(strings, dtype, width, op)

    def add(self, keys: KeyArrays, values: Bytes | None) -> None:
        """Add a row for each key; without values a row of ones."""
        self._table.add(keys, values)

    @property
    def bytes(self) -> int:
        return self._table.bytes

    def __len__(self) -> int:
        return len(self._table)

    def absorb(self, other: RowStore) -> None:
        self._table.absorb(other._table)

    def places(self, ranks: int, waves: int) -> tuple[Destinations, Destinations]:
        return self._table.places(ranks, waves)

    def blocks(self, to: Destinations, count: int) -> list[Bytes]:
        return self._table.blocks(to, count)

    def add_block(self, block: Bytes) -> None:
        self._table.add_block(block)

    def keys(self) -> KeyArrays:
        return self._table.keys()  # type: ignore[no-any-return]

    def take(self) -> tuple[KeyArrays, npt.NDArray[Any], npt.NDArray[np.uint64] | None]:
        """Keys, rows one after the other, and for lists the number of rows of each key."""
        return self._table.take()


class ObjectStore:
    """Python objects by key."""

    def __init__(self, combine: Combine, rank: int, debug: bool = False, lists: bool = False) -> None:
        self._combine, self._rank = combine, rank
        self._lists = combine.lists or lists
        self._checker = Checker(combine, rank) if debug and not self._lists else None
        self._by_key: dict[Any, Any] = {}
        #: ``str``, ``bytes`` or an integer's dtype, once there is a key.
        self.form: str | None = None
        self._bytes = 0.0

    def add(self, form: str, keys: Sequence[Any], values: Sequence[Any]) -> None:
        """Add a value for each key."""
        self.form = form
        by_key, before = self._by_key, len(self._by_key)
        if self._lists:
            for key, value in zip(keys, values, strict=True):
                by_key.setdefault(key, []).append(value)
        else:
            for key, value in zip(keys, values, strict=True):
                self._merge(key, value)
        if len(keys):
            # Estimate from the pickled size of a few values.
            some = min(len(keys), 8)
            each = sum(part.nbytes for part in pack((list(keys[:some]), list(values[:some])))) / some
            self._bytes += each * (len(keys) if self._lists else len(by_key) - before)

    def _merge(self, key: Any, value: Any) -> None:
        if self._checker is not None:
            self._checker.see(key, value)
        by_key = self._by_key
        by_key[key] = self._combine.merge(key, by_key[key], value, self._rank) if key in by_key else value

    @property
    def bytes(self) -> int:
        return int(self._bytes)

    def __len__(self) -> int:
        return len(self._by_key)

    def absorb(self, other: ObjectStore) -> None:
        self._add_values(other.form, other._by_key, other._lists)
        self._bytes += other._bytes

    def _add_values(self, form: str | None, values: dict[Any, Any], lists: bool) -> None:
        self.form = form or self.form
        for key, value in values.items():
            if self._lists:
                self._by_key.setdefault(key, []).extend(value)
            else:
                for one in value if lists else (value,):
                    self._merge(key, one)

    def places(self, ranks: int, waves: int) -> tuple[Destinations, Destinations]:
        keys = arrays_of(self.form or "int64", list(self._by_key))
        return native.key_places(keys, ranks, waves)

    def blocks(self, to: Destinations, count: int) -> list[Bytes]:
        parts: list[tuple[list[Any], list[Any]]] = [([], []) for _ in range(count)]
        for (key, value), destination in zip(self._by_key.items(), to.tolist(), strict=True):
            if destination != NOWHERE:
                keys, values = parts[destination]
                keys.append(key)
                values.append(value)
        return [joined(pack((self.form, self._lists, *part))) if part[0] else _EMPTY for part in parts]

    def add_block(self, block: Bytes) -> None:
        if block.size:
            form, lists, keys, values = unpack(parted(block))
            self._add_values(form, dict(zip(keys, values, strict=True)), lists)

    def keys(self) -> list[Any]:
        return list(self._by_key)

    def take(self) -> dict[Any, Any]:
        """The values by key."""
        taken, self._by_key = self._by_key, {}
        return taken


class SplitStore:
    """A store, and another one for keys that are merged only at their owner."""

    def __init__(self, store: Any, apart: Any) -> None:
        self.store, self.apart = store, apart

    @property
    def bytes(self) -> int:
        return int(self.store.bytes + self.apart.bytes)

    def __len__(self) -> int:
        return len(self.store) + len(self.apart)

    def absorb(self, other: SplitStore) -> None:
        self.store.absorb(other.store)
        self.apart.absorb(other.apart)

    def places(self, ranks: int, waves: int) -> tuple[Destinations, Destinations]:
        both = [store.places(ranks, waves) for store in (self.store, self.apart)]
        return np.concatenate([both[0][0], both[1][0]]), np.concatenate([both[0][1], both[1][1]])

    def blocks(self, to: Destinations, count: int) -> list[Bytes]:
        cut = len(self.store)
        both = zip(self.store.blocks(to[:cut], count), self.apart.blocks(to[cut:], count), strict=True)
        return [joined([first, second]) if first.size or second.size else _EMPTY for first, second in both]

    def add_block(self, block: Bytes) -> None:
        if block.size:
            first, second = parted(block)
            self.store.add_block(first)
            self.apart.add_block(second)

    def merged(self) -> Any:
        """The content of both stores in one; for the owner of the keys."""
        for block in self.apart.blocks(np.zeros(len(self.apart), np.uint32), 1):
            self.store.add_block(block)
        return self.store


def retype(store: Any, new: Any) -> Any:
    """A copy of an int64 store as uint64, if lists of another rank have larger numbers."""
    if isinstance(store, SplitStore):
        return SplitStore(retype(store.store, new.store), retype(store.apart, new.apart))
    keys, rows, counts = store.take()
    if counts is not None and isinstance(keys, tuple):
        each = zip(native.list_of(keys[0], keys[1], False), counts.tolist(), strict=True)
        keys = native.strings_of([key for key, count in each for _ in range(count)])
    elif counts is not None:
        keys = np.repeat(keys, counts.astype(np.int64))
    new.add(keys, rows.view(np.uint8))
    return new


def mergeable_mask(mergeable: Mergeable, keys: Sequence[Any], rank: int) -> npt.NDArray[np.bool_]:
    """Mask of the keys of a batch that may be merged."""
    known: dict[Any, bool] = {}
    for key in keys:
        if key not in known:
            try:
                known[key] = bool(mergeable(key))
            except Exception as error:  # any error of the user's function
                raise BadInput(
                    f"rank {rank}: mergeable raised {type(error).__name__} on key {key!r}: {error}"
                ) from error
    return np.fromiter((known[key] for key in keys), np.bool_, len(keys))


def chosen(mask: npt.NDArray[np.bool_], values: Sequence[Any]) -> Sequence[Any]:
    """The values that a mask selects."""
    return values[mask] if isinstance(values, np.ndarray) else list(compress(values, mask))
