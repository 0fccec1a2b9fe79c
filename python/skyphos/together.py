"""Errors and numbers that all ranks come to alike, made of the configured reduce.

A reduce in which each index has exactly one contributor moves data: its "sum" is that rank's value. So numbers are
gathered, and an error that one rank found is raised on all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from .errors import BadInput, SkyphosError

if TYPE_CHECKING:
    from .comm import Comm

__all__ = ["gather_numbers", "raise_if", "reduce_number", "together"]

T = TypeVar("T")

# Bytes of an error's message that other ranks get to see.
_MESSAGE = 1024


def reduce_number(comm: Comm, number: float, op: str = "sum", dtype: npt.DTypeLike = np.int64) -> Any:
    """Combine one number of each rank; every rank gets the result.

    Examples
    --------
    >>> import skyphos as sky
    >>> from skyphos.together import reduce_number
    >>> with sky.init() as comm:
    ...     reduce_number(comm, 7)
    7
    """
    slot = np.zeros(1, np.int64)
    return comm.configure_reduce(slot, slot, np.array([number], dtype), n=1, op=op)[0].item()


def gather_numbers(comm: Comm, number: int) -> npt.NDArray[np.int64]:
    """One number of each rank, by rank; every rank gets all.

    Examples
    --------
    >>> import skyphos as sky
    >>> from skyphos.together import gather_numbers
    >>> with sky.init() as comm:
    ...     gather_numbers(comm, 7)
    array([7])
    """
    return comm.configure_reduce([comm.rank], np.arange(comm.size), np.array([number], np.int64), n=comm.size)


def together(comm: Comm, work: Callable[[], T]) -> T:
    """Run ``work`` on this rank; if it fails on any rank, raise on all.

    A rank that fails alone would leave the others waiting in the next collective.

    Parameters
    ----------
    comm : Comm
        All its ranks must come.
    work : callable
        Makes no collective calls itself.

    Returns
    -------
    object
        What ``work`` returned here.

    Raises
    ------
    SkyphosError
        The error of the first rank that failed: :class:`BadInput` if it was one, on every rank.

    Examples
    --------
    >>> import skyphos as sky
    >>> from skyphos.together import together
    >>> with sky.init() as comm:
    ...     together(comm, lambda: 6 * 7)
    42
    """
    error: Exception | None = None
    result: T | None = None
    try:
        result = work()
    except Exception as caught:  # whatever it is, the others must hear of it
        error = caught
    first = reduce_number(comm, comm.size if error is None else comm.rank, op="min")
    if first == comm.size:
        return result  # type: ignore[return-value]
    text = b""
    if comm.rank == first:
        kind = "B" if isinstance(error, BadInput) else "S"
        said = str(error) if isinstance(error, SkyphosError) else f"rank {first}: {type(error).__name__}: {error}"
        text = (kind + said).encode()[:_MESSAGE]
    letters = np.frombuffer(text, np.uint8)
    places = np.arange(_MESSAGE)
    heard = comm.configure_reduce(places[: len(letters)], places, letters, n=_MESSAGE, missing="identity")
    said = heard.tobytes().rstrip(b"\0").decode("utf-8", "replace")
    raise (BadInput if said[:1] == "B" else SkyphosError)(said[1:]) from error


def raise_if(error: Exception | None) -> None:
    """What :func:`together` runs where the work is done already: it failed, or it did not."""
    if error is not None:
        raise error
