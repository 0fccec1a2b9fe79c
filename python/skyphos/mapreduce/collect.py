"""Collection of keys and results on rank 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..collectives.agreement import fail
from ..shuffle import Shuffle

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["to_root"]


def to_root(comm: Comm, keys: Any, results: Any) -> tuple[Any, Any]:
    """Gather all keys and results on rank 0; no key may be on two ranks. Other ranks get nothing. Collective."""
    if comm.size == 1:
        return keys, results
    are_numbers = isinstance(results, np.ndarray)  # the same on all ranks, because it depends on the kind of reduction
    shuffle = Shuffle(
        comm,
        "max" if are_numbers else "list",
        partition=lambda some, _: np.zeros(len(some), np.int64),
        local_reduction="process",
        objects=not are_numbers,
    )
    try:
        shuffle.add(keys, results)
    except BaseException as error:
        fail(comm, error)
    keys, values = shuffle.result()
    return keys, values if are_numbers else [one for (one,) in values]
