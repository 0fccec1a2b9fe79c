"""Selection of the values that a rank sends: the largest of each compressed layer, and all of the other layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ... import _skyphos as native
from ...collectives.quantize import Quantize
from ...errors import BadInput
from .. import gpu
from ..backend.tensors import as_numbers, of_numbers
from .layout import Layout, pack, unpack

__all__ = [
    "Selection",
    "describe_non_finite",
    "describe_non_finite_row",
    "fetch_quantised",
    "first_non_finite",
    "put_back",
    "select",
]

#: Advice for gradients with NaN or infinity.
_REMEDY = 'nonfinite="skip" leaves such steps out on all ranks; with a GradScaler say nonfinite="pass", grad_scaler=it'


@dataclass
class Selection:
    """The values that a rank sends of its share of a vector, in host memory.

    Attributes
    ----------
    indices, values : array
        The chosen values of compressed layers.
    dense : torch.Tensor
        The layers that are not compressed, packed.
    non_finite : str or None
        Describes a NaN or infinity that was found. Then nothing is to be sent, and residual and velocity are as before
        but for rounding, with 0 where the sum was not finite.
    """

    indices: npt.NDArray[np.uint32]
    values: npt.NDArray[Any]
    dense: torch.Tensor
    non_finite: str | None = field(default=None)


def select(
    layout: Layout,
    share: torch.Tensor,
    layers: list[native.TopkLayer],
    factor: float | None,
    momentum: float | None,
    fetch: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.cpu,
) -> Selection:
    """Add gradient times factor to the layout's residual, and take the values to send out of the sum.

    ``fetch`` copies the layers that are not compressed to host memory.
    """
    packed = pack(share, layout.dense)
    if factor is not None:
        packed = packed * factor
    is_corrected = layout.velocity is not None and momentum is not None and bool(layout.dense)
    if is_corrected:
        # The optimizer has no momentum, so layers that are not compressed need it here.
        packed = pack(layout.velocity, layout.dense).mul_(momentum).add_(packed)
    dense = fetch(packed)
    if not layers:
        indices, values = np.empty(0, np.uint32), as_numbers(dense[:0])
        bad = None
    elif share.is_cuda:
        indices, values, bad = _select_on_gpu(layout, share, layers, factor, momentum)
    else:
        assert layout.residual is not None
        velocity = None if layout.velocity is None else as_numbers(layout.velocity)
        residual, gradient = as_numbers(layout.residual), as_numbers(share)
        indices, values, bad = native.topk_take_layers(
            residual, gradient, layers, factor, velocity, 0.0 if momentum is None else momentum
        )
    non_finite = None
    if bad is not None:
        non_finite = describe_non_finite(layout, layout.share.start + int(indices[bad]), values[bad])
    elif (at := first_non_finite(dense)) is not None:
        non_finite = describe_non_finite(layout, layout.share.start + _unpacked_index(layout.dense, at), dense[at])
    if non_finite is None:
        if is_corrected:
            unpack(packed, layout.dense, layout.velocity)
        return Selection(indices, values, dense)
    if layers:
        put_back(layout.residual, indices, values)
        _undo_addition(layout, share, factor, momentum)
    return Selection(indices[:0], values[:0], torch.zeros_like(dense), non_finite)


def fetch_quantised(packed: torch.Tensor, how: Quantize, call: int, rank: int) -> torch.Tensor:
    """Copy values of a GPU to host memory, quantised before they leave the GPU.

    ``how`` scales by the largest magnitude. So the allreduce, which quantises again, leaves the values as they are (but
    for the unbiased rounding of 16-bit types).
    """
    values = torch.empty(packed.numel(), dtype=packed.dtype)
    quantised = gpu.quantise(packed, how, call=call, rank=rank, check=False).cpu()
    try:
        native.dequantise(quantised.numpy(), how._native(), as_numbers(values))
    except BadInput:
        return packed.cpu()  # has a NaN or infinity, which the caller looks for
    return values


def _select_on_gpu(
    layout: Layout, share: torch.Tensor, layers: list[native.TopkLayer], factor: float | None, momentum: float | None
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[Any], int | None]:
    """Select by the GPU's kernels, so that only chosen values leave the GPU."""
    assert layout.residual is not None
    chosen = [(torch.empty(0, dtype=torch.int32, device=share.device), share[:0])]
    has_gradient = torch.stack([share[layer.start : layer.stop].any() for layer in layers]).tolist()
    for layer, is_used in zip(layers, has_gradient, strict=True):
        if not is_used:
            continue  # a layer without gradient sends nothing of its residual either
        part = slice(layer.start, layer.stop)
        velocity = None if layout.velocity is None else layout.velocity[part]
        indices, values = gpu.take_topk(
            layout.residual[part],
            share[part],
            layer.k,
            layer.bucket,
            velocity=velocity,
            momentum=0.0 if momentum is None else momentum,
            scale=1.0 if factor is None else factor,
        )
        chosen.append((indices + layer.start, values))
    indices, values = torch.cat([a for a, _ in chosen]), torch.cat([b for _, b in chosen])
    fetched = values.cpu()
    bad = (~torch.isfinite(fetched)).nonzero()
    return indices.cpu().numpy().astype(np.uint32), as_numbers(fetched), int(bad[0]) if len(bad) else None


def first_non_finite(values: torch.Tensor) -> int | None:
    """The index of the first NaN or infinity, or None."""
    # A finite sum proves that there is none. An infinite one proves nothing: large finite values overflow too.
    if bool(torch.isfinite(values.sum())):
        return None
    bad = (~torch.isfinite(values)).nonzero()
    return int(bad[0]) if len(bad) else None


def describe_non_finite(layout: Layout, index: int, value: Any) -> str:
    """Error text for a gradient that is not finite, at an index of the vector."""
    name, index = layout.name_at(index)
    return f"the gradient of {name} is {float(value)} at its index {index} ({_REMEDY})"


def describe_non_finite_row(name: str, gradient: torch.Tensor, index: int) -> str:
    """Error text for a sparse gradient that is not finite, at an index of its flattened values."""
    values = gradient._values()
    row = gradient._indices()[:, index // values[0].numel()].tolist()
    value = float(values.reshape(-1)[index])
    return f"the gradient of {name} is {value} in its row {', '.join(map(str, row))} ({_REMEDY})"


def _unpacked_index(slices: list[slice], index: int) -> int:
    return int(np.concatenate([np.arange(one.start, one.stop) for one in slices])[index])


def _undo_addition(layout: Layout, share: torch.Tensor, factor: float | None, momentum: float | None) -> None:
    """Subtract the gradient from residual and velocity again, and set values that are not finite to 0."""
    residual, velocity = layout.residual, layout.velocity
    assert residual is not None
    for layer in layout.sparse:
        span = slice(layer.start, layer.stop)
        if not bool(share[span].any()):
            continue  # nothing was added
        scale = 1.0 if factor is None else factor
        if velocity is None or not momentum:
            residual[span].sub_(share[span], alpha=scale)
        else:
            residual[span].sub_(velocity[span])
            velocity[span].sub_(share[span], alpha=scale).div_(momentum)
    for values in (residual, velocity):
        if values is not None:
            values.masked_fill_(~torch.isfinite(values), 0.0)


def put_back(residual: torch.Tensor, indices: npt.NDArray[np.uint32], values: npt.NDArray[Any]) -> None:
    """Add values to the residual that they were taken from."""
    at = torch.from_numpy(indices.astype(np.int64)).to(residual.device)
    residual.index_add_(0, at, of_numbers(values, residual.dtype).to(residual.device))
