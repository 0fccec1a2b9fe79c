"""Collectives of the backend that move tensors of any type: broadcast, allgather, gather, scatter and all-to-all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ... import _skyphos as native
from ...comm import Comm
from ...errors import BadInput
from .call import (
    Call,
    Tensors,
    all_or_none,
    array_for,
    check_root,
    fill,
    fill_each,
    one_of_each_rank,
    only_tensor,
    performed,
)
from .tensors import as_bytes, as_moved, check, check_written, is_plain

__all__ = [
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_single",
    "alltoall",
    "broadcast",
    "gather",
    "scatter",
]


def broadcast(comm: Comm, tensors: Tensors, opts: Any) -> Call:
    """Send the root's tensor to all ranks."""
    root = check_root(comm, opts.rootRank)
    is_root = comm.rank == root

    def check_arguments() -> Any:
        tensor = only_tensor(tensors, "broadcast", strided=True)
        if not is_root:
            check_written([tensor])
        return tensor, as_moved(tensor.contiguous()) if is_root else None

    tensor, array = all_or_none(comm, check_arguments)

    def finish(received: Any) -> None:
        if not is_root:
            expected = array_for(tensor)
            if (len(received), received.dtype) != (len(expected), expected.dtype):
                raise BadInput(
                    f"rank {root} broadcasts {len(received)} of {received.dtype}, and rank {comm.rank} has a tensor "
                    f"of {len(expected)} of {expected.dtype}"
                )
            fill(tensor, received)

    return Call(lambda async_op: comm.broadcast(array, root, async_op=async_op), finish, [tensor])


def allgather(comm: Comm, outputs: list[Tensors], inputs: Tensors) -> Call:
    """Send each rank's tensor to all ranks."""
    source, parts = all_or_none(comm, lambda: one_of_each_rank(comm, inputs, outputs, "allgather"))
    all_or_none(comm, lambda: check_written(parts))
    return _allgather(comm, parts, source)


def _allgather(comm: Comm, parts: Tensors, source: torch.Tensor) -> Call:
    array = as_moved(source.contiguous())
    everyone = np.empty((comm.size, array.size), array.dtype)
    return Call(_move(comm, native.ArrayMove.allgather(), array, everyone), lambda _: fill_each(parts, everyone), parts)


def allgather_coalesced(comm: Comm, outputs: list[Tensors], inputs: Tensors) -> list[Call]:
    """Make one :func:`allgather` for each tensor of ``inputs``."""
    all_or_none(comm, lambda: check([*inputs, *(tensor for rank in outputs for tensor in rank)]))
    return [_allgather(comm, [rank[k] for rank in outputs], source) for k, source in enumerate(inputs)]


def allgather_single(comm: Comm, output: torch.Tensor, source: torch.Tensor) -> Call:
    """Send each rank's tensor to all ranks, where they make up one tensor."""

    def check_arguments() -> Any:
        check([output, source])
        check_written([output])
        if (output.numel(), output.dtype) != (source.numel() * comm.size, source.dtype):
            raise BadInput(
                f"{source.numel()} elements of {source.dtype} from each of {comm.size} ranks do not fit an output of "
                f"{output.numel()} elements of {output.dtype}"
            )
        array = as_moved(source.contiguous())
        # Receive directly into the output if it is plain and does not overlap what is sent.
        is_direct = is_plain(output) and not np.may_share_memory(array, as_moved(output))
        return array, as_moved(output) if is_direct else np.empty(array.size * comm.size, array.dtype), is_direct

    array, out, is_direct = all_or_none(comm, check_arguments)
    return Call(
        _move(comm, native.ArrayMove.allgather(), array, out),
        lambda _: None if is_direct else fill(output, out),
        [output],
    )


def gather(comm: Comm, outputs: list[Tensors], inputs: Tensors, opts: Any) -> Call:
    """Send each rank's tensor to the root."""
    root = check_root(comm, opts.rootRank)
    is_root = comm.rank == root

    def check_arguments() -> Any:
        source = only_tensor(inputs, "gather", strided=True)
        return source, one_of_each_rank(comm, inputs, outputs, "gather")[1] if is_root else []

    source, parts = all_or_none(comm, check_arguments)
    all_or_none(comm, lambda: check_written(parts))
    array = as_moved(source.contiguous())
    everyone = np.empty((comm.size if is_root else 0, array.size), array.dtype)
    return Call(
        _move(comm, native.ArrayMove.gather(root), array, everyone),
        lambda _: fill_each(parts, everyone) if is_root else None,
        parts,
    )


