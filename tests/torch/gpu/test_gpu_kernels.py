"""Compression for GPUs: the Triton kernels, run by Triton's interpreter, against plain torch and the native kernels.

The interpreter must be selected before Triton is imported, so the kernels run in a process of their own. Another
process compiles them for GPUs that need not be there. Where there is a GPU, it runs them too.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import skyphos as sky  # noqa: E402
from skyphos import _skyphos as native  # noqa: E402
from skyphos.errors import BadInput  # noqa: E402
from skyphos.torch import gpu  # noqa: E402
from skyphos.torch.backend.tensors import as_numbers  # noqa: E402
from skyphos.torch.gpu import compress, form, plain  # noqa: E402
from skyphos.torch.hooks.selection import fetch_quantised  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
KINDS = ["normal", "alike", "special", "zeros", "tiny"]
#: Bytes that native kernels make of `sample_values(n)`: n, bits, bucket, scale, seed, call, rank, first bucket, bytes.
NATIVE_BYTES = [
    (10, 2, 7, "max", 0, 0, 0, 0, "000034430004000038410c"),
    (9, 4, 5, "l2", 2**64 - 1, 3, 1, 2, "df1d17420fb40355e26b43c5f0"),
    (12, 8, 12, "max", 2**63, 1, 2, 3, "00003443fcff0cec0b7f9402f8fd13cd"),
    (40, 2, 19, "l2", 9, 1, 2, 3, "91cfc64300040000001f65eb43030003300041504c4203"),
    (
        *(41, 8, 40, "l2", 0x123456789ABCDEF0, 2**40, 2**32 - 1, 2**64 - 1),
        "52961a44ff0003fa0325e101feff06f1013eff0105fd08ddf701fe0008f60baeff02fc000ee80c01ff02f6fc0000d8427f",
    ),
    (
        *(70, 4, 67, "max", 5, 6, 7, 8),
        "0000c8430001300d0ff0500f01d10f00f1910000d101000fb20010f203000fd3001f0e05100f00004043910d",
    ),
]


@contextmanager
def one_process(environment: dict[str, str]) -> Iterator[Callable[..., Any]]:
    """A function that runs functions of this module in a process with other variables, and returns their results."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        before = dict(os.environ)
        os.environ.update(environment)
        try:
            pool.submit(torch.set_num_threads, 1).result()
        finally:
            os.environ.clear()
            os.environ.update(before)
        yield lambda function, *args: pool.submit(function, *args).result()


@pytest.fixture(scope="module")
def interpreted() -> Iterator[Callable[..., Any]]:
    pytest.importorskip("triton", reason="Triton is not installed")
    with one_process({"TRITON_INTERPRET": "1"}) as run:
        yield run


def drawn(draws: random.Random, kind: str, n: int, dtype: Any) -> Any:
    seeded = torch.Generator().manual_seed(draws.getrandbits(60))
    values = torch.randn(n, generator=seeded, dtype=torch.float64)
    if kind == "alike":
        values = (2 * values).round()
    if kind == "zeros":
        values = values * (torch.rand(n, generator=seeded) < 0.1)
    if kind == "tiny":
        values = values * 4 * torch.finfo(dtype).smallest_normal
    if kind == "special":
        largest = torch.finfo(dtype).max
        some = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, largest, -largest], dtype=torch.float64)
        which = torch.randint(0, 3 * len(some), (n,), generator=seeded)
        values = torch.where(which < len(some), some[which % len(some)], values)
    values = values.to(dtype)
    # One NaN, that of inf - inf, because the native kernel orders NaN by their bits.
    quiet = (torch.full((), torch.inf, dtype=dtype) - torch.inf).view(plain.INTEGERS[dtype])
    values.view(plain.INTEGERS[dtype])[values.isnan()] = quiet & torch.iinfo(quiet.dtype).max
    return values


def assert_same(ours: Any, theirs: Any) -> None:
    """Assert the same bits, except that any NaN equals any other."""
    ours, theirs = ours.cpu(), theirs.cpu()
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    bits = torch.uint8 if ours.dtype == torch.uint8 else plain.INTEGERS.get(ours.dtype, ours.dtype)
    nan = torch.isnan(ours) if ours.is_floating_point() else torch.zeros_like(ours, dtype=torch.bool)
    equal = ours.view(bits) == theirs.view(bits)
    assert (equal | nan & torch.isnan(theirs)).all(), (ours, theirs)


