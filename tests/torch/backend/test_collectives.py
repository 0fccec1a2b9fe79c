"""Every collective of ``torch.distributed`` by the backend, against NumPy or Gloo with the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
import torch.distributed.nn.functional as differentiable  # noqa: E402

from torch_ranks import Ranks  # noqa: E402

SIZES = [1, 2, 3, 5]
NUMBERS = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
]
ANY = [*NUMBERS, torch.bool, torch.complex64]
SHAPES = [(), (0,), (1,), (7,), (3, 5), (40_000,)]
FOLDS: dict[Any, Callable[[Any], Any]] = {
    dist.ReduceOp.SUM: lambda x: x.sum(0),
    dist.ReduceOp.AVG: lambda x: x.mean(0),
    dist.ReduceOp.PRODUCT: lambda x: x.prod(0),
    dist.ReduceOp.MIN: lambda x: x.amin(0),
    dist.ReduceOp.MAX: lambda x: x.amax(0),
}


def drawn(rank: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """Small whole numbers, different on each rank."""
    random = torch.Generator().manual_seed(rank + 1000 * len(shape))
    numbers = torch.randint(0, 4, shape, generator=random).to(dtype)
    return numbers * (1 - 2j) if dtype.is_complex else numbers


def me() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def all_drawn(shape: tuple[int, ...], dtype: Any) -> list[Any]:
    return [drawn(rank, shape, dtype) for rank in range(me()[1])]


def ops_of(dtype: Any) -> list[Any]:
    """The operations for a type."""
    if dtype.is_complex:
        return [dist.ReduceOp.SUM, dist.ReduceOp.AVG]
    return [op for op in FOLDS if dtype.is_floating_point or op != dist.ReduceOp.AVG]


def is_folded(x: Any, op: Any, tensors: list[Any]) -> bool:
    """Whether ``x`` is the reduction of ``tensors``, in their type. A mean may be rounded; a wrong one raises."""
    wide = torch.complex128 if x.is_complex() else torch.float64 if x.is_floating_point() else torch.int64
    expected = FOLDS[op](torch.stack(tensors).to(wide)).to(tensors[0].dtype)
    if op != dist.ReduceOp.AVG:
        return torch.equal(x, expected)
    torch.testing.assert_close(x, expected)
    return True


def check_allreduce(shape: tuple[int, ...]) -> None:
    rank, _ = me()
    for dtype in [*NUMBERS, torch.complex64]:
        for op in ops_of(dtype):
            for asynchronous in (False, True):
                x = drawn(rank, shape, dtype)
                work = dist.all_reduce(x, op, async_op=asynchronous)
                if asynchronous:
                    assert work.wait() and work.get_future().done()
                assert is_folded(x, op, all_drawn(shape, dtype)), (dtype, op)


def check_bits() -> None:
    rank, size = me()
    for dtype in (torch.int32, torch.int64, torch.uint8, torch.int8):
        stacked = torch.stack(all_drawn((9,), dtype))
        for op, fold in [
            (dist.ReduceOp.BAND, torch.bitwise_and),
            (dist.ReduceOp.BOR, torch.bitwise_or),
            (dist.ReduceOp.BXOR, torch.bitwise_xor),
        ]:
            x = drawn(rank, (9,), dtype)
            dist.all_reduce(x, op)
            expected = stacked[0]
            for k in range(1, size):
                expected = fold(expected, stacked[k])
            assert torch.equal(x, expected), (dtype, op)
    truth = torch.tensor([rank == 0, True, False])
    dist.all_reduce(truth, dist.ReduceOp.SUM)
    assert truth.tolist() == [True, True, False]
    dist.all_reduce(truth[:1], dist.ReduceOp.MIN)
    assert truth.tolist() == [True, True, False]
    z = torch.full((3,), 1 + 2j) * (rank + 1)
    dist.all_reduce(z)
    assert torch.equal(z, torch.full((3,), 1 + 2j) * (size * (size + 1) // 2))


def check_moves(shape: tuple[int, ...]) -> None:
    rank, size = me()
    for dtype in ANY:
        mine, everyone = drawn(rank, shape, dtype), all_drawn(shape, dtype)
        for root in {0, size - 1}:
            x = mine.clone()
            dist.broadcast(x, root)
            assert torch.equal(x, everyone[root])
            parts = [torch.empty_like(mine) for _ in range(size)] if rank == root else None
            dist.gather(mine, parts, root)
            assert parts is None or all(map(torch.equal, parts, everyone))
            out = torch.empty_like(mine)
            dist.scatter(out, everyone if rank == root else None, root)
            assert torch.equal(out, mine)
        parts = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(parts, mine)
        assert all(map(torch.equal, parts, everyone))
        if shape:
            whole = torch.empty(size * shape[0], *shape[1:], dtype=dtype)
            dist.all_gather_into_tensor(whole, mine)
            assert torch.equal(whole, torch.cat(everyone))
            # The input may be a part of the output.
            whole.zero_()
            own = whole.chunk(size)[rank] if shape[0] else whole
            own.copy_(mine)
            dist.all_gather_into_tensor(whole, own)
            assert torch.equal(whole, torch.cat(everyone))


def check_reductions_to_parts(shape: tuple[int, ...]) -> None:
    rank, size = me()
    for dtype in [*NUMBERS, torch.complex64]:
        everyone = all_drawn(shape, dtype)
        for op in ops_of(dtype):
            x, reduced = everyone[rank], everyone[rank].clone()
            dist.reduce(reduced, size - 1, op)
            assert is_folded(reduced, op, everyone) if rank == size - 1 else torch.equal(reduced, x), (dtype, op)
            # Each owner gets the numbers rolled by its rank.
            parts, rolled = [x.roll(owner) for owner in range(size)], [one.roll(rank) for one in everyone]
            out = torch.empty_like(x)
            dist.reduce_scatter(out, parts, op)
            assert is_folded(out, op, rolled), (dtype, op)
            # Parts of different lengths; that of rank 0 is empty.
            out = torch.empty(rank, dtype=dtype)
            dist.reduce_scatter(out, [torch.full((owner,), rank + 1).to(dtype) for owner in range(size)], op)
            assert is_folded(out, op, [torch.full((rank,), source + 1).to(dtype) for source in range(size)]), (
                dtype,
                op,
            )
            if shape:
                out = torch.empty_like(x)
                dist.reduce_scatter_tensor(out, torch.cat(parts), op)
                assert is_folded(out, op, rolled), (dtype, op)


def check_rest() -> None:
    rank, size = me()
    found: list[Any] = [None] * size
    dist.all_gather_object(found, {"rank": rank, "text": "x" * rank})
    assert found == [{"rank": k, "text": "x" * k} for k in range(size)]
    objects = [{"from": rank}, rank]
    dist.broadcast_object_list(objects, size - 1)
    assert objects == [{"from": size - 1}, size - 1]
    gathered: Any = [None] * size if rank == size - 1 else None
    dist.gather_object({"rank": rank, "text": "x" * rank}, gathered, size - 1)
    assert gathered == (found if rank == size - 1 else None)
    given: list[Any] = [None]
    dist.scatter_object_list(given, [{"to": k, "text": "x" * k} for k in range(size)] if rank == 0 else None, 0)
    assert given == [{"to": rank, "text": "x" * rank}]
    if rank > 0:
        dist.send_object_list(["x" * rank, {"from": rank}], 0)
    for other in range(1, size if rank == 0 else 0):
        received: list[Any] = [None, None]
        assert dist.recv_object_list(received, other) == other
        assert received == ["x" * other, {"from": other}]
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier()
    # Tensors that are not contiguous.
    x = torch.arange(12.0).reshape(3, 4).t()
    dist.all_reduce(x)
    assert torch.equal(x, size * torch.arange(12.0).reshape(3, 4).t())
    dist.broadcast(x.t()[:, ::2], 0)
    # Many calls under way, and futures.
    xs = [torch.full((1000 * k,), float(rank + k)) for k in range(10)]
    works = [dist.all_reduce(one, async_op=True) for one in xs]
    futures = [work.get_future() for work in works[::2]]
    for k, future in zip(range(0, 10, 2), futures, strict=True):
        (value,) = future.wait()
        assert torch.equal(value, torch.full_like(value, size * (size - 1) / 2 + size * k))
    for work in works:
        work.wait()


def check_coalesced() -> None:
    """Tensors of different lengths that are sent as one."""
    rank, size = me()
    lengths = range(1, 5)

    def full(value: float) -> list[Any]:
        return [torch.full((length,), float(value)) for length in lengths]

    def same(some: list[Any], value: float) -> bool:
        return all(map(torch.equal, some, full(value)))

    for asynchronous in (False, True):
        xs, everyone = full(rank), [full(-1) for _ in range(size)]
        works = [
            dist.all_reduce_coalesced(xs, dist.ReduceOp.MAX, async_op=asynchronous),
            dist.all_gather_coalesced(everyone, full(rank), async_op=asynchronous),
        ]
        for work in works if asynchronous else []:
            work.wait()
        assert same(xs, size - 1) and all(same(some, source) for source, some in enumerate(everyone))
    xs, parts, wholes = full(rank), full(-1), [torch.empty(size * length) for length in lengths]
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
    with dist._coalescing_manager():
        for part, length in zip(parts, lengths, strict=True):
            numbers = torch.arange(float(size)).repeat_interleave(length)
            dist.reduce_scatter_tensor(part, numbers * (rank + 1))
    with dist._coalescing_manager():
        for whole, x in zip(wholes, full(rank), strict=True):
            dist.all_gather_into_tensor(whole, x)
    assert same(xs, size * (size - 1) / 2) and same(parts, rank * size * (size + 1) / 2)
    for whole, length in zip(wholes, lengths, strict=True):
        assert torch.equal(whole, torch.arange(float(size)).repeat_interleave(length))


def check_functional() -> None:
    """The functional collectives of compiled code, which return new tensors; and gradients through collectives."""
    rank, size = me()
    group = dist.group.WORLD
    everyone = all_drawn((2 * size, 3), torch.float32)
    x, total = everyone[rank].clone(), sum(everyone)
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
        name = str(op).rsplit(".", 1)[-1].lower()
        assert is_folded(functional.wait_tensor(functional.all_reduce(x, name, group)), op, everyone)
    assert torch.equal(functional.broadcast(x, size - 1, group), everyone[-1])
    for dim in (0, 1):
        assert torch.equal(functional.all_gather_tensor(x, dim, group), torch.cat(everyone, dim))
    assert torch.equal(functional.reduce_scatter_tensor(x, "sum", 0, group), total.chunk(size)[rank])
    swapped = functional.all_to_all_single(x, None, None, group)
    assert torch.equal(swapped, torch.cat([one.chunk(size)[rank] for one in everyone]))
    both = functional.all_reduce_coalesced([x, x[:1]], "sum", group)
    assert torch.equal(both[0], total) and torch.equal(both[1], total[:1])
    assert torch.equal(x, everyone[rank])
    # The loss of rank r has the factor r + 1, so the gradient is the sum of all ranks' factors.
    y = x.requires_grad_()
    (differentiable.all_reduce(y) * (rank + 1)).sum().backward()
    (torch.stack(differentiable.all_gather(y)).sum() * 100 * (rank + 1)).backward()
    assert torch.equal(y.grad, torch.full_like(x, 101 * size * (size + 1) / 2))


def check_new_group() -> None:
    rank, size = me()
    members = list(range(0, size, 2))
    group = dist.new_group(members, backend="skyphos")
    if rank in members:
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=group)
        assert x.item() == sum(members)
        dist.destroy_process_group(group)


def assert_same_on_all(x: Any) -> None:
    everyone = [torch.empty_like(x) for _ in range(me()[1])]
    dist.all_gather(everyone, x)
    assert all(torch.equal(one, x) for one in everyone)


def check_sparse(seed: int) -> None:
    rank, size = me()
    cases: list[tuple[tuple[int, ...], int]] = [((50,), 1), ((20, 3), 1), ((6, 7), 2), ((4, 5, 2, 3), 2), ((1,), 1)]
    for shape, dims in cases:
        for dtype in NUMBERS:
            total = torch.zeros(shape, dtype=dtype)
            for source in range(size):
                random = torch.Generator().manual_seed(100 * seed + source)
                # Some ranks have no entries; some indices occur twice.
                nnz = 0 if (source + seed) % 3 == 0 else int(torch.randint(0, 30, (), generator=random))
                indices = torch.stack([torch.randint(0, n, (nnz,), generator=random) for n in shape[:dims]])
                values = torch.randint(-3, 4, (nnz, *shape[dims:]), generator=random).to(dtype)
                one = torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)
                total += one.to_dense()
                if source == rank:
                    mine = one.coalesce() if seed % 2 else one
            asynchronous = seed % 2 == 1
            work = dist.all_reduce(mine, async_op=asynchronous)
            if asynchronous:
                work.wait()
            assert mine.is_sparse and torch.equal(mine.to_dense(), total), (shape, dtype)
            if dtype.is_floating_point:
                averaged = mine.clone()
                dist.all_reduce(averaged, dist.ReduceOp.AVG)
                torch.testing.assert_close(averaged.to_dense(), total)
                assert_same_on_all(averaged.to_dense())


def assert_refused(call: Callable[[], Any], says: str) -> None:
    try:
        call()
    except Exception as error:
        assert says in str(error), error
    else:
        raise AssertionError(f"no error says {says!r}")


def check_refusals() -> None:
    rank, size = me()
    assert_refused(lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND), "have no bits")
    assert_refused(lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), dist.ReduceOp.AVG), "no mean")
    assert_refused(lambda: dist.all_reduce(torch.eye(3).to_sparse(), dist.ReduceOp.MAX), "summed and averaged")
    assert_refused(lambda: dist.all_reduce(torch.ones(3).to(torch.float8_e4m3fn)), "cannot be reduced")
    if size > 1:
        assert_refused(lambda: dist.all_reduce(torch.ones(3 + rank)), "n=")
        assert_refused(lambda: dist.all_reduce(torch.ones(3) if rank else torch.ones(3, dtype=torch.float64)), "dtype=")
        assert_refused(lambda: dist.all_reduce(torch.ones(3)) if rank else dist.barrier(), "barrier")
    x = torch.ones(2)
    dist.all_reduce(x)
    assert x.tolist() == [size, size]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dense_tensors(ranks: Callable[[int], Ranks], size: int, shape: tuple[int, ...]) -> None:
    for check in (check_allreduce, check_moves, check_reductions_to_parts):
        ranks(size).run(check, shape)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "check",
    [check_bits, check_rest, check_coalesced, check_functional, check_new_group, check_refusals],
    ids=lambda check: check.__name__,
)
def test_other_collectives(ranks: Callable[[int], Ranks], size: int, check: Any) -> None:
    ranks(size).run(check)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", range(4))
def test_sparse_tensors(ranks: Callable[[int], Ranks], size: int, seed: int) -> None:
    ranks(size).run(check_sparse, seed)


def sparse_complex() -> None:
    """`torch.distributed` passes complex tensors to a backend as real ones, with real and imaginary parts."""
    rank, size = me()
    for op, divisor in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, size)):
        for dense in ((), (3,)):
            for dtype in (torch.complex64, torch.complex128):
                places = torch.tensor([[1, 2 + rank], [0, 1]])
                z = torch.sparse_coo_tensor(places, torch.full((2, *dense), 1 + 2j, dtype=dtype), (8, 2, *dense))
                work = dist.all_reduce(z, op, async_op=dtype == torch.complex64)
                if work is not None:
                    work.wait()
                want = torch.zeros(8, 2, *dense, dtype=dtype)
                want[1, 0] = size * (1 + 2j)
                want[2 : 2 + size, 1] = 1 + 2j
                assert z.dtype == dtype and z.is_coalesced() and z._nnz() == 1 + size
                torch.testing.assert_close(z.to_dense(), want / divisor)


@pytest.mark.parametrize("size", [1, 3])
def test_sparse_complex_tensors(ranks: Callable[[int], Ranks], size: int) -> None:
    ranks(size).run(sparse_complex)


def sparse_without_numbers() -> None:
    """Tensors whose dense dimensions have length 0, so that only indices are united; and tensors without indices."""
    rank, size = me()
    for dtype in (torch.float32, torch.complex64):
        z = torch.sparse_coo_tensor([[7, rank, 7]], torch.zeros(3, 0, 2, dtype=dtype), (10, 0, 2))
        dist.all_reduce(z)
        assert z.indices().tolist() == [[*range(size), 7]] and z.values().shape == (1 + size, 0, 2)
    for shape in ((0,), (0, 5), (10, 0), (0, 0), (3, 0, 2)):
        for dims in range(1, len(shape) + 1):
            z = torch.sparse_coo_tensor(torch.zeros(dims, 0), torch.zeros(0, *shape[dims:]), shape)
            dist.all_reduce(z)
            assert z.shape == shape and z._nnz() == 0


@pytest.mark.parametrize("size", [1, 3])
def test_sparse_tensors_without_numbers(ranks: Callable[[int], Ranks], size: int) -> None:
    ranks(size).run(sparse_without_numbers)
