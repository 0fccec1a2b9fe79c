"""Entry points of GPU compression: they check arguments and choose between the Triton kernels and plain torch."""

from __future__ import annotations

import importlib
import os
from functools import cache
from operator import index
from types import ModuleType

import torch

from ...collectives.quantize import Quantize
from ...errors import BadInput
from . import form, plain

__all__ = ["dequantise", "quantise", "take_topk"]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def take_topk(
    residual: torch.Tensor,
    gradient: torch.Tensor,
    k: int,
    bucket: int = 512,
    *,
    velocity: torch.Tensor | None = None,
    momentum: float = 0.9,
    scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add a gradient to the residual, and take the k largest values of each bucket out of it.

    Parameters
    ----------
    residual : torch.Tensor of float16, bfloat16, float32 or float64
        Contiguous, on a GPU. Changed in place to the sum, with zeros at the chosen indices. Start with zeros.
    gradient : torch.Tensor
        Contiguous; the same number of values, dtype and device. Not changed.
    k : int
        Number of values to choose of each bucket, 1 to ``bucket``.
    bucket : int, default 512
        Number of consecutive values; the last bucket may have fewer.
    velocity : torch.Tensor, optional
        Momentum correction (Deep Gradient Compression): ``velocity = momentum * velocity + gradient`` is added instead
        of the gradient, and becomes 0 at the chosen indices. Changed in place; the same size, dtype and device.
    momentum : float, default 0.9
        Used with ``velocity`` only.
    scale : float, default 1
        Factor of the gradient.

    Returns
    -------
    indices : torch.Tensor of int32, shape (count,)
        Indices of the flattened gradient, ascending.
    values : torch.Tensor of the gradient's dtype, shape (count,)
        The values there. Both are new, on the same device; ``count`` is ``k`` for each bucket, or fewer for a short
        last one.

    Raises
    ------
    BadInput
        Tensors on the CPU (:class:`skyphos.TopK` takes those) or on a device other than CUDA's or ROCm's; tensors that
        do not fit each other; k below 1 or above the bucket; 2^31 values or more.

    Notes
    -----
    Of equal magnitudes the one with the lower index is chosen. NaN is larger than all numbers. Products and
    sums are rounded to the dtype, and so are ``momentum`` and ``scale``: 0.9 is 0.8984375 in bfloat16. The call does
    not wait for the device. SparCML (Renggli et al. 2019), Algorithm 1; Lin et al. 2018, section 3.2.

    Examples
    --------
    >>> import torch
    >>> from skyphos.torch import gpu
    >>> if torch.cuda.is_available():
    ...     residual = torch.zeros(4, device="cuda")
    ...     indices, values = gpu.take_topk(residual, torch.tensor([1.0, 2.0, -5.0, 4.0]).cuda(), k=1, bucket=2)
    ...     assert indices.tolist() == [1, 2] and values.tolist() == [2.0, -5.0]
    ...     assert residual.tolist() == [1.0, 0.0, 0.0, 4.0]
    """
    _check(gradient, "gradient")
    for name, tensor in (("residual", residual), ("velocity", velocity)):
        if tensor is not None:
            _check(tensor, name)
            _check_fits(name, tensor, gradient)
    if not 1 <= index(k) <= index(bucket):
        raise BadInput(f"k must be from 1 to the bucket's {bucket} values, not {k}")
    n = gradient.numel()
    if n >= 1 << 31:
        raise BadInput(f"{n} values are 2^31 or more, too many for int32 indices: take them in parts")
    if n == 0:
        return gradient.new_empty(0, dtype=torch.int32), gradient.new_empty(0)
    k, bucket = min(k, n), min(bucket, n)
    flat = None if velocity is None else velocity.detach().view(-1)
    momentum, scale = (torch.tensor(factor, dtype=gradient.dtype).item() for factor in (momentum, scale))
    kernels = _kernels("topk", bucket)
    chosen: tuple[torch.Tensor, torch.Tensor] = kernels.take_topk(
        residual.detach().view(-1), gradient.detach().view(-1), k, bucket, velocity=flat, momentum=momentum, scale=scale
    )
    return chosen


def quantise(
    values: torch.Tensor, how: Quantize, *, call: int = 0, rank: int = 0, first_bucket: int = 0, check: bool = True
) -> torch.Tensor:
    """Quantise values stochastically (unbiased), to the same bytes as the native kernel.

    Parameters
    ----------
    values : torch.Tensor of float16, bfloat16, float32 or float64
        Contiguous, on a GPU. Not changed.
    how : Quantize
        Bits, bucket, scale and seed. ``where`` is not used.
    call, rank, first_bucket : int
        Select the random numbers; other calls, ranks and buckets have independent ones. Below 2^64, 2^32 and 2^64.
    check : bool, default True
        Check that all values are finite as float32, which waits for the device. Without the check a bucket with another
        value gets the scale NaN, which :func:`dequantise` refuses.

    Returns
    -------
    torch.Tensor of uint8
        Of length :func:`quantised_bytes`, on the same device.

    Raises
    ------
    BadInput
        As :func:`take_topk`; with ``check`` also a value that is not finite as float32.

    Examples
    --------
    >>> import torch, skyphos as sky
    >>> from skyphos.torch import gpu
    >>> if torch.cuda.is_available():
    ...     packed = gpu.quantise(torch.tensor([127.0, -3.0]).cuda(), sky.Quantize(bits=8, scale="max"))
    ...     assert packed.tolist() == [0, 0, 254, 66, 127, 253]
    """
    _check(values, "values")
    for name, number, bits in (("call", call, 64), ("rank", rank, 32), ("first_bucket", first_bucket, 64)):
        if not 0 <= index(number) < 1 << bits:
            raise BadInput(f"{name} must be from 0 to 2^{bits} - 1, not {number}")
    n = values.numel()
    if n == 0:
        return values.new_empty(0, dtype=torch.uint8)
    flat = values.detach().view(-1)
    kernels = _kernels("quantisation", min(how.bucket, n))
    packed, bad = kernels.quantise(flat, how, form.start_of(how.seed, call, rank, first_bucket))
    if check and bool(bad):
        index_of_bad = int((~torch.isfinite(flat.to(torch.float32))).nonzero()[0])
        raise BadInput(
            f"values[{index_of_bad}] = {flat[index_of_bad].item()} cannot be quantised: it is not finite as float32"
        )
    return packed


def dequantise(
    packed: torch.Tensor, how: Quantize, n: int, dtype: torch.dtype = torch.float32, *, check: bool = True
) -> torch.Tensor:
    """Expand quantised values.

    Parameters
    ----------
    packed : torch.Tensor of uint8
        n values quantised by :func:`quantise`, or by another rank's native kernel. Contiguous, on a GPU.
    how : Quantize
        The same settings.
    n : int
        Number of values.
    dtype : torch.dtype
        float16, bfloat16, float32 or float64.
    check : bool, default True
        Check that all scales are numbers, which waits for the device. Without the check a bucket may become NaN.

    Returns
    -------
    torch.Tensor of dtype, shape (n,)
        New, on the same device.

    Raises
    ------
    BadInput
        A wrong number of bytes, another dtype, or a device that :func:`take_topk` refuses; with ``check`` also a scale
        that is negative or not finite.

    Examples
    --------
    >>> import torch, skyphos as sky
    >>> from skyphos.torch import gpu
    >>> how = sky.Quantize(bits=8, scale="max")
    >>> if torch.cuda.is_available():
    ...     packed = gpu.quantise(torch.tensor([127.0, -3.0]).cuda(), how)
    ...     assert gpu.dequantise(packed, how, 2).tolist() == [127.0, -3.0]
    """
    _check(packed, "packed", (torch.uint8,))
    if dtype not in _FLOATS:
        raise BadInput(f"values are float16, bfloat16, float32 or float64, not {dtype}")
    if packed.numel() != form.quantised_bytes(index(n), how):
        raise BadInput(f"{form.quantised_bytes(n, how)} bytes hold {n} values, not {packed.numel()}")
    if n == 0:
        return packed.new_empty(0, dtype=dtype)
    kernels = _kernels("quantisation", min(how.bucket, n))
    values, bad = kernels.dequantise(packed.view(-1), how, n, dtype)
    if check and bool(bad):
        raise BadInput("quantised values have a scale that is negative or not finite")
    return values


def _kernels(what: str, bucket: int) -> ModuleType:
    """The module of Triton kernels, or plain torch if Triton is missing or a program cannot hold the bucket."""
    jit = _jit()
    return plain if jit is None or bucket > jit.MAX_BUCKET else importlib.import_module(f"{__package__}.{what}")


@cache
def _jit() -> ModuleType | None:
    """The module that imports Triton, or None if Triton is missing."""
    try:
        return importlib.import_module(f"{__package__}.jit")
    except ImportError:
        return None


def _check(tensor: torch.Tensor, name: str, dtypes: tuple[torch.dtype, ...] = _FLOATS) -> None:
    device = tensor.device
    # Triton's interpreter runs kernels on the CPU.
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type == "cpu" and not interpreted:
        raise BadInput(f"{name} is on the CPU: skyphos.TopK and skyphos.Quantize compress tensors there")
    if device.type not in ("cpu", "cuda"):
        raise BadInput(f"{name} is on {device}: compression is for GPUs of CUDA and ROCm, so move it to the CPU")
    if tensor.dtype not in dtypes:
        named = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise BadInput(f"{name} must be of {named}, not {str(tensor.dtype).removeprefix('torch.')}")
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        raise BadInput(f"{name} must be contiguous: use .contiguous()")


def _check_fits(name: str, tensor: torch.Tensor, gradient: torch.Tensor) -> None:
    ours, theirs = (f"{t.numel()} values of {t.dtype} on {t.device}" for t in (tensor, gradient))
    if ours != theirs:
        raise BadInput(f"the {name} has {ours}, the gradient {theirs}")
