"""Tensors of all layouts: strided and expanded ones in the collectives of ``torch.distributed``, sparse ones in those
of a ``Comm``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402

import skyphos as sky  # noqa: E402
from torch_ranks import Ranks  # noqa: E402


def column(rank: int, dtype: Any = torch.float32) -> Any:
    """Every second number of a block of memory; the others must not change."""
    block = torch.arange(12, dtype=dtype).reshape(6, 2) + rank
    return block[:, 0]


def strided() -> None:
    """Tensors with gaps between elements, as with Gloo: results are the same, and the gaps do not change."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total = sum(column(other) for other in range(size))

    def check(call: Callable[[Any], Any], want: Any) -> None:
        mine = column(rank)
        gaps = mine._base.reshape(6, 2)[:, 1].clone()
        call(mine)
        torch.testing.assert_close(mine, want)
        assert torch.equal(mine._base.reshape(6, 2)[:, 1], gaps)

    check(dist.all_reduce, total)
    check(lambda x: dist.reduce(x, 0), total if rank == 0 else column(rank))
    check(lambda x: dist.broadcast(x, size - 1), column(size - 1))
    check(lambda x: dist.all_reduce(x, async_op=True).wait(), total)

    def gathered(x: Any) -> None:
        parts = [column(7) for _ in range(size)]
        dist.all_gather(parts, x)
        assert all(torch.equal(part, column(other)) for other, part in enumerate(parts))

    check(gathered, column(rank))

    def at_root(x: Any) -> None:
        parts = [column(7) for _ in range(size)] if rank == 0 else None
        dist.gather(x, parts, 0)
        assert parts is None or all(torch.equal(part, column(other)) for other, part in enumerate(parts))

    check(at_root, column(rank))
    check(
        lambda x: dist.scatter(x, [column(20 + to) for to in range(size)] if rank == 0 else None, 0), column(20 + rank)
    )
    check(
        lambda x: dist.reduce_scatter(x, [column(other) for other in range(size)]),
        size * column(rank),
    )
    whole = torch.zeros(size * 6, 2)[:, 0]
    dist.all_gather_into_tensor(whole, column(rank))
    assert torch.equal(whole, torch.cat([column(other) for other in range(size)]))
    part = torch.zeros(6, 2)[:, 0]
    dist.reduce_scatter_tensor(part, torch.stack([whole, whole], 1)[:, 0])
    torch.testing.assert_close(part, size * column(rank))


def expanded() -> None:
    """Tensors whose elements share memory can be inputs, and are refused as outputs on all ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    one = torch.ones(1).expand(4)
    for call in (
        lambda: dist.all_reduce(one if rank == 0 else torch.ones(4)),
        lambda: dist.reduce(one, 0),
        lambda: dist.broadcast(one if rank else torch.ones(4), 0) if size > 1 else dist.all_reduce(one),
        lambda: dist.all_gather([one] * size, torch.ones(4)),
    ):
        with pytest.raises(sky.SkyphosError, match="expanded, so its elements"):
            call()
    dist.barrier()
    parts = [torch.empty(4) for _ in range(size)]
    dist.all_gather(parts, one)
    assert all(part.sum() == 4 for part in parts)
    target = torch.ones(4) if rank == 0 else one
    dist.reduce(target, 0)
    assert rank or target.tolist() == [size] * 4


@pytest.mark.parametrize("check", [strided, expanded], ids=lambda check: check.__name__)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_layouts(ranks: Callable[[int], Ranks], size: int, check: Any) -> None:
    ranks(size).run(check)


LAYOUTS = [
    ("strided", lambda x: x),
    ("transposed", lambda x: x.T.contiguous().T),
    ("coo", lambda x: x.to_sparse()),
    ("csr", lambda x: x.to_sparse_csr()),
    ("csc", lambda x: x.to_sparse_csc()),
    ("bsr", lambda x: x.to_sparse_bsr((2, 2))),
    ("bsc", lambda x: x.to_sparse_bsc((2, 2))),
    ("rows", lambda x: x.to_sparse(1)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize(("name", "make"), LAYOUTS, ids=[name for name, _ in LAYOUTS])
def test_a_comm_takes_any_layout(name: str, make: Any, dtype: Any) -> None:
    if name in ("csr", "csc", "bsr", "bsc") and dtype not in (torch.float32, torch.float64):
        return  # torch itself makes no dense tensor of these
    dense = (torch.arange(24).reshape(4, 6) % 3).to(dtype)

    def body(comm: sky.Comm) -> Any:
        return comm.allreduce(x), comm.allgather(x), comm.reduce(x, root=1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls compressed layouts a beta
        x = make(dense)
        before = x.to_dense().clone()
        for rank, (total, each, at_root) in enumerate(sky.local(2).run(body)):
            assert total.layout == x.layout and total.dtype == dtype and total.shape == x.shape
            assert torch.equal(total.to_dense(), 2 * dense)
            parts = list(each)
            assert all(torch.equal(part.to_dense(), dense) and part.layout == x.layout for part in parts)
            assert (at_root is None) == (rank != 1)
    assert torch.equal(x.to_dense(), before)


def test_truth_values_and_types_that_cannot_be_reduced() -> None:
    def body(comm: sky.Comm) -> None:
        mask = torch.tensor([comm.rank == 0, True])
        assert torch.equal(comm.allreduce(mask, op="or"), torch.tensor([True, True]))
        assert torch.equal(comm.allreduce(mask), torch.tensor([1, 2]))
        assert comm.allgather(mask).dtype == torch.bool
        with pytest.raises(sky.BadInput, match=r"\.to\(torch\.int32\)"):
            comm.allreduce(torch.zeros(2, dtype=torch.int8))
        with pytest.raises(sky.BadInput, match="float32"):
            comm.allreduce(torch.zeros(2, dtype=torch.float8_e5m2))

    sky.local(2).run(body)


def says_why_nothing_is_sent() -> None:
    import skyphos.torch as st

    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    state = st.TopK(k=1, bucket=512)
    model.register_comm_hook(state, st.topk_hook)
    model(torch.ones(2, 64)).sum().backward()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [state.sent_bytes for _ in range(3)] == [0] * 3
    said = [str(one.message) for one in caught if "sent_bytes" in str(one.message)]
    assert len(said) == (dist.get_rank() == 0) and all("levels=1" in text for text in said)


def test_two_levels_on_one_host_warn_that_nothing_is_sent(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(says_why_nothing_is_sent)
