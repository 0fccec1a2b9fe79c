"""Small collectives for loading a graph, built on configured reductions.

A reduce in which each index has exactly one contributor moves data: the "sum" is that rank's value. So rows are sent
to the ranks that ask for them, and tables are gathered.

Cost: :func:`move` sends each row down to a rank that a hash picks and up to its new owner, about twice the bytes of a
direct exchange, after two rounds that exchange the counts. It runs once a graph, not once an iteration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from .edges import Ids

if TYPE_CHECKING:
    from .. import Comm

__all__ = ["gather_table", "move"]

T = TypeVar("T")

# How many numbers a batch of rows holds. A batch is sent under one index: 8 KB, far more than the index itself takes.
_BATCH = 1024


def gather_table(comm: Comm, row: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Gather one row per rank on every rank: from shape (k,) to (size, k); k and the dtype are the same everywhere.

    Examples
    --------
    >>> import numpy as np
    >>> import skyphos as sky
    >>> from skyphos.graph.exchange import gather_table
    >>> with sky.init() as comm:
    ...     gather_table(comm, np.array([3, 4]))
    array([[3, 4]])
    """
    k = len(row)
    mine = np.arange(comm.rank * k, (comm.rank + 1) * k)
    everyone = np.arange(comm.size * k)
    return comm.configure_reduce(mine, everyone, row, n=comm.size * k).reshape(comm.size, k)


def move(comm: Comm, rows: Ids, owners: npt.NDArray[Any]) -> Ids:
    """Send each row to the rank that owns it.

    Parameters
    ----------
    comm : Comm
        All its ranks must make the call.
    rows : ndarray of int64, shape (m, width)
        This rank's rows. Pass other 8-byte types as a view.
    owners : ndarray of int, shape (m,)
        The rank that each row goes to.

    Returns
    -------
    ndarray of int64, shape (k, width)
        The rows for this rank, ordered by sending rank, and in the order in which that rank passed them.

    Examples
    --------
    >>> import numpy as np
    >>> import skyphos as sky
    >>> from skyphos.graph.exchange import move
    >>> with sky.init() as comm:
    ...     move(comm, np.array([[1, 2], [3, 4]]), np.array([0, 0]))
    array([[1, 2],
           [3, 4]])
    """
    if comm.size == 1:
        return rows
    # Sixteen bits make NumPy's stable sort a radix sort, in linear time.
    order = np.argsort(owners.astype(np.uint16 if comm.size <= 1 << 16 else np.int64), kind="stable")
    counts = np.bincount(owners, minlength=comm.size)
    table = gather_table(comm, counts.astype(np.int64)).T  # rows: owners, columns: senders
    if not table.any():
        return rows
    # A batch holds many rows under one index, so the cost of indices is negligible. Batches are numbered by owner, then
    # sender: those that a rank receives are then one contiguous range.
    width = rows.shape[1]
    capacity = int(np.clip(table.mean(), 1, _BATCH // width))
    batches = -(-table // capacity)
    ends = np.cumsum(batches).reshape(batches.shape)
    starts = ends - batches
    mine = [np.arange(starts[owner, comm.rank], ends[owner, comm.rank]) for owner in range(comm.size)]
    want = np.arange(starts[comm.rank, 0], ends[comm.rank, -1])
    plan = comm.configure(np.concatenate(mine), want, n=int(ends[-1, -1]), width=capacity * width)
    packed = _pack(rows, order, counts, capacity)
    received = plan.reduce(packed).reshape(-1, width)
    del packed
    firsts = (starts[comm.rank] - starts[comm.rank, 0]) * capacity
    found: Ids = np.concatenate(
        [received[first : first + count] for first, count in zip(firsts, table[comm.rank], strict=True)]
    )
    return found


def _pack(rows: Ids, order: npt.NDArray[Any], counts: npt.NDArray[Any], capacity: int) -> Ids:
    """Put rows into batches by owner; the last batch of each owner is padded with zeros."""
    width = rows.shape[1]
    batches = -(-counts // capacity)
    packed = np.zeros((int(batches.sum()), capacity * width), np.int64)
    packed_rows = packed.reshape(-1, width)
    done = first = 0
    for count, taken in zip(counts.tolist(), batches.tolist(), strict=True):
        np.take(rows, order[done : done + count], axis=0, out=packed_rows[first : first + count], mode="clip")
        done, first = done + count, first + taken * capacity
    return packed
