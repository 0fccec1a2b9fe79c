"""Non-blocking collectives: the same results as the blocking ones, and errors."""

from __future__ import annotations

import asyncio
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import skyphos as sky
from conftest import Processes, on_all


def vector(rank: int, n: int = 2000, salt: int = 0) -> sky.SparseVector:
    rng = np.random.default_rng([rank, salt])
    indices = np.unique(rng.integers(0, n, n // 9))
    return sky.SparseVector(indices, rng.standard_normal(len(indices)), n)


def calls(comm: sky.Comm, async_op: bool) -> list[Any]:
    """Call each collective once; return the results or, with ``async_op``, the ``Work`` objects."""
    x, dense = vector(comm.rank), np.linspace(0, 1, 50) * (comm.rank + 1)
    plan = comm.configure(x.indices, x.indices, n=x.n)
    return [
        comm.allreduce(x, async_op=async_op),
        comm.allreduce(x, op=np.maximum, async_op=async_op),
        comm.allreduce(dense, async_op=async_op),
        comm.allreduce(x.to_scipy(), algorithm="split_allgather", prune=True, async_op=async_op),
        comm.reduce_scatter(x, async_op=async_op),
        comm.reduce_scatter(dense, async_op=async_op),
        comm.reduce(x, root=comm.size - 1, async_op=async_op),
        comm.allgather(x, algorithm="ring", async_op=async_op),
        comm.allgather(dense, async_op=async_op),
        comm.gather(x, async_op=async_op),
        comm.alltoall([x] * comm.size, async_op=async_op),
        comm.scatter([x] * comm.size, like=x, async_op=async_op),
        comm.barrier(async_op=async_op),  # type: ignore[call-overload]
        plan.reduce(x.values, async_op=async_op),  # type: ignore[call-overload]
        plan.reduce(x.values * 2, op=np.add, async_op=async_op),  # type: ignore[call-overload]
        comm.configure_reduce(x.indices, [1], x.values, n=x.n, missing="identity", async_op=async_op),
    ]


def bytes_of(result: Any) -> bytes:
    """The bytes of a result of any type."""
    if isinstance(result, sky.SparseVector):
        return pickle.dumps((result.indices, result.values, result.is_dense))
    if isinstance(result, list):
        return b"".join(bytes_of(r) for r in result)
    return pickle.dumps(result)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("fused", [False, True])
def test_many_calls_under_way_give_the_same_bits(size: int, fused: bool) -> None:
    def body(comm: sky.Comm) -> None:
        want = [bytes_of(result) for result in calls(comm, async_op=False)]
        if fused:
            with comm.fuse():
                works = calls(comm, async_op=True)
        else:
            works = calls(comm, async_op=True)
        # Each rank waits in another order.
        for k in np.random.default_rng(comm.rank).permutation(len(works)):
            assert bytes_of(works[k].wait(60)) == want[k]
            assert works[k].done() and works[k].exception() is None
            assert works[k].wait() is works[k].wait()

    on_all(size, body)


def test_a_call_proceeds_without_being_waited_for(processes: Processes) -> None:
    code = """
import time
x = sky.SparseVector(np.arange(0, 1 << 16, 3), np.ones(21846), 1 << 16)
work = comm.allreduce(x, async_op=True)
until = time.monotonic() + 60
while not work.done():
    assert time.monotonic() < until, "the call makes no progress by itself"
say(work.wait().values.sum())
"""
    for process in processes.start(3, code):
        out, err = process.communicate(timeout=90)
        assert (out, process.returncode) == ("65538.0\n", 0), err


def test_await() -> None:
    def body(comm: sky.Comm) -> None:
        async def in_reverse() -> list[float]:
            works = [comm.allreduce(np.full(10, k + 1.0), async_op=True) for k in range(4)]
            return [float((await work)[0]) for work in reversed(works)]

        assert asyncio.run(in_reverse()) == [4.0 * comm.size, 3.0 * comm.size, 2.0 * comm.size, 1.0 * comm.size]

    on_all(3, body)


def test_a_wait_may_give_up_and_come_again() -> None:
    def body(comm: sky.Comm) -> None:
        if comm.rank == 0:
            work = comm.barrier(async_op=True)
            with pytest.raises(sky.Timeout, match="goes on"):
                work.wait(0.01)
            assert "under way" in repr(work)
            gave_up.set()
            work.wait()
        else:
            assert gave_up.wait(30)
            comm.barrier()

    gave_up = threading.Event()
    on_all(2, body)


def test_errors_reach_every_wait() -> None:
    def body(comm: sky.Comm) -> None:
        n = 10 + comm.rank // 2
        work = comm.allreduce(sky.SparseVector([1], np.array([1.0]), n), async_op=True)
        for _ in range(2):
            with pytest.raises(sky.Mismatch, match="n=10"):
                work.wait()
        assert isinstance(work.exception(), sky.Mismatch)
        with pytest.raises(sky.BadInput, match="timeout"):
            work.wait(-1)
        # A bad argument raises immediately on this rank, and in the wait on the others.
        if comm.rank == 1:
            with pytest.raises(sky.BadInput, match="root=9"):
                comm.reduce(np.ones(3), root=9, async_op=True)
        else:
            with pytest.raises(sky.SkyphosError, match="root=9"):
                comm.reduce(np.ones(3), root=0, async_op=True).wait()
        assert comm.allreduce(np.ones(1), async_op=True).wait()[0] == comm.size

    on_all(3, body)


def test_a_comm_closed_with_work_under_way() -> None:
    def body(comm: sky.Comm) -> str:
        work = comm.barrier(async_op=True)
        if comm.rank == 0:
            comm.close()
            assert work.done()
        return str(work.exception())

    def rank_0_first(comm: sky.Comm) -> str:
        # The others enter the barrier once rank 0 has closed its Comm, so that its call cannot complete.
        if comm.rank == 0:
            text = body(comm)
            closed.set()
            return text
        assert closed.wait(30)
        return body(comm)

    closed = threading.Event()
    got = on_all(3, rank_0_first)
    assert "closed" in got[0], got
    assert all("rank 0" in text for text in got[1:]), got


def test_an_array_is_held_until_its_call_is_done() -> None:
    def body(comm: sky.Comm) -> None:
        works = [comm.allreduce(np.full(5000, k + 1.0), async_op=True) for k in range(30)]
        # Were the arrays freed, this would be written over them.
        junk = [np.full(5000, -1.0) for _ in range(30)]
        assert [work.wait()[4999] for work in works] == [(k + 1.0) * comm.size for k in range(30)]
        del junk

    on_all(3, body)
