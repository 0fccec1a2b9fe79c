"""Sums by key for all ranks: one sparse allreduce replaces shuffle, reduction, collection and broadcast.

*Twister* (section 3) brings rows to the owners of their keys, reduces them there, collects the results on one rank and
broadcasts the new state. *Kylix* calls keys indices, and does all of that in one nested butterfly, after which
every rank has the result.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ..collectives.agreement import reduce_number
from ..collectives.packing import pack
from ..errors import Mismatch
from ..shuffle.combine import Combine
from ..shuffle.survey import Form
from ..vectors.sparse_vector import SparseVector

if TYPE_CHECKING:
    from ..comm import Comm
    from ..shuffle import Shuffle

__all__ = ["Collective", "Sums", "check_same", "checksum_of"]

#: Method that turns keyed values into the next state.
Collective = Literal["auto", "shuffle", "allreduce"]

# Output of a rank: something that an allreduce cannot sum; nothing; rows.
_UNFIT, _NOTHING, _ROWS = 0, 1, 2

# Results larger than this (bytes) go to every rank only if the state made of them is not far smaller.
_LARGE_BYTES = 64 << 20

# Largest key.
_MAX_KEY = 2**63 - 2


@dataclass(frozen=True)
class Sums:
    """Rows by key that all ranks have agreed to sum by an allreduce.

    Attributes
    ----------
    form : Form
        Types of keys and values.
    n : int
        The keys are 0 to n - 1.
    """

    form: Form
    n: int

    @classmethod
    def agreed(cls, comm: Comm, shuffle: Shuffle, combine: Combine, state: Any, *, at_any_size: bool) -> Sums | None:
        """Agree whether an allreduce sums the output of the tasks. Collective.

        Parameters
        ----------
        shuffle : Shuffle
            Has the output, and continues if no allreduce is used.
        state : object
            The current state; the next one is assumed to be as large.
        at_any_size : bool
            Use an allreduce whenever it is possible, whatever the sizes.

        Returns
        -------
        Sums or None
            The same on all ranks; None for a shuffle.
        """
        merged = shuffle.merged_keys() if isinstance(combine.op, str) else None
        kind, largest, size, words = _UNFIT, 0, 0, [0] * Form.WORDS
        if merged is not None:
            form, keys = merged
            if form is None or not len(keys):
                kind = _NOTHING
            elif int(keys.min()) >= 0 and int(keys.max()) <= _MAX_KEY:
                kind, largest, words = _ROWS, int(keys.max()), form.words()
                size = len(keys) * form.width * np.dtype(form.dtype).itemsize
        by_rank = comm.allgather(np.array([kind, largest, size, *words], np.int64))
        rows = by_rank[by_rank[:, 0] == _ROWS]
        if (by_rank[:, 0] == _UNFIT).any() or not len(rows) or (rows[:, 3:] != rows[0, 3:]).any():
            return None
        row_bytes = int(rows[:, 2].sum())
        if not at_any_size and row_bytes > _LARGE_BYTES:
            state_bytes = sum(part.nbytes for part in pack(state))  # ranks may pickle the same state in other lengths
            if 4 * reduce_number(comm, state_bytes, op="max") < row_bytes:
                return None
        agreed = Form.of_words(rows[0, 3:].tolist())
        assert agreed is not None
        return cls(agreed, int(rows[:, 1].max()) + 1)

    def everywhere(self, comm: Comm, shuffle: Shuffle, combine: Combine) -> tuple[Any, Any, int]:
        """All keys, ascending, their sums, and the bytes that this rank sent. Collective.

        The algorithm is the same in each run, so that a job that resumes from a checkpoint gives the same bits.
        """
        keys, rows = shuffle.take_rows(self.form)
        flat = rows.reshape(len(keys), self.form.width) if self.form.width > 1 else rows.reshape(len(keys))
        mine = SparseVector(keys.astype(np.int64), flat, self.n)
        summed, sent = mine, 0
        if comm.size > 1:
            options: dict[str, Any] = {"algorithm": "butterfly", "degrees": _degrees(comm), "explain": True}
            summed, how = comm.allreduce(mine, op=combine.op, **options)
            sent = how.sent_bytes
        results = summed.values
        return summed.indices.astype(self.form.keys), results.reshape(len(results), *self.form.row), sent


def _degrees(comm: Comm) -> list[int]:
    """Degrees with the ranks of a host in the first layer, if all hosts have the same number of ranks."""
    sizes = {len(ranks) for ranks in comm.topology.hosts}
    per_host = sizes.pop()
    return [comm.size] if sizes or per_host in (1, comm.size) else [per_host, comm.size // per_host]


def checksum_of(state: Any) -> int:
    """A checksum of a state: the same for equal states, in any order of the elements of a set or a dictionary.

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos.mapreduce.sums import checksum_of
    >>> checksum_of(np.arange(3)) == checksum_of(np.arange(3)), checksum_of(np.arange(3)) == checksum_of(np.arange(4))
    (True, False)
    >>> checksum_of({"a": 1.0, "b": {2, 3}}) == checksum_of({"b": {3, 2}, "a": 1.0}), checksum_of(1) == checksum_of(2)
    (True, False)
    """
    return _checksum_of(state, set())


def _checksum_of(x: Any, above: set[int]) -> int:
    """The checksum of a part; ``above`` has the ids of the objects that contain it."""
    if id(x) in above:
        return 1  # a reference to an object that contains it
    leaf = _leaf(x)
    if leaf is not None:
        return zlib.crc32(leaf, _crc(type(x).__name__))
    above = above | {id(x)}
    if isinstance(x, (dict, set, frozenset)):
        each = x.items() if isinstance(x, dict) else ((one, None) for one in x)
        # A sum, so that the order of elements does not matter.
        return (len(x) + sum(_checksum_of(tuple(pair), above) for pair in each)) & 0xFFFF_FFFF
    parts = x if isinstance(x, (list, tuple)) else _made_of(x)
    return _crc(f"{type(x).__qualname__} {[_checksum_of(part, above) for part in parts]}")


def _leaf(x: Any) -> bytes | None:
    """The bytes of an object without parts; None for any other."""
    if x is None or isinstance(x, (bool, int, float, complex, str)):
        return repr(x).encode("utf-8", "surrogatepass")
    if isinstance(x, (bytes, bytearray)):
        return bytes(x)
    if isinstance(x, (np.ndarray, np.generic)) and not np.asarray(x).dtype.hasobject:
        array = np.asarray(x)
        return f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes()
    if callable(x) and hasattr(x, "__qualname__"):
        return f"{x.__module__}.{x.__qualname__}".encode()
    return None


def _made_of(x: Any) -> list[Any]:
    """The parts of an object, as a pickle has them; empty if it cannot be pickled."""
    try:
        _, *parts = x.__reduce_ex__(4)
        return [list(part) if isinstance(part, Iterator) else part for part in parts]
    except Exception:
        return []


def _crc(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def check_same(checksums: npt.NDArray[np.int64]) -> None:
    """Refuse a state that differs between ranks.

    Raises
    ------
    Mismatch
        On all ranks; ``checksums`` are by rank, the same everywhere.
    """
    other = np.flatnonzero(checksums != checksums[0])
    if other.size:
        raise Mismatch(
            f"combine made different states on rank 0 and on rank {other[0]} from the same keys and results: with "
            'one allreduce it runs on all ranks, and must come to the same there. collective="shuffle" runs it on one'
        )
