"""Shuffle as one call: values by key to the owner of each key."""

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
    """Bring values to the owners of their keys, those of equal keys merged on the way. Collective.

    Values of a key merge within this process, across the ranks of its host, then at its owner (*Twister*, section
    5.1). For batches of many tasks, and results wave by wave, see :class:`skyphos.shuffle.Shuffle`.

    Parameters
    ----------
    keys : array or list of shape (k,)
        Integers, ``str`` or ``bytes``: a NumPy or Arrow array, or a list. They may repeat. All ranks have keys of
        one kind, and may have none.
    values : array of shape (k,) or (k, …), or sequence
        A number, or a row of numbers, for each key. Objects of any kind where ``combine`` is a function or
        ``"list"``: they are pickled. None with ``combine="count"``.
    combine : str, numpy.ufunc or callable
        ``sum``, ``prod``, ``min``, ``max``, ``or``, ``and``, or a ufunc with an identity; ``"list"``: all values of
        a key; ``"count"``: how often there is each key; or a function (key, a, b) → value, associative and
        commutative, that may change and return ``a``. Values are merged in a fixed order: results are the same in
        each run.
    partition : callable, optional
        (keys, ranks) → the owner of each: an array of k integers, from distinct keys, as an array of numbers or a
        list. The same on all ranks. None: by a hash of the key, the same on all machines.
    mergeable : callable, optional
        (key) → whether its values may be merged before they are at its owner, which merges them in any case.
    local_reduction : bool or "process"
        True: values merge within this process, then across the ranks of its host, then at their owner.
        ``"process"``: not across a host's. False: all values go to their owner, which merges them.
    push_bytes, fetches : int
        Blocks of up to ``push_bytes`` are sent at once; longer ones are announced, and ``fetches`` of them are
        asked for at a time, so that a slow rank holds back nobody but who sends to it.
    memory : int or str, optional
        Bytes (or ``"1GB"``) that this rank may take for what it gathers. What is more goes to Arrow IPC files in
        ``spill_dir`` (with pyarrow), and travels in as many waves as it takes. None: a quarter of this rank's share
        of the host's free memory; with replicas, all.
    spill_dir : path, optional
        Where those files are, without a name; None: the system's place for such files.
    debug : bool, optional
        Check on the first values of 64 keys that the function is associative and commutative. None: under
        ``python -X dev``.
    explain : bool
        Also return a :class:`~skyphos.shuffle.ShuffleExplanation`.
    async_op : bool
        Return a :class:`Work`, whose wait returns the result. The shuffle goes on on a thread, where functions that
        were passed are called, and in a group of its own (:meth:`dup`), for which all ranks come together first.

    Returns
    -------
    keys, values
        The keys that this rank owns, each once, in the kind that came in, and the value of each. With ``"list"`` a
        list of arrays, of as many rows as there were values, or of lists. With ``explain`` a third: the
        explanation.

    Raises
    ------
    BadInput
        On all ranks: keys or values that cannot be sent, ragged rows, an operation that has no meaning for them;
        what ``combine``, ``partition`` or ``mergeable`` raised, with the rank and the key; a function that is not
        associative. Objects in a group whose ranks are on several hosts and have proved no token.
    Mismatch
        Ranks have different kinds of keys or values, or other options.

    Notes
    -----
    A rank takes memory for what it has merged, for its blocks, and for what it owns. On the wire, keys take 1 to 8
    bytes (strings: theirs, and 1 to 8 for the length), values as many as in memory.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     keys, sums = comm.shuffle(np.array([7, 3, 7]), np.array([1.0, 2.0, 3.0]))
    >>> dict(zip(keys.tolist(), sums.tolist()))
    {7: 4.0, 3: 2.0}
    """
    from .sender import Shuffle  # here, since few programs shuffle, and it takes long to import

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
