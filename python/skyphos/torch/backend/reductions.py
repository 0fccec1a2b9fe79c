"""Reductions of the backend: allreduce, reduce and reduce-scatter of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.distributed import ReduceOp

from ... import _skyphos as native
from ...collectives.allreduce import reduce_shaped
from ...comm import Comm
from ...errors import BadInput
from ...inputs.arguments import resolve_op
from .call import Call, Tensors, all_or_none, check_root, fill, only_tensor, performed, tensors_of_type
from .scratch import Scratch
from .tensors import as_numbers, as_vector, check, check_written, fill_sparse, is_plain

__all__ = ["allreduce", "reduce", "reduce_scatter", "reduce_scatter_single"]

_OPS = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "mean",
    ReduceOp.PRODUCT: "prod",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.BAND: "and",
    ReduceOp.BOR: "or",
    ReduceOp.BXOR: np.bitwise_xor,
}
#: For bool: the sum is true if any value is, the product if all are.
_BOOL_OPS = {
    "sum": "or",
    "max": "or",
    "or": "or",
    "prod": "and",
    "min": "and",
    "and": "and",
    np.bitwise_xor: np.bitwise_xor,
}


def _op_of(given: Any, dtype: torch.dtype) -> Any:
    """The Skyphos operation of a ``ReduceOp``, refused if the type does not have it."""
    op = _OPS.get(given.op if hasattr(given, "op") else given)
    if op is None:
        raise BadInput(f"{given} is no operation of the backend skyphos: SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR")
    if dtype == torch.bool:
        if op not in _BOOL_OPS:
            raise BadInput("truth values have no mean: use .to(torch.float32)")
        op = _BOOL_OPS[op]
    if dtype.is_complex and op not in ("sum", "mean"):
        raise BadInput(f"complex numbers can be summed and averaged, not reduced by {op}")
    if op == "mean" and not (dtype.is_floating_point or dtype.is_complex):
        raise BadInput(f"numbers of {dtype} have no mean of their type: use SUM, or floats")
    if (dtype.is_floating_point or dtype.is_complex) and op in ("and", "or", np.bitwise_xor):
        raise BadInput(f"numbers of {dtype} have no bits to combine")
    return op


def allreduce(comm: Comm, scratch: Scratch, tensor: torch.Tensor, given: Any) -> Call:
    """Reduce a tensor of each rank, in place. A sparse tensor gets the union of all ranks' indices."""
    if tensor.is_sparse:
        return _allreduce_sparse(comm, tensor, given)

    def check_arguments() -> Any:
        check_written([tensor])
        return as_numbers(tensor), _op_of(given, tensor.dtype)

    array, op = all_or_none(comm, check_arguments)
    if is_plain(tensor) and array.nbytes == tensor.nbytes:
        # The result is written to the tensor's memory, so the call reads a copy.
        copy = scratch.copy_of(array)
        return Call(
            lambda async_op: comm.allreduce(copy, op=op, out=array, async_op=async_op),
            lambda _: scratch.give_back(copy),
            [tensor],
        )
    result = np.empty_like(array)
    return Call(
        lambda async_op: comm.allreduce(array, op=op, out=result, async_op=async_op),
        lambda _: fill(tensor, result),
        [tensor],
    )


def _allreduce_sparse(comm: Comm, tensor: torch.Tensor, given: Any) -> Call:
    def check_arguments() -> Any:
        op = _op_of(given, tensor.dtype)
        if op not in ("sum", "mean"):
            name = given.op if hasattr(given, "op") else given
            raise BadInput(f"sparse tensors of numbers can be summed and averaged; this is {name} of {tensor.dtype}")
        return as_vector(tensor), op

    vector, op = all_or_none(comm, check_arguments)
    return Call(
        lambda async_op: reduce_shaped(comm, vector, op, tensor.shape, async_op=async_op),
        lambda reduced: fill_sparse(tensor, reduced),
        [tensor],
    )


def reduce(comm: Comm, tensors: Tensors, opts: Any) -> Call:
    """Reduce a tensor of each rank on the root, in place there."""

    def check_arguments() -> Any:
        tensor = only_tensor(tensors, "reduce", strided=True)
        if comm.rank == opts.rootRank:
            check_written([tensor])
        return tensor, as_numbers(tensor), resolve_op(_op_of(opts.reduceOp, tensor.dtype))

    tensor, array, op = all_or_none(comm, check_arguments)
    root = check_root(comm, opts.rootRank)
    out = np.empty(array.shape if comm.rank == root else 0, array.dtype)
    return Call(
        _reduce_arrays(comm, array, out, op, root), lambda _: fill(tensor, out) if comm.rank == root else None, [tensor]
    )


def reduce_scatter(comm: Comm, outputs: Tensors, inputs: list[Tensors], opts: Any) -> Call | list[Call]:
    """Reduce a list of tensors, one a rank, each of which goes to its rank. If lengths differ, each takes a call."""

    def check_arguments() -> Any:
        output = only_tensor(outputs, "reduce_scatter", strided=True)
        check_written([output])
        parts = tensors_of_type(comm, output, inputs, "reduce_scatter")
        own = parts[comm.rank].numel()
        if own != output.numel():
            raise BadInput(f"reduce_scatter: {own} elements for this rank, and a tensor of {output.numel()}")
        return output, parts

    output, parts = all_or_none(comm, check_arguments)
    if any(part.numel() != output.numel() for part in parts):
        return [_reduce_to_owner(comm, output, part, owner, opts.reduceOp) for owner, part in enumerate(parts)]
    return _reduce_scatter_even(comm, output, torch.stack([part.reshape(-1) for part in parts]), opts.reduceOp)


def _reduce_to_owner(comm: Comm, output: torch.Tensor, part: torch.Tensor, owner: int, given: Any) -> Call:
    """Reduce a tensor on the rank that owns it."""
    array, op = all_or_none(comm, lambda: (as_numbers(part), resolve_op(_op_of(given, part.dtype))))
    is_owner = comm.rank == owner
    out = np.empty(array.shape if is_owner else 0, array.dtype)
    return Call(
        _reduce_arrays(comm, array, out, op, owner), lambda _: fill(output, out) if is_owner else None, [output]
    )


def reduce_scatter_single(comm: Comm, output: torch.Tensor, source: torch.Tensor, opts: Any) -> Call:
    """Reduce a tensor, of which each rank gets an equal part."""

    def check_arguments() -> None:
        check([output, source])
        check_written([output])
        if source.numel() != output.numel() * comm.size:
            raise BadInput(
                f"an input of {source.numel()} numbers does not fill outputs of {output.numel()} on {comm.size} ranks"
            )

    all_or_none(comm, check_arguments)
    return _reduce_scatter_even(comm, output, source, opts.reduceOp)


def _reduce_scatter_even(comm: Comm, output: torch.Tensor, source: torch.Tensor, given: Any) -> Call:
    def check_arguments() -> Any:
        if output.dtype != source.dtype:
            raise BadInput(f"the input is of {source.dtype} and the output of {output.dtype}")
        return as_numbers(source), resolve_op(_op_of(given, source.dtype))

    array, op = all_or_none(comm, check_arguments)
    out = np.empty(array.size // comm.size, array.dtype)
    return Call(_reduce_arrays(comm, array, out, op, None), lambda _: fill(output, out), [output])


def _reduce_arrays(
    comm: Comm, array: npt.NDArray[Any], out: npt.NDArray[Any], op: native.Operation, root: int | None
) -> Callable[[bool], Any]:
    def start(async_op: bool) -> Any:
        return performed(native.reduce_arrays(comm._native, array, out, op, root, async_op), async_op)

    return start
