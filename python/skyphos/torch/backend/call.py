"""A call of the backend before it starts, and the checks of arguments that calls share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ...collectives.agreement import fail
from ...comm import Comm
from ...errors import BadInput
from ...work import perform
from .tensors import as_moved, check, of_array

__all__ = [
    "Call",
    "Tensors",
    "all_or_none",
    "array_for",
    "check_root",
    "fill",
    "fill_each",
    "one_of_each_rank",
    "only_tensor",
    "performed",
    "tensors_of_type",
]

Tensors = list[torch.Tensor]


class Call(NamedTuple):
    """A call whose arguments have been checked.

    Attributes
    ----------
    start : callable
        ``start(async_op)`` makes the call. It returns the result, or with ``async_op`` a work.
    finish : callable
        Copies the result into the caller's tensors.
    outputs : list of Tensor
        Those tensors, which the call's future returns.
    """

    start: Callable[[bool], Any]
    finish: Callable[[Any], None]
    outputs: Tensors


def all_or_none(comm: Comm, check_arguments: Callable[[], Any]) -> Any:
    """The result of a local check. If the check fails on this rank, the call fails on all ranks."""
    try:
        return check_arguments()
    except BaseException as error:
        fail(comm, error)


def check_root(comm: Comm, root: int) -> int:
    """The root of a call, refused on all ranks if it is not a rank."""
    if not 0 <= root < comm.size:
        fail(comm, BadInput(f"root={root} is not a rank of a group of {comm.size}"))
    return root


def only_tensor(tensors: Tensors, call: str, *, strided: bool = False) -> torch.Tensor:
    """The one tensor of a list. ``strided`` refuses a sparse one."""
    if len(tensors) != 1:
        raise BadInput(f"{call} takes one tensor a rank, not {len(tensors)}")
    check(tensors)
    if strided and tensors[0].is_sparse:
        raise BadInput(f"{call} takes strided tensors; allreduce takes sparse ones")
    return tensors[0]


def one_of_each_rank(comm: Comm, one: Tensors, lists: list[Tensors], call: str) -> tuple[torch.Tensor, Tensors]:
    """A rank's tensor, and the list of all ranks' tensors, which must have its type and number of elements."""
    tensor = only_tensor(one, call, strided=True)
    parts = tensors_of_type(comm, tensor, lists, call)
    for rank, part in enumerate(parts):
        if part.numel() != tensor.numel():
            raise BadInput(
                f"{call}: the tensor of rank {rank} has {part.numel()} elements, and this one {tensor.numel()}"
            )
    return tensor, parts


def tensors_of_type(comm: Comm, tensor: torch.Tensor, lists: list[Tensors], call: str) -> Tensors:
    """The list of all ranks' tensors, which must have the type of ``tensor``."""
    if len(lists) != 1 or len(lists[0]) != comm.size:
        raise BadInput(f"{call} takes a list of {comm.size} tensors, one a rank")
    check(lists[0])
    for rank, part in enumerate(lists[0]):
        if part.dtype != tensor.dtype:
            raise BadInput(f"{call}: the tensor of rank {rank} is of {part.dtype}, and this one of {tensor.dtype}")
    return list(lists[0])


def performed(started: Any, async_op: bool) -> Any:
    """A native call as a work, or None once it is over."""
    return perform(started, async_op, lambda _: None)


def array_for(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A new array of the size and type that :func:`as_moved` gives for a tensor."""
    return as_moved(torch.empty(tensor.shape, dtype=tensor.dtype))


def fill(tensor: torch.Tensor, result: npt.NDArray[Any]) -> None:
    """Copy a result, bytes or numbers, into a tensor."""
    tensor.detach().copy_(of_array(result, tensor))


def fill_each(tensors: Tensors, results: npt.NDArray[np.uint8]) -> None:
    """Copy each row of a result into its tensor."""
    for tensor, part in zip(tensors, results, strict=True):
        fill(tensor, part)
