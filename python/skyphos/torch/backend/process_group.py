"""``SkyphosBackend``: the backend of one process group, whose methods are the calls of ``torch.distributed``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Backend

from ...comm import Comm
from ...errors import BadInput
from ...work import Work
from . import moves, reductions
from .backend_references import hold, release
from .call import Call, Tensors, all_or_none, array_for, fill, only_tensor
from .messages import Messages
from .monitored_barrier import MonitoredBarrier
from .ordered_worker import OrderedWorker
from .scratch import Scratch
from .tensors import as_moved, check, check_written, is_plain
from .untraced import untraced
from .work import TorchWork

__all__ = ["SkyphosBackend"]


class _False(int):
    """False both as a value and when called: C++ calls what Python reads as a property."""

    def __call__(self) -> bool:
        return False


_FALSE: Any = _False()


class _Several:
    """Several works as one."""

    def __init__(self, works: Sequence[Work[Any]]) -> None:
        self._works = works

    def done(self) -> bool:
        return all(work.done() for work in self._works)

    def wait(self, timeout: float | None = None) -> list[Any]:
        return [work.wait(timeout) for work in self._works]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        errors = [work.exception(timeout) for work in self._works]
        return next((error for error in errors if error is not None), None)


@untraced
class SkyphosBackend(Backend):
    """A process group's collectives by a :class:`skyphos.Comm`, for strided and sparse COO tensors of the CPU.

    Made by ``dist.init_process_group("skyphos")`` and ``dist.new_group(backend="skyphos")``; ``comm`` is the group.
    ``torch.distributed`` calls the methods. Numbers of 8 to 64 bits, bool and complex are reduced, any type is moved.
    Wrong sizes, types or devices raise ``BadInput``, or ``Mismatch`` where ranks differ, on all ranks.

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
        self._worker = OrderedWorker("skyphos-futures")
        self._messages = Messages(comm, "messages")
        self._scratch = Scratch()
        self._monitored_barrier = MonitoredBarrier(comm)
        hold(self)

    # Without these attributes the C++ base class looks them up in Python, which asks C++ again, without end.
    supports_coalescing = supports_splitting = supports_shrinking = supports_reconfigure = supports_window = _FALSE
    _supports_time_estimate = _FALSE

    def getBackendName(self) -> str:
        """The name by which groups are made."""
        return "skyphos"

    def _perform(self, opts: Any, call: Call) -> TorchWork:
        """Start a call. Unless it is asynchronous, it is over on return."""
        if opts.asyncOp:
            return TorchWork(call.start(True), call.finish, call.outputs, self._worker)
        call.finish(call.start(False))
        return TorchWork(None, call.finish, call.outputs, self._worker)

    def _perform_together(self, opts: Any, calls: Sequence[Call], outputs: Tensors) -> TorchWork:
        """Start several calls, which travel together."""
        with self.comm.fuse():
            works = [call.start(True) for call in calls]

        def finish(results: list[Any]) -> None:
            for call, result in zip(calls, results, strict=True):
                call.finish(result)

        work = TorchWork(_Several(works), finish, outputs, self._worker)
        if not opts.asyncOp:
            work.wait()
        return work

    # -- Reductions.

    def allreduce(self, tensors: Tensors, opts: Any) -> TorchWork:
        """Reduce a tensor of each rank, in place; a sparse one gets the union of all ranks' indices."""
        tensor = all_or_none(self.comm, lambda: only_tensor(tensors, "allreduce"))
        return self._perform(opts, reductions.allreduce(self.comm, self._scratch, tensor, opts.reduceOp))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> TorchWork:
        """Reduce several tensors, which travel together."""
        all_or_none(self.comm, lambda: check(tensors))
        calls = [reductions.allreduce(self.comm, self._scratch, tensor, opts.reduceOp) for tensor in tensors]
        return self._perform_together(opts, calls, list(tensors))

    def allreduce_sparse(self, tensors: Tensors, opts: Any) -> TorchWork:
        """Same as :meth:`allreduce`, which takes sparse tensors too."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any) -> TorchWork:
        """Reduce a tensor of each rank on the root, in place there."""
        return self._perform(opts, reductions.reduce(self.comm, tensors, opts))

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> TorchWork:
        """Reduce a list of tensors, one a rank, each of which goes to its rank."""
        call = reductions.reduce_scatter(self.comm, outputs, inputs, opts)
        return self._perform(opts, call) if isinstance(call, Call) else self._perform_together(opts, call, outputs)

    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any) -> TorchWork:
        """Reduce a tensor, of which each rank gets an equal part."""
        return self._perform(opts, reductions.reduce_scatter_single(self.comm, output, source, opts))

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> TorchWork:
        """Make several :meth:`reduce_scatter_single` calls, which travel together."""
        pairs = zip(outputs, inputs, strict=True)
        calls = [reductions.reduce_scatter_single(self.comm, output, source, opts) for output, source in pairs]
        return self._perform_together(opts, calls, list(outputs))

    # -- Moves, of tensors of any type.

    def broadcast(self, tensors: Tensors, opts: Any) -> TorchWork:
        """Send the root's tensor to all ranks."""
        return self._perform(opts, moves.broadcast(self.comm, tensors, opts))

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> TorchWork:
        """Send each rank's tensor to all ranks."""
        return self._perform(opts, moves.allgather(self.comm, outputs, inputs))

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> TorchWork:
        """Make several :meth:`allgather` calls, which travel together."""
        calls = moves.allgather_coalesced(self.comm, outputs, inputs)
        return self._perform_together(opts, calls, [tensor for rank in outputs for tensor in rank])

    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any) -> TorchWork:
        """Send each rank's tensor to all ranks, where they make up one tensor."""
        return self._perform(opts, moves.allgather_single(self.comm, output, source))

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> TorchWork:
        """Make several :meth:`all_gather_single` calls, which travel together."""
        calls = [moves.allgather_single(self.comm, *pair) for pair in zip(outputs, inputs, strict=True)]
        return self._perform_together(opts, calls, list(outputs))

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> TorchWork:
        """Send each rank's tensor to the root."""
        return self._perform(opts, moves.gather(self.comm, outputs, inputs, opts))

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> TorchWork:
        """Send each rank its tensor from the root."""
        return self._perform(opts, moves.scatter(self.comm, outputs, inputs, opts))

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any) -> TorchWork:
        """Send each rank a tensor and receive one from each. All of them may differ in length."""
        return self._perform(opts, moves.alltoall(self.comm, outputs, inputs))

    def all_to_all_single(
        self, output: torch.Tensor, source: torch.Tensor, output_rows: list[int], input_rows: list[int], opts: Any
    ) -> TorchWork:
        """Send each rank rows of ``source`` and receive rows from each: numbers as listed, or equal shares."""
        return self._perform(opts, moves.all_to_all_single(self.comm, output, source, output_rows, input_rows))

    # -- Messages between two ranks.

    def send(self, tensors: Tensors, to: int, tag: int) -> TorchWork:
        """Send a tensor to one rank.

        The work is over once the transport has the bytes. It takes up to 8 MB before the receiver calls.
        """
        tensor = only_tensor(tensors, "send", strided=True)
        self._check_message(to, tag, "send")
        work = self._messages.send(to, tag, _described(tensor), as_moved(tensor.contiguous()))
        return TorchWork(work, lambda _: None, [tensor], None)

    def recv(self, tensors: Tensors, source: int, tag: int) -> TorchWork:
        """Receive a tensor from one rank."""
        self._check_message(source, tag, "recv")
        return self._receive(tensors, source, tag)

    def recv_anysource(self, tensors: Tensors, tag: int) -> TorchWork:
        """Receive a tensor from any other rank. The work's ``source_rank`` is the sender."""
        self._check_message(None, tag, "recv")
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: Tensors, source: int | None, tag: int) -> TorchWork:
        tensor = only_tensor(tensors, "recv", strided=True)
        check_written([tensor])
        is_direct = is_plain(tensor)
        out = as_moved(tensor) if is_direct else array_for(tensor)
        call = self._messages.receive(source, tag, _described(tensor), out)

        def finish(sender: int) -> None:
            work.source = sender
            if not is_direct:
                fill(tensor, out)

        work = TorchWork(call, finish, [tensor], None)
        return work

    def _check_message(self, rank: int | None, tag: int, what: str) -> None:
        if rank is not None and (not 0 <= rank < self.comm.size or rank == self.comm.rank):
            raise BadInput(f"rank {self.comm.rank}: {what} names rank {rank}, not another rank of {self.comm.size}")
        if not 0 <= tag < 1 << 32:
            raise BadInput(f"rank {self.comm.rank}: {what} with tag {tag}: tags are from 0 to 2^32 - 1")

    # -- Barriers.

    def barrier(self, opts: Any) -> TorchWork:
        """Wait until all ranks are here."""

        def start(async_op: bool) -> Any:
            return self.comm.barrier(async_op=True) if async_op else self.comm.barrier()

        return self._perform(opts, Call(start, lambda _: None, []))

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """Wait until all ranks are here. The error names all missing ranks, also without ``wait_all_ranks``."""
        self._monitored_barrier.wait(_seconds(opts.timeout), wait_all_ranks)

    # PyTorch 2.14 calls these methods by other names.
    _allgather_base = all_gather_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # -- The group itself.

    def shutdown(self) -> None:
        """Leave the group."""
        release(self)
        self._worker.close()
        self._messages.close()
        self._monitored_barrier.close()
        self.comm.close()

    def abort(self) -> None:
        """Same as :meth:`shutdown`."""
        self.shutdown()

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: calls are numbered from the beginning."""

    def _get_sequence_number_for_group(self) -> int:
        return 0


def _seconds(timeout: timedelta) -> float | None:
    """A time-out in seconds. None if it is negative, which is how torch says that there is none."""
    seconds = timeout.total_seconds()
    return seconds if seconds >= 0 else None


def _described(tensor: torch.Tensor) -> str:
    """Facts that must be the same at the other end of a message."""
    return f"{tensor.numel()} elements of {tensor.dtype}"