def native_topk(residual: Any, gradient: Any, k: int, bucket: int) -> tuple[Any, Any]:
    """Top-k by the CPU's kernel; the residual is changed in place."""
    places, picked = native.topk_take(as_numbers(residual), as_numbers(gradient), k=k, bucket=bucket)
    like = torch.empty(0, dtype=residual.dtype)
    values = torch.from_numpy(np.array(picked).view(np.uint8)).view(like.dtype) if len(picked) else like
    return torch.from_numpy(places.astype(np.int32)), values


def shapes(draws: random.Random) -> tuple[int, int, int]:
    """The number of values, k, and the length of a bucket."""
    bucket = draws.choice([1, 2, 5, 16, 31, 64, 100, 512, 600, 1024, 2049, 4096])
    k = draws.choice([1, min(2, bucket), max(1, bucket // 4), max(1, bucket - 1), bucket])
    return draws.choice([1, bucket, draws.randrange(1, min(4000, 40 * bucket))]), k, bucket


def topk_is_as_native(device: str, name: str, kind: str) -> None:
    draws = random.Random(f"{name} {kind}")
    dtype = getattr(torch, name)
    for _ in range(8):
        n, k, bucket = shapes(draws)
        residual, gradient = drawn(draws, kind, n, dtype), drawn(draws, kind, n, dtype)
        theirs = residual.clone()
        indices, values = native_topk(theirs, gradient, k, bucket)
        for take in (gpu.take_topk, plain.take_topk):
            ours, given = residual.clone().to(device), gradient.clone().to(device)
            found = take(ours, given, k, bucket)
            for one, other in zip((*found, ours, given), (indices, values, theirs, gradient), strict=True):
                assert_same(one, other)
            assert len(found[0]) == plain.chosen_count(n, k, bucket)


def topk_is_as_plain(device: str, name: str, kind: str) -> None:
    """With momentum and a factor, which the native kernel lacks, against plain torch."""
    draws = random.Random(f"{name} {kind} factors")
    dtype = getattr(torch, name)
    for _ in range(6):
        n, k, bucket = shapes(draws)
        tensors = [drawn(draws, kind, n, dtype).to(device) for _ in range(3)]
        momentum, scale = draws.choice([0.0, 0.9, 1.0]), draws.choice([1.0, -0.1, 1 / 3, 0.0])
        rounded = {
            "momentum": float(torch.tensor(momentum, dtype=dtype)),
            "scale": float(torch.tensor(scale, dtype=dtype)),
        }
        factors = {gpu.take_topk: {"momentum": momentum, "scale": scale}, plain.take_topk: rounded}
        both = []
        for take, given in factors.items():
            residual, gradient, velocity = (tensor.clone() for tensor in tensors)
            found = take(residual, gradient, k, bucket, velocity=velocity, **given)
            residual2, gradient2 = residual.clone(), gradient.clone()
            again = take(residual2, gradient2, k, bucket, scale=given["scale"])
            both.append((*found, residual, velocity, *again, residual2))
        for one, other in zip(*both, strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64"])
def test_topk(interpreted: Callable[..., Any], name: str, kind: str) -> None:
    interpreted(topk_is_as_native, "cpu", name, kind)
    interpreted(topk_is_as_plain, "cpu", name, kind)


def steps_are_as_topk() -> None:
    """Several gradients of any shape, one after the other, give what `TopK` gives."""
    topk, residual = sky.TopK(3, bucket=50), torch.zeros(30, 41)
    for step in range(5):
        gradient = drawn(random.Random(step), "normal", residual.numel(), torch.float32).reshape(30, 41)
        vector = topk.compress(gradient)
        indices, values = gpu.take_topk(residual, gradient, 3, 50)
        assert_same(values, torch.from_numpy(np.array(vector.values)))
        assert indices.tolist() == vector.indices.tolist()
        assert_same(residual, torch.from_numpy(topk.residual))


def test_steps(interpreted: Callable[..., Any]) -> None:
    interpreted(steps_are_as_topk)


def test_momentum_is_that_of_the_paper() -> None:
    """Lin et al. 2018, Algorithm 4: u = m u + g; v = v + u; both forget what is sent."""
    u, v = np.zeros(20), np.zeros(20)
    residual, velocity = torch.zeros(20, dtype=torch.float64), torch.zeros(20, dtype=torch.float64)
    for step in range(6):
        gradient = np.random.default_rng(step).standard_normal(20)
        u = 0.7 * u + gradient
        v = v + u
        sent = np.sort(np.argsort(-np.abs(v))[:4])
        indices, values = plain.take_topk(residual, torch.from_numpy(gradient), 4, 20, velocity=velocity, momentum=0.7)
        assert indices.tolist() == sent.tolist()
        np.testing.assert_array_equal(values, v[sent])
        u[sent] = v[sent] = 0
        np.testing.assert_array_equal(residual, v)
        np.testing.assert_array_equal(velocity, u)


def sample_values(n: int) -> Any:
    k = torch.arange(n)
    return ((k * 37 + 11) % 101 - 50) * 2.0 ** ((k % 7) - 3)


def bytes_are_native(device: str) -> None:
    for n, bits, bucket, scale, seed, call, rank, first, expected in NATIVE_BYTES:
        how = sky.Quantize(bits, bucket, scale=scale, seed=seed)
        values = sample_values(n).to(torch.float32).to(device)
        packed = gpu.quantise(values, how, call=call, rank=rank, first_bucket=first)
        assert packed.cpu().numpy().tobytes().hex() == expected
        packed, bad = plain.quantise(values, how, form.start_of(seed, call, rank, first))
        assert packed.cpu().numpy().tobytes().hex() == expected and not bad


def quantised_is_as_native(device: str, name: str, kind: str) -> None:
    """Against plain torch byte by byte, against the CPU's kernel by the decoded values."""
    draws = random.Random(f"{name} {kind} quantised")
    dtype = getattr(torch, name)
    for _ in range(8):
        n, _, bucket = shapes(draws)
        bits, scale, seed = draws.choice([2, 4, 8]), draws.choice(["max", "l2"]), draws.getrandbits(64)
        call, rank = draws.getrandbits(64), draws.getrandbits(32)
        how = sky.Quantize(bits, bucket, scale=scale, seed=seed)
        values = drawn(draws, kind, n, dtype)
        values = torch.where(torch.isfinite(values.to(torch.float32)), values, torch.ones_like(values))
        theirs = values.clone()
        packed = gpu.quantise(values.to(device), how, call=call, rank=rank)
        assert_same(packed, plain.quantise(theirs, how, form.start_of(seed, call, rank, 0))[0])
        ours = gpu.dequantise(packed, how, n, dtype)
        assert_same(ours, plain.dequantise(packed, how, n, dtype)[0])
        if scale == "max":
            native.topk_quantise(as_numbers(theirs), how._native(), call, rank)
            assert_same(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64"])
def test_quantised(interpreted: Callable[..., Any], name: str, kind: str) -> None:
    interpreted(quantised_is_as_native, "cpu", name, kind)


def fetched_is_what_is_sent(device: str) -> None:
    """Values quantised on the device do not change when they are quantised again for sending."""
    draws = random.Random("fetched")
    for name in ("float32", "float16", "bfloat16", "float64"):
        for bits in (2, 4, 8):
            n, _, bucket = shapes(draws)
            how = sky.Quantize(bits, bucket, "both", "max", draws.getrandbits(64))
            values = drawn(draws, "normal", n, getattr(torch, name)).to(device)
            fetched = fetch_quantised(values, how, 7, 3)
            assert fetched.device.type == "cpu" and fetched.dtype == values.dtype
            packed = gpu.quantise(values, how, call=7, rank=3)
            assert_same(fetched, plain.dequantise(packed.cpu(), how, n, fetched.dtype)[0])
            again = fetched.clone()
            native.topk_quantise(as_numbers(again), how._native(), 1, 2)
            if name in ("float32", "float64"):
                torch.testing.assert_close(again, fetched)
            else:
                # A value that is rounded to 16 bits lies beside its level, and seldom goes to the next level.
                assert bool(((again - fetched).abs() <= values.abs().max() / (2 ** (bits - 1) - 1) * 1.01).all())
                assert int((again != fetched).sum()) <= 0.1 * n + 3
    values[n // 2] = torch.nan
    fetched = fetch_quantised(values, how, 7, 3)
    assert fetched.isnan().nonzero().tolist() == [[n // 2]]  # NaN stays, so that it is found


def test_fetched(interpreted: Callable[..., Any]) -> None:
    interpreted(fetched_is_what_is_sent, "cpu")


def test_bytes(interpreted: Callable[..., Any]) -> None:
    interpreted(bytes_are_native, "cpu")


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_euclidean_scale_is_as_native(bits: Any) -> None:
    """Against the result of a group of one rank; the buckets of a result are numbered from 2^63 on."""
    with sky.init() as comm:
        for call, bucket in enumerate([1, 15, 64, 1000]):
            values = drawn(random.Random(call), "normal", 3000, torch.float32)
            how = sky.Quantize(bits, bucket, seed=5)
            theirs = comm.allreduce(values.numpy(), quantize=how)
            packed, _ = plain.quantise(values, how, form.start_of(5, call, 0, 1 << 63))
            assert_same(plain.dequantise(packed, how, 3000, torch.float32)[0], torch.from_numpy(theirs))


@pytest.mark.parametrize("scale", ["max", "l2"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_expectation_and_variance(bits: Any, scale: Any) -> None:
    """Over 4,000 draws of one bucket: each bucket number gives another draw. The kernels draw the same numbers."""
    d, times, s = 60, 4000, 2 ** (bits - 1) - 1
    v = drawn(random.Random(bits), "normal", d, torch.float64).to(torch.float32).to(torch.float64)
    how = sky.Quantize(bits, d, scale=scale, seed=1)
    packed, _ = plain.quantise(v.repeat(times), how, form.start_of(1, 0, 0, 0))
    error = plain.dequantise(packed, how, d * times, torch.float64)[0].reshape(times, d) - v
    step = (v.norm() if scale == "l2" else v.abs().max()) / s
    assert error.abs().max() < step * (1 + 1e-6)
    # A standard deviation is half a step at most.
    assert (error.mean(0).abs() < 5 * step / 2 / times**0.5).all()
    squares = (error**2).sum(1)
    bound = min(d / s**2, d**0.5 / s) * (v**2).sum()
    assert squares.mean() < bound + 5 * squares.std() / times**0.5
    # No two places and no two draws are correlated.
    correlation = torch.corrcoef(torch.cat([error, error.roll(1, 0)], 1)[:, error.std(0).repeat(2) > 0].T)
    assert (correlation - torch.eye(len(correlation), dtype=torch.float64)).abs().max() < 6 / times**0.5


def test_factor_is_a_quotient() -> None:
    """The factor is a true quotient. torch would compute number / tensor as a product with a reciprocal."""
    top = np.float32(127 * 2**24)
    scales = drawn(random.Random(2), "normal", 20_000, torch.float32).abs()
    quotients = top / scales.numpy()
    quotients = np.where(scales.numpy() * quotients > top, np.nextafter(quotients, np.float32(0)), quotients)
    np.testing.assert_array_equal(plain._level_factors(scales, 127)[1], quotients)


def refusals_of_numbers() -> None:
    how = sky.Quantize(4, 8)
    for bad in (torch.nan, torch.inf, -torch.inf):
        for scale in ("l2", "max"):
            how = sky.Quantize(4, 8, scale=scale)
            values = torch.ones(20)
            values[9] = bad
            with pytest.raises(BadInput, match=r"values\[9\] = .*(nan|inf)"):
                gpu.quantise(values, how)
            packed = gpu.quantise(values, how, check=False)
            with pytest.raises(BadInput, match="scale"):
                gpu.dequantise(packed, how, 20)
            fetched = gpu.dequantise(packed, how, 20, check=False)
            assert fetched.isnan().tolist() == [False] * 8 + [True] * 8 + [False] * 4
    with pytest.raises(BadInput, match=r"values\[0\]"):  # finite, but not as float32
        gpu.quantise(torch.full((1,), 1e300, dtype=torch.float64), how)
    packed = torch.tensor([0, 0, 128, 191, 0], dtype=torch.uint8)  # a scale of -1
    with pytest.raises(BadInput, match="negative"):
        gpu.dequantise(packed, how, 2)
    largest = torch.finfo(torch.float32).max
    for values in (torch.full((10,), largest), torch.full((10,), 2.0**-149), torch.zeros(10)):
        for scale in ("l2", "max"):
            how = sky.Quantize(8, 8, scale=scale)
            packed = gpu.quantise(values, how)
            assert_same(packed, plain.quantise(values, how, form.start_of(0, 0, 0, 0))[0])


def largest_stays_in_its_code() -> None:
    """The largest magnitude gets the last code, even if rounded above it and with a random number close to one."""
    top = torch.tensor(127.0 * 2**24)
    scales = 1 + torch.arange(1, 1000, dtype=torch.float32) / 1000
    scale = next(each for each in scales if each * (top / each) > top)
    highest = lambda start: int((plain._random(start, 1, 4096, scale.device) >> 8).amax())  # noqa: E731
    call = next(call for call in range(2000) if highest(form.start_of(0, call, 0, 0)) >= 2**24 - 128)
    packed = gpu.quantise(scale.repeat(4096), sky.Quantize(8, 4096, scale="max"), call=call)
    theirs, _ = plain.quantise(scale.repeat(4096), sky.Quantize(8, 4096, scale="max"), form.start_of(0, call, 0, 0))
    assert packed[4:].eq(127).all() and theirs[4:].eq(127).all()


def refusals_of_arguments() -> None:
    ones, how = torch.ones(4), sky.Quantize(4)
    for k, bucket in ((0, 4), (5, 4), (1, 0)):
        with pytest.raises(BadInput, match="bucket"):
            gpu.take_topk(ones.clone(), ones, k, bucket)
    for residual in (torch.ones(5), ones.double(), torch.ones(2, dtype=torch.float64)):
        with pytest.raises(BadInput, match=r"the residual has \d values"):
            gpu.take_topk(residual, ones, 1)
    with pytest.raises(BadInput, match="velocity"):
        gpu.take_topk(ones.clone(), ones, 1, velocity=torch.ones(3))
    with pytest.raises(BadInput, match="int32"):
        gpu.take_topk(ones.int(), ones.int(), 1)
    with pytest.raises(BadInput, match="contiguous"):
        gpu.take_topk(torch.ones(4, 2)[:, 0], ones, 1)
    with pytest.raises(BadInput, match="rank"):
        gpu.quantise(ones, how, rank=-1)
    with pytest.raises(BadInput, match="6 bytes hold 4 values, not 4"):
        gpu.dequantise(torch.zeros(4, dtype=torch.uint8), how, 4)
    with pytest.raises(BadInput, match="int8"):
        gpu.dequantise(torch.zeros(6, dtype=torch.uint8), how, 4, torch.int8)
    with pytest.raises(BadInput, match="meta"):
        gpu.take_topk(ones.to("meta"), ones.to("meta"), 1)


def edges() -> None:
    """No values, buckets larger than the input, and buckets that only plain torch supports."""
    none, how = torch.zeros(0, dtype=torch.float16), sky.Quantize(4)
    indices, values = gpu.take_topk(none, none, 1)
    assert (indices.dtype, values.dtype, len(indices), len(values)) == (torch.int32, torch.float16, 0, 0)
    assert len(gpu.quantise(none, how)) == len(gpu.dequantise(none.to(torch.uint8), how, 0)) == 0
    residual = torch.zeros(5)
    indices, values = gpu.take_topk(residual, torch.tensor([1.0, -9.0, 2.0, 3.0, 0.0]), 2, 2**31)
    assert (indices.tolist(), values.tolist(), residual.tolist()) == ([1, 3], [-9.0, 3.0], [1.0, 0.0, 2.0, 0.0, 0.0])
    many = drawn(random.Random(3), "normal", 20_000, torch.float32)
    residual, theirs = torch.zeros_like(many), torch.zeros_like(many)
    for one, other in zip(gpu.take_topk(residual, many, 9, 15_000), native_topk(theirs, many, 9, 15_000), strict=True):
        assert_same(one, other)
    assert_same(residual, theirs)
    assert gpu.take_topk(residual.requires_grad_(), many.requires_grad_(), 1, 100)[1].requires_grad is False
    assert compress._kernels("topk", 15_000) is plain is not compress._kernels("topk", 512)


@pytest.mark.parametrize("check", [largest_stays_in_its_code, refusals_of_numbers, refusals_of_arguments, edges])
def test_interpreted(interpreted: Callable[..., Any], check: Callable[[], None]) -> None:
    interpreted(check)


def test_tensors_of_the_cpu_are_refused() -> None:
    for call in (
        lambda: gpu.take_topk(torch.ones(2), torch.ones(2), 1),
        lambda: gpu.quantise(torch.ones(2), sky.Quantize()),
        lambda: gpu.dequantise(torch.ones(2, dtype=torch.uint8), sky.Quantize(), 1),
    ):
        with pytest.raises(BadInput, match="CPU"):
            call()


def test_triton_is_imported_late() -> None:
    code = "import sys, skyphos.torch.gpu; sys.exit('triton' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "skyphos.torch.gpu.jit", raising=False)
    compress._jit.cache_clear()
    try:
        assert compress._kernels("topk", 512) is plain
    finally:
        compress._jit.cache_clear()


def compiles(architecture: int) -> dict[str, int]:
    """Compile all kernels for a GPU, as calls launch them; return their number and counts of undesired instructions."""
    from triton import compile as compiled
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from skyphos.torch.gpu import jit, quantisation, topk

    counts = {"kernels": 0, "fused": 0, "flushed": 0, "approximate": 0}
    names = {getattr(torch, name): f"*{short}" for name, short in (("float32", "fp32"), ("bfloat16", "bf16"))}
    names |= {torch.float16: "*fp16", torch.float64: "*fp64", torch.int32: "*i32", torch.uint8: "*u8"}

    def launch(function: Any, programs: int, on: Any, width: int, *args: Any, **constants: Any) -> None:
        signature = dict.fromkeys(constants, "constexpr")
        aligned = {}
        for place, (name, value) in enumerate(zip(function.arg_names, args, strict=False)):
            if isinstance(value, torch.Tensor):
                signature[name], aligned[(place,)] = names[value.dtype], [["tt.divisibility", 16]]
            else:
                signature[name] = "i64" if abs(value or 0) >> 31 else "i32"
            if value is None or (isinstance(value, int) and value == 1):
                signature[name], constants[name] = "constexpr", value
        signature = {name: signature[name] for name in function.arg_names}
        source = ASTSource(function, signature, constants, aligned)
        target = GPUTarget("cuda", architecture, 32)
        code = compiled(source, target=target, options=jit.options_of(width)).asm["ptx"]
        counts["kernels"] += 1
        for kind, texts in (("fused", ["fma."]), ("flushed", [".ftz"]), ("approximate", [".approx", "div.full"])):
            counts[kind] += sum(code.count(text) for text in texts)

    topk.launch = quantisation.launch = launch
    for dtype in DTYPES:
        ones = torch.ones(3000, dtype=dtype)
        topk.take_topk(ones, ones, 4, 32)
        topk.take_topk(ones, ones, 1, 1000)
        topk.take_topk(ones, ones, 4, 512, velocity=ones, scale=0.5)
        for scale, n in (("max", 3000), ("l2", 3000), ("max", 1)):
            packed, _ = quantisation.quantise(ones[:n], sky.Quantize(4, scale=scale), 1 << 63)
            quantisation.dequantise(packed, sky.Quantize(4), n, dtype)
    return counts


@pytest.mark.parametrize("architecture", [80, 90])
def test_compiled(tmp_path: Any, architecture: int) -> None:
    """Products and sums are rounded one by one, small numbers kept, quotients and roots exact: as on the CPU."""
    pytest.importorskip("triton.compiler", reason="Triton is not installed")
    with one_process({"TRITON_CACHE_DIR": str(tmp_path)}) as run:
        assert run(compiles, architecture) == {"kernels": 36, "fused": 0, "flushed": 0, "approximate": 0}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64"])
def test_on_a_gpu(name: str, kind: str) -> None:
    topk_is_as_native("cuda", name, kind)
    topk_is_as_plain("cuda", name, kind)
    quantised_is_as_native("cuda", name, kind)
    bytes_are_native("cuda")
