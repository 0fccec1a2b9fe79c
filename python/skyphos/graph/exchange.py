"""Small collectives for loading a graph, made of configured reductions.

A reduce in which each index has exactly one contributor moves data: its "sum" is that rank's value. So rows
travel to the rank that asks for them, and numbers are gathered.

Cost: :func:`move` sends each row down to a rank that a hash picks and up to its new owner, about twice the
bytes of a direct exchange, with two rounds for the counts before. It runs once a graph, not once an
iteration.
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

# Numbers that travel under one index when rows are moved: 8 KB, far above what an index costs on the wire.
_CRATE = 1024


def gather_table(comm: Comm, row: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Give every rank the rows of all: shape (k,) here, (size, k) back; k and the dtype are the same
    everywhere.

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
        All its ranks must come.
    rows : ndarray of int64, shape (m, width)
        This rank's rows. Other 8-byte types travel as a view.
    owners : ndarray of int, shape (m,)
        The rank that each row goes to.

    Returns
    -------
    ndarray of int64, shape (k, width)
        The rows that came here: by sending rank, and in the order in which that rank held them.

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
    # A crate holds many rows under one index, so the indices cost next to nothing. Crates are numbered by
    # owner, then sender: what a rank wants is then one unbroken range.
    width = rows.shape[1]
    capacity = int(np.clip(table.mean(), 1, _CRATE // width))
    crates = -(-table // capacity)
    ends = np.cumsum(crates).reshape(crates.shape)
    starts = ends - crates
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
    """Put rows into crates by owner; the last crate of each owner may be filled up with zeros."""
    width = rows.shape[1]
    crates = -(-counts // capacity)
    packed = np.zeros((int(crates.sum()), capacity * width), np.int64)
    packed_rows = packed.reshape(-1, width)
    done = first = 0
    for count, taken in zip(counts.tolist(), crates.tolist(), strict=True):
        np.take(rows, order[done : done + count], axis=0, out=packed_rows[first : first + count], mode="clip")
        done, first = done + count, first + taken * capacity
    return packed
