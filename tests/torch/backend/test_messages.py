"""Messages between two ranks, all-to-all, and groups of some ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402

from torch_ranks import Ranks  # noqa: E402


def me() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def drawn(seed: int, length: int, dtype: Any = None) -> Any:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 100, (length,), generator=random).to(dtype or torch.float32)


def ring(length: int) -> None:
    rank, size = me()
    for dtype in (torch.float32, torch.bool, torch.complex64, torch.bfloat16, torch.int8):
        received = torch.zeros(length, dtype=dtype)
        work = dist.isend(drawn(rank, length, dtype), (rank + 1) % size)
        dist.recv(received, (rank - 1) % size)
        work.wait()
        assert torch.equal(received, drawn((rank - 1) % size, length, dtype))


def other_order() -> None:
    """Messages with different tags may be received in any order; up to 8 MB of each are sent before the receive."""
    rank, _ = me()
    lengths = {0: 4, 7: 2_000_000, 1: 0, 2: 1}
    if rank == 0:
        for tag, length in lengths.items():
            dist.send(drawn(tag, length), 1, tag=tag)
        dist.send(drawn(50, 5_000_000), 1)
        dist.send(drawn(51, 3), 1)
    elif rank == 1:
        for tag, length in reversed(lengths.items()):
            received = torch.empty(length)
            dist.recv(received, 0, tag=tag)
            assert torch.equal(received, drawn(tag, length))
        for seed, length in ((50, 5_000_000), (51, 3)):  # messages with one tag arrive in order
            received = torch.empty(length)
            dist.recv(received, 0)
            assert torch.equal(received, drawn(seed, length))
    dist.barrier()


def batches() -> None:
    rank, size = me()
    received = [torch.empty(9) for _ in range(size)]
    others = [other for other in range(size) if other != rank]
    ops = [dist.P2POp(dist.isend, drawn(10 * rank + other, 9), other) for other in others]
    ops += [dist.P2POp(dist.irecv, received[other], other) for other in others]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for other in others:
        assert torch.equal(received[other], drawn(10 * other + rank, 9))


def strided() -> None:
    rank, _ = me()
    if rank == 0:
        dist.send(torch.arange(12.0).reshape(3, 4).T, 1)
    if rank == 1:
        whole = torch.zeros(4, 6)
        dist.recv(whole[:, ::2], 0)
        assert torch.equal(whole[:, ::2], torch.arange(12.0).reshape(3, 4).T) and not whole[:, 1::2].any()


def wrong_messages() -> None:
    rank, size = me()
    for bad in (rank, size):
        with pytest.raises((ValueError, RuntimeError)):
            dist.group.WORLD.send([torch.ones(1)], bad, 0)
    if rank == 0:
        dist.send(torch.ones(3), 1, tag=9)
        dist.send(torch.ones(4, dtype=torch.int32), 1, tag=9)
        dist.send(torch.ones(4), 1, tag=9)
    if rank == 1:
        received = torch.zeros(4)
        with pytest.raises(Exception, match=r"rank 0 sent 3 elements of torch.float32 with tag 9.* 4 elements"):
            dist.recv(received, 0, tag=9)
        with pytest.raises(Exception, match=r"sent 4 elements of torch.int32 .* receives 4 elements of torch.float32"):
            dist.recv(received, tag=9)
        dist.recv(received, tag=9)
        assert received.eq(1).all()
    dist.barrier()


def any_source(length: int) -> None:
    """The sender is reported, and its messages arrive in order; messages with another source or tag stay."""
    rank, size = me()
    mine = torch.full((length,), float(rank))
    if rank:
        dist.send(mine + 100, 0, tag=3)
        for k in range(3):
            dist.send(mine + 10 * k, 0)
    else:
        named = torch.empty(length)
        dist.recv(named, size - 1)
        assert named.eq(size - 1).all()
        counts = {other: int(other == size - 1) for other in range(1, size)}
        columns = torch.zeros(length, 2)
        for step in range(3 * (size - 1) - 1):
            if step % 2:
                sender = dist.recv(columns[:, 1])
            else:
                work = dist.irecv(columns[:, 1])
                work.wait()
                sender = work._source_rank()
            assert columns[:, 1].eq(sender + 10 * counts[sender]).all() and not columns[:, 0].any()
            counts[sender] += 1
        assert set(counts.values()) == {3}
        assert sorted(dist.recv(named, tag=3) for _ in range(size - 1)) == list(range(1, size))
        with pytest.raises(RuntimeError, match="sourceRank"):
            dist.all_reduce(named[:0], async_op=True)._source_rank()
    if rank:
        dist.all_reduce(mine[:0])
    group = dist.new_group([size - 1, 0])
    if rank == size - 1:
        dist.send(mine, 0, group=group)
    elif rank == 0:
        assert dist.recv(named, group=group) == size - 1
    dist.barrier()


def completed() -> None:
    """``is_completed`` does not wait; when it is true, the message is in the tensor."""
    rank, _ = me()
    if rank == 0:
        column = torch.zeros(3, 2)
        work = dist.irecv(column[:, 0])
        assert not work.is_completed()
        dist.send(torch.ones(1), 1)
        until = time.monotonic() + 30
        while not work.is_completed() and time.monotonic() < until:
            time.sleep(0.001)
        assert work.is_completed() and column[:, 0].tolist() == [1, 2, 3] and work._source_rank() == 1
    else:
        dist.recv(torch.zeros(1), 0)
        work = dist.isend(torch.tensor([1.0, 2.0, 3.0]), 0)
        work.wait()
        assert work.is_completed()
    work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    assert work.is_completed()


def part(source: int, to: int) -> Any:
    return drawn(100 * source + to, (3 * source + 5 * to) % 7)


def all_to_all(asynchronous: bool) -> None:
    rank, size = me()
    ranks = range(size)
    received = [torch.empty_like(part(source, rank)) for source in ranks]
    work = dist.all_to_all(received, [part(rank, to) for to in ranks], async_op=asynchronous)
    if asynchronous:
        work.wait()
    assert all(torch.equal(received[source], part(source, rank)) for source in ranks)
    # The same as rows of one tensor.
    rows = [part(rank, to)[:, None].expand(-1, 3) for to in ranks]
    ins, outs = [len(row) for row in rows], [len(part(source, rank)) for source in ranks]
    whole = torch.empty(sum(outs), 3)
    work = dist.all_to_all_single(whole, torch.cat(rows), outs, ins, async_op=asynchronous)
    if asynchronous:
        work.wait()
    assert torch.equal(whole, torch.cat([part(source, rank) for source in ranks])[:, None].expand(-1, 3))
    for dtype in (torch.int64, torch.bfloat16, torch.complex128):
        even = torch.empty(2 * size, dtype=dtype)
        dist.all_to_all_single(even, drawn(rank, 2 * size, dtype))
        expected = [drawn(source, 2 * size, dtype)[2 * rank : 2 * rank + 2] for source in ranks]
        assert torch.equal(even, torch.cat(expected))
    inplace = drawn(rank, size)
    dist.all_to_all_single(inplace, inplace)
    assert torch.equal(inplace, torch.stack([drawn(source, size)[rank] for source in ranks]))


def wrong_all_to_all() -> None:
    """Tensors that do not fit on any rank are an error on all ranks."""
    rank, size = me()
    with pytest.raises(Exception, match=r"evenly|splits"):
        dist.all_to_all_single(torch.empty(size), torch.empty(size + (rank == 1)))
    sends = [1] * size
    sends[(rank + 1) % size] += rank == 0
    with pytest.raises(Exception, match="rank 0 sends rank 1 8 bytes"):
        dist.all_to_all_single(torch.empty(size), torch.ones(sum(sends)), [1] * size, sends)
    dist.barrier()


def sockets() -> int:
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return sum(os.path.islink(link) and os.readlink(link).startswith("socket:") for link in links)


def groups() -> None:
    """Groups of some ranks share the default group's connections; groups of the same ranks do not mix."""
    rank, size = me()
    dist.barrier()
    before = sockets()
    odd, two, again = (
        dist.new_group(list(range(1, size, 2))),
        dist.new_group([2, 0]),
        dist.new_group([2, 0]),
    )
    if rank % 2:
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=odd)
        assert x == sum(range(1, size, 2))
    if rank in (0, 2):
        first, second = torch.tensor([1.0 + rank]), torch.tensor([10.0 + rank])
        pair = [dist.all_reduce(second, group=again, async_op=True), dist.all_reduce(first, group=two, async_op=True)]
        for work in reversed(pair):
            work.wait()
        assert (first, second) == (4.0, 22.0)
        other = 2 - rank
        if rank == 0:
            dist.send(torch.tensor([5.0]), other, group=two)
        else:
            received = torch.empty(1)
            dist.recv(received, other, group=two)
            assert received == 5.0
        assert dist.get_group_rank(two, rank) == [2, 0].index(rank) or dist.get_group_rank(two, rank) == rank // 2
    whole = dist.new_group(list(range(size)))
    dist.barrier(group=whole)
    assert sockets() == before, (sockets(), before)
    for group in (odd, two, again, whole):
        if dist.get_rank(group) >= 0:
            dist.destroy_process_group(group)
    dist.barrier()


