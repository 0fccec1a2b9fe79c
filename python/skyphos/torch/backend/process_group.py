"""The backend of one process group: ``torch.distributed``'s calls as ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch._C._distributed_c10d import Backend
from torch.distributed import ReduceOp

from ... import _skyphos as native
from ...collectives.agreement import fail
from ...collectives.allreduce import reduce_shaped
from ...comm import Comm
from ...errors import BadInput
from ...inputs.arguments import resolve_op
from ...work import Work, perform
from .messages import Messages
from .monitored_barrier import Roll
from .ordered_worker import Line
from .scratch import Scratch
from .tensors import as_bytes, as_moved, as_numbers, as_vector, check, check_written, fill_sparse, is_plain, of_array
from .untraced import untraced
from .work import TorchWork
from .wrapped import keep, let_go

__all__ = ["SkyphosBackend"]

Tensors = list[torch.Tensor]
#: How a call begins (whether it goes on by itself), and what puts its result where it belongs.
Parts = tuple[Callable[[bool], Any], Callable[[Any], None]]

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
#: Of truth values a sum is whether any is true, and a product whether all are.
_OF_BOOL = {
    "sum": "or",
    "max": "or",
    "or": "or",
    "prod": "and",
    "min": "and",
    "and": "and",
    np.bitwise_xor: np.bitwise_xor,
}


class _No(int):
    """False to who reads it, and to who calls it: C++ calls what Python reads as a property."""

    def __call__(self) -> bool:
        return False


_NO: Any = _No()


class _Several:
    """Calls that are one to who waits for them."""

    def __init__(self, calls: Sequence[Work[Any]]) -> None:
        self._calls = calls

    def done(self) -> bool:
        return all(call.done() for call in self._calls)

    def wait(self, timeout: float | None = None) -> list[Any]:
        return [call.wait(timeout) for call in self._calls]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        found = [call.exception(timeout) for call in self._calls]
        return next((error for error in found if error is not None), None)


@untraced
class SkyphosBackend(Backend):
    """A process group's collectives by a :class:`skyphos.Comm`, for strided and sparse COO tensors of the CPU.

    Made by ``dist.init_process_group("skyphos")`` and ``dist.new_group(backend="skyphos")``; ``comm`` is the group. Its
    methods are called by ``torch.distributed``: numbers of 8 to 64 bits, bool and complex are reduced, any type is
    moved; tensors of other sizes, types or devices are ``BadInput``, or ``Mismatch`` where ranks differ, on all ranks.

    Examples
    --------
    >>> import torch, torch.distributed as dist, skyphos.torch
    >>> dist.init_process_group("skyphos", store=dist.HashStore(), rank=0, world_size=1)
    >>> rows = torch.sparse_coo_tensor([[3, 7]], torch.ones(2, 4), (10, 4), check_invariants=True)
    >>> dist.all_reduce(rows)  # the sum over ranks, in place
    >>> rows.coalesce().indices().tolist()
    [[3, 7]]
    >>> dist.destroy_process_group()
    """

    def __init__(self, comm: Comm) -> None:
        super().__init__(comm.rank, comm.size)
        self.comm = comm
        self._line = Line("skyphos-futures")
        self._messages = Messages(comm, "messages")
        self._scratch = Scratch()
        self._roll = Roll(comm)
        keep(self)

    # What PyTorch asks of a backend made in Python, and answers itself without end unless that does.
    supports_coalescing = supports_splitting = supports_shrinking = supports_reconfigure = supports_window = _NO
    _supports_time_estimate = _NO

    def getBackendName(self) -> str:
        """The name by which groups are made."""
        return "skyphos"

    # -- How a call begins and ends.

    def _perform(
        self,
        asynchronous: bool,
        start: Callable[[bool], Any],
        finish: Callable[[Any], None],
        outputs: list[Any],
    ) -> TorchWork:
        """Begin a call; where the caller waits at once, it is over on return."""
        if asynchronous:
            return TorchWork(start(True), finish, outputs, self._line)
        finish(start(False))
        return TorchWork(None, finish, outputs, self._line)

    def _all_or_none(self, look: Callable[[], Any]) -> Any:
        """What ``look`` finds in the arguments; if it fails here, the call fails on all ranks."""
        try:
            return look()
        except BaseException as error:
            fail(self.comm, error)

    def _root(self, opts: Any) -> int:
        """The rank that sends or receives alone."""
        root: int = opts.rootRank
        if not 0 <= root < self.comm.size:
            fail(self.comm, BadInput(f"root={root} is no rank of a group of {self.comm.size}"))
        return root

    def _op(self, given: Any, dtype: torch.dtype) -> Any:
        op = _OPS.get(given.op if hasattr(given, "op") else given)
        if op is None:
            raise BadInput(
                f"{given} is no operation of the backend skyphos: SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR"
            )
        if dtype == torch.bool:
            if op not in _OF_BOOL:
                raise BadInput("truth values have no mean: use .to(torch.float32)")
            op = _OF_BOOL[op]
        if dtype.is_complex and op not in ("sum", "mean"):
            raise BadInput(f"complex numbers can be summed and averaged, not reduced by {op}")
        if op == "mean" and not (dtype.is_floating_point or dtype.is_complex):
            raise BadInput(f"numbers of {dtype} have no mean of their type: use SUM, or floats")
        if (dtype.is_floating_point or dtype.is_complex) and op in ("and", "or", np.bitwise_xor):
            raise BadInput(f"numbers of {dtype} have no bits to combine")
        return op

    # -- Reductions.

    def allreduce(self, tensors: Tensors, opts: Any) -> TorchWork:
        """Reduce a tensor of each rank, in place; a sparse one gets the union of all ranks' indices."""
        tensor = self._all_or_none(lambda: _only(tensors, "allreduce"))
        return self._perform(opts.asyncOp, *self._reduction(tensor, opts.reduceOp), [tensor])

    def _reduction(self, tensor: torch.Tensor, given: Any) -> Parts:
        if tensor.is_sparse:

            def look_at_sparse() -> Any:
                op = self._op(given, tensor.dtype)
                if op not in ("sum", "mean"):
                    asked = given.op if hasattr(given, "op") else given
                    raise BadInput(
                        f"sparse tensors of numbers can be summed and averaged; this is {asked} of {tensor.dtype}"
                    )
                return as_vector(tensor), op

            vector, op = self._all_or_none(look_at_sparse)
            return (
                lambda async_op: reduce_shaped(self.comm, vector, op, tensor.shape, async_op=async_op),
                lambda reduced: fill_sparse(tensor, reduced),
            )

        def look() -> Any:
            check_written([tensor])
            return as_numbers(tensor), self._op(given, tensor.dtype)

        array, op = self._all_or_none(look)
        if is_plain(tensor) and array.nbytes == tensor.nbytes:
            # The result goes where the numbers were: those are read from a copy.
            copy = self._scratch.copy_of(array)
            return (
                lambda async_op: self.comm.allreduce(copy, op=op, out=array, async_op=async_op),
                lambda _: self._scratch.give_back(copy),
            )
        result = np.empty_like(array)
        return (
            lambda async_op: self.comm.allreduce(array, op=op, out=result, async_op=async_op),
            lambda _: _fill(tensor, result),
        )

    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> TorchWork:
        """Reduce several tensors, which travel together."""
        self._all_or_none(lambda: check(tensors))
        parts = [self._reduction(tensor, opts.reduceOp) for tensor in tensors]
        return self._together(opts, parts, list(tensors))

    def allreduce_sparse(self, tensors: Tensors, opts: Any) -> TorchWork:
        """As :meth:`allreduce`, which takes sparse tensors too."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any) -> TorchWork:
        """Reduce a tensor of each rank on one of them, in place there."""

        def look() -> Any:
            tensor = _only(tensors, "reduce", strided=True)
            if self.comm.rank == opts.rootRank:
                check_written([tensor])
            return tensor, as_numbers(tensor), resolve_op(self._op(opts.reduceOp, tensor.dtype))

        tensor, array, op = self._all_or_none(look)
        root = self._root(opts)
        out = np.empty(array.shape if self.comm.rank == root else 0, array.dtype)
        return self._perform(
            opts.asyncOp,
            self._reduce_arrays(array, out, op, root),
            lambda _: _fill(tensor, out) if self.comm.rank == root else None,
            [tensor],
        )

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> TorchWork:
        """Reduce a list of tensors, one a rank, of which each rank gets its own."""

        def look() -> Any:
            output = _only(outputs, "reduce_scatter", strided=True)
            check_written([output])
            parts = self._each(output, inputs, "reduce_scatter")
            mine = parts[self.comm.rank].numel()
            if mine != output.numel():
                raise BadInput(f"reduce_scatter: {mine} elements for this rank, and a tensor of {output.numel()}")
            return output, parts

        output, parts = self._all_or_none(look)
        if any(part.numel() != output.numel() for part in parts):
            reduced = [self._to_owner(output, part, owner, opts.reduceOp) for owner, part in enumerate(parts)]
            return self._together(opts, reduced, [output])
        source = torch.stack([part.reshape(-1) for part in parts])
        return self._perform(opts.asyncOp, *self._scattered(output, source, opts.reduceOp), [output])

    def _to_owner(self, output: torch.Tensor, part: torch.Tensor, owner: int, given: Any) -> Parts:
        """Reduce a tensor on the rank that gets it."""
        array, op = self._all_or_none(lambda: (as_numbers(part), resolve_op(self._op(given, part.dtype))))
        is_mine = self.comm.rank == owner
        out = np.empty(array.shape if is_mine else 0, array.dtype)
        return self._reduce_arrays(array, out, op, owner), lambda _: _fill(output, out) if is_mine else None

    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any) -> TorchWork:
        """Reduce a tensor, of which each rank gets an even part."""

        def look() -> None:
            check([output, source])
            check_written([output])
            if source.numel() != output.numel() * self.comm.size:
                raise BadInput(f"{source.numel()} numbers in, {output.numel()} out of each of {self.comm.size} ranks")

        self._all_or_none(look)
        return self._perform(opts.asyncOp, *self._scattered(output, source, opts.reduceOp), [output])

    def _scattered(self, output: torch.Tensor, source: torch.Tensor, given: Any) -> Parts:
        def look() -> Any:
            if output.dtype != source.dtype:
                raise BadInput(f"{source.dtype} in and {output.dtype} out")
            return as_numbers(source), resolve_op(self._op(given, source.dtype))

        array, op = self._all_or_none(look)
        out = np.empty(array.size // self.comm.size, array.dtype)
        return (
            self._reduce_arrays(array, out, op, None),
            lambda _: _fill(output, out),
        )

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> TorchWork:
        """Several of :meth:`reduce_scatter_single`, which travel together."""
        self._all_or_none(lambda: check([*outputs, *inputs]))
        parts = [self._scattered(*pair, opts.reduceOp) for pair in zip(outputs, inputs, strict=True)]
        return self._together(opts, parts, list(outputs))

    # -- What moves bytes: tensors of any type.

    def broadcast(self, tensors: Tensors, opts: Any) -> TorchWork:
        """Give all ranks one rank's tensor."""
        root = self._root(opts)
        sends = self.comm.rank == root

        def look() -> Any:
            tensor = _only(tensors, "broadcast", strided=True)
            if not sends:
                check_written([tensor])
            return tensor, as_moved(tensor.contiguous()) if sends else None

        tensor, mine = self._all_or_none(look)

        def finish(came: Any) -> None:
            if not sends:
                expected = _room(tensor)
                if (len(came), came.dtype) != (len(expected), expected.dtype):
                    raise BadInput(
                        f"rank {root} broadcasts {len(came)} of {came.dtype}, and rank {self.comm.rank} has a tensor "
                        f"of {len(expected)} of {expected.dtype}"
                    )
                _fill(tensor, came)

        return self._perform(
            opts.asyncOp, lambda async_op: self.comm.broadcast(mine, root, async_op=async_op), finish, [tensor]
        )

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> TorchWork:
        """Give all ranks the tensors of all."""
        source, parts = self._all_or_none(lambda: self._one_each(inputs, outputs, "allgather"))
        self._all_or_none(lambda: check_written(parts))
        return self._perform(opts.asyncOp, *self._gathered(parts, source), parts)

    def _gathered(self, parts: Tensors, source: torch.Tensor) -> Parts:
        mine = as_moved(source.contiguous())
        everyone = np.empty((self.comm.size, mine.size), mine.dtype)
        return self._move("allgather", mine, everyone, 0), lambda _: _fill_each(parts, everyone)

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> TorchWork:
        """Several of :meth:`allgather`, which travel together."""
        self._all_or_none(lambda: check([*inputs, *(tensor for rank in outputs for tensor in rank)]))
        parts = [self._gathered([rank[k] for rank in outputs], source) for k, source in enumerate(inputs)]
        return self._together(opts, parts, [tensor for rank in outputs for tensor in rank])

    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any) -> TorchWork:
        """Give all ranks the tensors of all, as one."""
        return self._perform(opts.asyncOp, *self._gathered_single(output, source), [output])

    def _gathered_single(self, output: torch.Tensor, source: torch.Tensor) -> Parts:
        def look() -> Any:
            check([output, source])
            check_written([output])
            if (output.numel(), output.dtype) != (source.numel() * self.comm.size, source.dtype):
                raise BadInput(
                    f"{source.numel()} elements of {source.dtype} of each of {self.comm.size} ranks into "
                    f"{output.numel()} of {output.dtype}"
                )
            mine = as_moved(source.contiguous())
            # Straight to where it belongs, if that is one stretch, and not what is sent.
            apart = is_plain(output) and not np.may_share_memory(mine, as_moved(output))
            return mine, as_moved(output) if apart else np.empty(mine.size * self.comm.size, mine.dtype), apart

        mine, out, apart = self._all_or_none(look)
        return self._move("allgather", mine, out, 0), lambda _: None if apart else _fill(output, out)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> TorchWork:
        """Several of :meth:`all_gather_single`, which travel together."""
        parts = [self._gathered_single(*pair) for pair in zip(outputs, inputs, strict=True)]
        return self._together(opts, parts, list(outputs))

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> TorchWork:
        """Give one rank the tensors of all."""
        root = self._root(opts)
        receives = self.comm.rank == root

        def look() -> Any:
            source = _only(inputs, "gather", strided=True)
            return source, self._one_each(inputs, outputs, "gather")[1] if receives else []

        source, parts = self._all_or_none(look)
        self._all_or_none(lambda: check_written(parts))
        mine = as_moved(source.contiguous())
        everyone = np.empty((self.comm.size if receives else 0, mine.size), mine.dtype)
        return self._perform(
            opts.asyncOp,
            self._move("gather", mine, everyone, root),
            lambda _: _fill_each(parts, everyone) if receives else None,
            parts,
        )

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> TorchWork:
        """Give each rank one of one rank's tensors."""
        root = self._root(opts)

        def look() -> Any:
            output = _only(outputs, "scatter", strided=True)
            check_written([output])
            if self.comm.rank != root:
                return output, _room(output)[:0]
            parts = self._one_each(outputs, inputs, "scatter")[1]
            return output, np.stack([as_moved(part.contiguous()) for part in parts])

        output, mine = self._all_or_none(look)
        out = _room(output)
        return self._perform(
            opts.asyncOp, self._move("scatter", mine, out, root), lambda _: _fill(output, out), [output]
        )

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any) -> TorchWork:
        """Send each rank a tensor of its own, and get one from each; any two of them may differ in length."""

        def look() -> Any:
            check([*outputs, *inputs])
            check_written(outputs)
            if not len(outputs) == len(inputs) == self.comm.size:
                raise BadInput(
                    f"all_to_all takes a list of {self.comm.size} tensors and fills as many, not {len(inputs)} and "
                    f"{len(outputs)}"
                )
            parts = [as_bytes(tensor.contiguous()) for tensor in inputs]
            mine = np.concatenate(parts)
            return mine, [part.size for part in parts], [tensor.nbytes for tensor in outputs]

        mine, sends, receives = self._all_or_none(look)
        out = np.empty(sum(receives), np.uint8)

        def finish(_: Any) -> None:
            ends = np.cumsum(receives)[:-1]
            for tensor, came in zip(outputs, np.split(out, ends), strict=True):
                _fill(tensor, came)

        return self._perform(opts.asyncOp, self._exchange(mine, out, sends, receives), finish, list(outputs))

    def all_to_all_single(
        self, output: torch.Tensor, source: torch.Tensor, outs: list[int], ins: list[int], opts: Any
    ) -> TorchWork:
        """Send each rank a part of a tensor along its first dimension, and get one from each: even, or as lists say."""

        def look() -> Any:
            check([output, source])
            check_written([output])
            if output.dtype != source.dtype:
                raise BadInput(f"{source.dtype} in and {output.dtype} out")
            sends, receives = self._row_bytes(source, ins, "in"), self._row_bytes(output, outs, "out")
            mine = as_bytes(source.contiguous())
            apart = is_plain(output) and not np.may_share_memory(mine, as_bytes(output))
            return mine, as_bytes(output) if apart else np.empty(output.nbytes, np.uint8), apart, sends, receives

        mine, out, apart, sends, receives = self._all_or_none(look)
        return self._perform(
            opts.asyncOp,
            self._exchange(mine, out, sends, receives),
            lambda _: None if apart else _fill(output, out),
            [output],
        )

    def _row_bytes(self, tensor: torch.Tensor, rows: list[int], what: str) -> list[int]:
        """Bytes of the part of each rank."""
        size, length = self.comm.size, tensor.shape[0] if tensor.dim() else 1
        if not rows:
            if length % size:
                raise BadInput(f"{length} rows {what} cannot be split evenly between {size} ranks: say how")
            rows = [length // size] * size
        if len(rows) != size or sum(rows) != length or min(rows) < 0:
            raise BadInput(f"splits {list(rows)} of {length} rows {what}, between {size} ranks")
        each = tensor.nbytes // length if length else 0
        return [each * count for count in rows]

    def _exchange(
        self, mine: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8], sends: list[int], receives: list[int]
    ) -> Callable[[bool], Any]:
        def start(async_op: bool) -> Any:
            return _native(native.alltoall_uneven(self._native, mine, out, sends, receives, async_op), async_op)

        return start

    # -- Messages between two ranks.

    def send(self, tensors: Tensors, to: int, tag: int) -> TorchWork:
        """Send a tensor to one rank. It is over once the bytes are handed over: up to 8 MB without the receiver."""
        tensor = _only(tensors, "send", strided=True)
        self._check_message(to, tag, "send")
        work = self._messages.send(to, tag, _described(tensor), as_moved(tensor.contiguous()))
        return TorchWork(work, lambda _: None, [tensor], None)

    def recv(self, tensors: Tensors, source: int, tag: int) -> TorchWork:
        """Receive a tensor from one rank."""
        self._check_message(source, tag, "recv")
        return self._received(tensors, source, tag)

    def recv_anysource(self, tensors: Tensors, tag: int) -> TorchWork:
        """Receive a tensor from any other rank; ``source_rank`` of the work is that."""
        self._check_message(None, tag, "recv")
        return self._received(tensors, None, tag)

    def _received(self, tensors: Tensors, source: int | None, tag: int) -> TorchWork:
        tensor = _only(tensors, "recv", strided=True)
        check_written([tensor])
        straight = is_plain(tensor)
        out = as_moved(tensor) if straight else _room(tensor)
        call = self._messages.receive(source, tag, _described(tensor), out)

        def finish(sender: int) -> None:
            work.source = sender
            if not straight:
                _fill(tensor, out)

        work = TorchWork(call, finish, [tensor], None)
        return work

    def _check_message(self, rank: int | None, tag: int, what: str) -> None:
        if rank is not None and (not 0 <= rank < self.comm.size or rank == self.comm.rank):
            raise BadInput(f"rank {self.comm.rank}: {what} names rank {rank}: another one of {self.comm.size}")
        if not 0 <= tag < 1 << 32:
            raise BadInput(f"rank {self.comm.rank}: {what} with tag {tag}: from 0 to 2^32 - 1")

    def barrier(self, opts: Any) -> TorchWork:
        """Wait until all ranks are here."""
        return self._perform(
            opts.asyncOp,
            lambda async_op: self.comm.barrier(async_op=True) if async_op else self.comm.barrier(),
            lambda _: None,
            [],
        )

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """Wait until all ranks are here; the error says which are not, all of them in any case."""
        self._roll.call(_seconds(opts.timeout), wait_all_ranks)

    # -- What all of these share.

    @property
    def _native(self) -> native.Comm:
        return self.comm._native

    def _move(
        self, what: str, mine: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8], root: int
    ) -> Callable[[bool], Any]:
        schedule = "auto" if what == "allgather" else "direct"

        def start(async_op: bool) -> Any:
            return _native(native.move_arrays(self._native, what, mine, out, root, schedule, async_op), async_op)

        return start

    def _reduce_arrays(
        self, array: npt.NDArray[Any], out: npt.NDArray[Any], op: tuple[Any, Any], root: int | None
    ) -> Callable[[bool], Any]:
        def start(async_op: bool) -> Any:
            done = native.reduce_arrays(self._native, array, out, op[0], op[1], root, async_op)
            return _native(done, async_op)

        return start

    def _together(self, opts: Any, parts: list[Parts], outputs: list[Any]) -> TorchWork:
        """Several calls as one."""
        with self.comm.fuse():
            calls = [start(True) for start, _ in parts]

        def finish(came: list[Any]) -> None:
            for (_, put), one in zip(parts, came, strict=True):
                put(one)

        work = TorchWork(_Several(calls), finish, outputs, self._line)
        if not opts.asyncOp:
            work.wait()
        return work

    def _one_each(self, one: Tensors, lists: list[Tensors], what: str) -> tuple[torch.Tensor, Tensors]:
        """A tensor, and as many like it as there are ranks."""
        tensor = _only(one, what, strided=True)
        parts = self._each(tensor, lists, what)
        for rank, part in enumerate(parts):
            if part.numel() != tensor.numel():
                raise BadInput(
                    f"{what}: the tensor of rank {rank} has {part.numel()} elements, and this one {tensor.numel()}"
                )
        return tensor, parts

    def _each(self, tensor: torch.Tensor, lists: list[Tensors], what: str) -> Tensors:
        """As many tensors of its type as there are ranks."""
        if len(lists) != 1 or len(lists[0]) != self.comm.size:
            raise BadInput(f"{what} takes a list of {self.comm.size} tensors, one a rank")
        check(lists[0])
        for rank, part in enumerate(lists[0]):
            if part.dtype != tensor.dtype:
                raise BadInput(f"{what}: the tensor of rank {rank} is of {part.dtype}, and this one of {tensor.dtype}")
        return list(lists[0])

    # Names of these in PyTorch 2.14.
    _allgather_base = all_gather_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # -- The group itself.

    def shutdown(self) -> None:
        """Leave the group."""
        let_go(self)
        self._line.close()
        self._messages.close()
        self._roll.close()
        self.comm.close()

    def abort(self) -> None:
        """As :meth:`shutdown`."""
        self.shutdown()

    def _set_sequence_number_for_group(self) -> None:
        """Calls are numbered from the beginning."""

    def _get_sequence_number_for_group(self) -> int:
        return 0


