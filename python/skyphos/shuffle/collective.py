"""Shuffle as one call."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from ..collectives.agreement import collective
from ..collectives.in_thread import InThread
from ..inputs.arguments import Op
from ..inputs.settings import truth
from ..work import Work

if TYPE_CHECKING:
    from ..comm import Comm
    from .combine import Function
    from .sender import Partition

__all__ = ["shuffle"]


@collective()
def shuffle(
    comm: Comm,
    keys: Any,
    values: Any = None,
    combine: Op | Function = "sum",
    *,
    partition: Partition | None = None,
    mergeable: Callable[[Any], bool] | None = None,
    local_reduction: bool | Literal["process"] = True,
    push_bytes: int = 1 << 16,
    fetches: int = 4,
    memory: int | str | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    debug: bool | None = None,
    explain: bool = False,
    async_op: bool = False,
) -> Any:
    """Send values to the owners of their keys, and merge those of equal keys on the path. Collective.

    Values of a key are merged within this process, then among the ranks of its host, then at its owner (*Twister*,
    section 5.1). For batches of many tasks, and results in waves, see :class:`skyphos.shuffle.Shuffle`.

    Parameters
    ----------
    keys : array or list of shape (k,)
        Integers, ``str`` or ``bytes``: a NumPy or Arrow array, or a list. Keys may repeat. All ranks have keys of
        the same kind; a rank may have none.
    values : array of shape (k,) or (k, …), or sequence
        A number, or a row of numbers, for each key. Objects of any kind if ``combine`` is a function or
        ``"list"``: they are pickled. None with ``combine="count"``.
    combine : str, numpy.ufunc or callable
        ``sum``, ``prod``, ``min``, ``max``, ``or``, ``and``, or a ufunc with an identity; ``"list"``: all values of
        a key; ``"count"``: the number of occurrences of a key; or a function (key, a, b) → value, associative and
        commutative, that may change and return ``a``. Values are merged in a fixed order, so results are the same
        in each run.
    partition : callable, optional
        (keys, ranks) → the owner of each key, as an array of integers; it gets distinct keys, as an array of numbers
        or a list. The same on all ranks. None: by a hash of the key, the same on all machines.
    mergeable : callable, optional
        (key) → True if its values may be merged before they reach its owner, which merges them in any case.
    local_reduction : bool or "process"
        True: values are merged within this process, among the ranks of its host, and at their owner. ``"process"``:
        not among the ranks of a host. False: only at their owner.
    push_bytes, fetches : int
        Blocks of up to ``push_bytes`` are sent immediately; longer ones are announced, and the receiver requests
        ``fetches`` of them at a time, so that a slow rank delays only those that send to it.
    memory : int or str, optional
        Memory limit for the values gathered on this rank, in bytes or as ``"1GB"``. More values are written to Arrow
        IPC files in ``spill_dir`` (needs pyarrow) and sent in several waves. None: a quarter of this rank's share of
        the host's free memory; no limit with replicas.
    spill_dir : path, optional
        Folder for those files, which are removed in the end; None: the system's folder for temporary files.
    debug : bool, optional
        Check on the first values of 64 keys that the function is associative and commutative. None: under
        ``python -X dev``.
    explain : bool
        Also return a :class:`~skyphos.shuffle.ShuffleExplanation`.
    async_op : bool
        Return a :class:`Work`, whose ``wait`` returns the result. The shuffle runs on a thread, which calls the given
        functions, and in a duplicate of the group (:meth:`dup`), which all ranks make first.

    Returns
    -------
    keys, values
        The keys that this rank owns, each once, in the kind that was passed, and the value of each. With ``"list"``
        a list of arrays with one row per value, or of lists. With ``explain`` also the explanation.

    Raises
    ------
    BadInput
        On all ranks, for keys or values that cannot be sent, ragged rows, or an operation that does not apply to
        them; if ``combine``, ``partition`` or ``mergeable`` raised (the text has the rank and the key), or is not
        associative; for objects in a group on several hosts without a token.
    Mismatch
        If ranks have different kinds of keys or values, or different options.

    Notes
    -----
    A rank needs memory for its merged values, for its blocks, and for the values that it owns. On the wire, keys take
    1 to 8 bytes (strings: their bytes, and 1 to 8 for the length), values as many bytes as in memory.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     keys, sums = comm.shuffle(np.array([7, 3, 7]), np.array([1.0, 2.0, 3.0]))
    >>> dict(zip(keys.tolist(), sums.tolist()))
    {7: 4.0, 3: 2.0}
    """
    from .sender import Shuffle  # imported here, since few programs shuffle, and the import is slow

    explain, async_op = truth(explain, "explain"), truth(async_op, "async_op")
    options: dict[str, Any] = {
        "partition": partition,
        "mergeable": mergeable,
        "local_reduction": local_reduction,
        "push_bytes": push_bytes,
        "fetches": fetches,
        "memory": memory,
        "spill_dir": spill_dir,
        "debug": debug,
    }
    if async_op:
        group = comm.dup()

        def run() -> Any:
            try:
                return group.shuffle(keys, values, combine, explain=explain, **options)
            finally:
                group.close()

        return Work(InThread("shuffle", run), lambda result: result)
    shuffle = Shuffle(comm, combine, **options)
    shuffle.add(keys, values)
    result = shuffle.result()
    return (*result, shuffle.explanation()) if explain else result