def scatter(comm: Comm, outputs: Tensors, inputs: list[Tensors], opts: Any) -> Call:
    """Send each rank its tensor from the root."""
    root = check_root(comm, opts.rootRank)

    def check_arguments() -> Any:
        output = only_tensor(outputs, "scatter", strided=True)
        check_written([output])
        if comm.rank != root:
            return output, array_for(output)[:0]
        parts = one_of_each_rank(comm, outputs, inputs, "scatter")[1]
        return output, np.stack([as_moved(part.contiguous()) for part in parts])

    output, arrays = all_or_none(comm, check_arguments)
    out = array_for(output)
    return Call(_move(comm, native.ArrayMove.scatter(root), arrays, out), lambda _: fill(output, out), [output])


def alltoall(comm: Comm, outputs: Tensors, inputs: Tensors) -> Call:
    """Send each rank a tensor and receive one from each. All of them may differ in length."""

    def check_arguments() -> Any:
        check([*outputs, *inputs])
        check_written(outputs)
        if not len(outputs) == len(inputs) == comm.size:
            raise BadInput(
                f"all_to_all takes {comm.size} tensors and fills {comm.size}, one a rank, not {len(inputs)} and "
                f"{len(outputs)}"
            )
        parts = [as_bytes(tensor.contiguous()) for tensor in inputs]
        return np.concatenate(parts), [part.size for part in parts], [tensor.nbytes for tensor in outputs]

    array, sends, receives = all_or_none(comm, check_arguments)
    out = np.empty(sum(receives), np.uint8)

    def finish(_: Any) -> None:
        ends = np.cumsum(receives)[:-1]
        for tensor, received in zip(outputs, np.split(out, ends), strict=True):
            fill(tensor, received)

    return Call(_exchange(comm, array, out, sends, receives), finish, list(outputs))


def all_to_all_single(
    comm: Comm, output: torch.Tensor, source: torch.Tensor, output_rows: list[int], input_rows: list[int]
) -> Call:
    """Send each rank rows of ``source`` and receive rows from each: numbers as listed, or equal shares."""

    def check_arguments() -> Any:
        check([output, source])
        check_written([output])
        if output.dtype != source.dtype:
            raise BadInput(f"the input is of {source.dtype} and the output of {output.dtype}")
        sends, receives = _row_bytes(comm, source, input_rows, "input"), _row_bytes(comm, output, output_rows, "output")
        array = as_bytes(source.contiguous())
        is_direct = is_plain(output) and not np.may_share_memory(array, as_bytes(output))
        return array, as_bytes(output) if is_direct else np.empty(output.nbytes, np.uint8), is_direct, sends, receives

    array, out, is_direct, sends, receives = all_or_none(comm, check_arguments)
    return Call(
        _exchange(comm, array, out, sends, receives), lambda _: None if is_direct else fill(output, out), [output]
    )


def _row_bytes(comm: Comm, tensor: torch.Tensor, rows: list[int], what: str) -> list[int]:
    """Bytes of each rank's rows."""
    size, length = comm.size, tensor.shape[0] if tensor.dim() else 1
    if not rows:
        if length % size:
            raise BadInput(f"{length} {what} rows cannot be split evenly between {size} ranks: pass split sizes")
        rows = [length // size] * size
    if len(rows) != size or sum(rows) != length or min(rows) < 0:
        raise BadInput(f"split sizes {list(rows)} do not divide {length} {what} rows between {size} ranks")
    each = tensor.nbytes // length if length else 0
    return [each * count for count in rows]


def _exchange(
    comm: Comm, array: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8], sends: list[int], receives: list[int]
) -> Callable[[bool], Any]:
    def start(async_op: bool) -> Any:
        return performed(native.alltoall_uneven(comm._native, array, out, sends, receives, async_op), async_op)

    return start


def _move(
    comm: Comm, move: native.ArrayMove, array: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]
) -> Callable[[bool], Any]:
    def start(async_op: bool) -> Any:
        return performed(native.move_arrays(comm._native, move, array, out, async_op), async_op)

    return start