def _native(done: Any, async_op: bool) -> Any:
    return perform(done, async_op, lambda _: None)


def _only(tensors: Tensors, what: str, *, strided: bool = False) -> torch.Tensor:
    """The tensor, of which there must be one."""
    if len(tensors) != 1:
        raise BadInput(f"{what} takes one tensor a rank, not {len(tensors)}")
    check(tensors)
    if strided and tensors[0].is_sparse:
        raise BadInput(f"{what} takes strided tensors; allreduce takes sparse ones")
    return tensors[0]


def _seconds(timeout: timedelta) -> float | None:
    """Those of torch's time-out; None where it says none, by a negative one."""
    seconds = timeout.total_seconds()
    return seconds if seconds >= 0 else None


def _described(tensor: torch.Tensor) -> str:
    """What the other end of a message must have, too."""
    return f"{tensor.numel()} elements of {tensor.dtype}"


def _room(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """An array for what :func:`as_moved` makes of a tensor like this one."""
    return as_moved(torch.empty(tensor.shape, dtype=tensor.dtype))


def _fill(tensor: torch.Tensor, came: npt.NDArray[Any]) -> None:
    """Put a result into a tensor: numbers as ``as_numbers`` has them, or bytes."""
    tensor.detach().copy_(of_array(came, tensor))


def _fill_each(tensors: Tensors, came: npt.NDArray[np.uint8]) -> None:
    for tensor, part in zip(tensors, came, strict=True):
        _fill(tensor, part)