def late_message_delays_no_other_future() -> None:
    """The future of a late message does not delay the futures of later calls."""
    rank, _ = me()
    if rank == 0:
        last = torch.zeros(3)
        message = dist.irecv(last, 1).get_future()
        dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
        dist.send(torch.ones(2), 1)
        message.wait()
        assert torch.equal(last, torch.ones(3))
    else:
        dist.all_reduce(torch.ones(3))
        dist.recv(torch.zeros(2), 0)
        dist.send(torch.ones(3), 0)


def test_futures(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(late_message_delays_no_other_future)


@pytest.mark.parametrize("length", [1, 100_000])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_ring(ranks: Callable[[int], Ranks], size: int, length: int) -> None:
    ranks(size).run(ring, length)


def test_other_order(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(other_order)


@pytest.mark.parametrize("size", [2, 5])
def test_batches(ranks: Callable[[int], Ranks], size: int) -> None:
    ranks(size).run(batches)


def test_strided(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(strided)


def test_completed(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(completed)


@pytest.mark.parametrize("length", [1, 100_000])
@pytest.mark.parametrize("size", [2, 4])
def test_any_source(ranks: Callable[[int], Ranks], size: int, length: int) -> None:
    ranks(size).run(any_source, length)


def test_wrong_messages(ranks: Callable[[int], Ranks]) -> None:
    ranks(3).run(wrong_messages)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_all_to_all(ranks: Callable[[int], Ranks], size: int, asynchronous: bool) -> None:
    ranks(size).run(all_to_all, asynchronous)


@pytest.mark.parametrize("size", [2, 3])
def test_wrong_all_to_all(ranks: Callable[[int], Ranks], size: int) -> None:
    ranks(size).run(wrong_all_to_all)


def test_groups(ranks: Callable[[int], Ranks]) -> None:
    ranks(5).run(groups)
