"""What of a vector is to be sent: the chosen values of layers that are compressed, all of the others."""

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
from .layout import Layout, gathered, spread

__all__ = ["Selection", "fetch_quantised", "first_odd", "put_back", "select", "words", "words_of_row"]

#: What may be done about what is not finite.
_REMEDY = 'nonfinite="skip" leaves such steps out on all ranks; with a GradScaler say nonfinite="pass", grad_scaler=it'

#: Start, end, k and bucket of a layer.
Span = tuple[int, int, int, int]


@dataclass
class Selection:
    """What one rank sends of a vector.

    Attributes
    ----------
    places, picked : array
        Where the chosen values are, and they, in the processor's memory.
    dense : torch.Tensor
        The layers that travel whole, one after the other, in the processor's memory.
    odd : str or None
        A NaN or an infinity that was found, in words. Residual and velocity are then as they were before, but for
        rounding, and 0 where the sum was not finite; nothing is to be sent.
    """

    places: npt.NDArray[np.uint32]
    picked: npt.NDArray[Any]
    dense: torch.Tensor
    odd: str | None = field(default=None)


def select(
    layout: Layout,
    share: torch.Tensor,
    spans: list[Span],
    factor: float | None,
    momentum: float | None,
    fetch: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.cpu,
) -> Selection:
    """Add the gradient, times the factor, to the layout's residual, and take out of the sum what is to be sent.

    ``fetch`` brings what travels whole to the processor's memory.
    """
    whole = gathered(share, layout.dense)
    if factor is not None:
        whole = whole * factor
    corrected = layout.velocity is not None and momentum is not None and bool(layout.dense)
    if corrected:
        # Without an optimizer's momentum these layers need theirs too.
        whole = gathered(layout.velocity, layout.dense).mul_(momentum).add_(whole)
    dense = fetch(whole)
    if not spans:
        places, picked = np.empty(0, np.uint32), as_numbers(dense[:0])
        odd = None
    elif share.is_cuda:
        places, picked, odd = _on_gpu(layout, share, spans, factor, momentum)
    else:
        assert layout.residual is not None
        velocity_of = None if layout.velocity is None else as_numbers(layout.velocity)
        residual, gradient = as_numbers(layout.residual), as_numbers(share)
        places, picked, odd = native.topk_take_layers(
            residual, gradient, spans, factor, velocity_of, 0.0 if momentum is None else momentum
        )
    said = None
    if odd is not None:
        said = words(layout, layout.share.start + int(places[odd]), picked[odd])
    elif (at := first_odd(dense)) is not None:
        said = words(layout, layout.share.start + _place(layout.dense, at), dense[at])
    if said is None:
        if corrected:
            spread(whole, layout.dense, layout.velocity)
        return Selection(places, picked, dense)
    if spans:
        put_back(layout.residual, places, picked)
        _undo(layout, share, factor, momentum)
    return Selection(places[:0], picked[:0], torch.zeros_like(dense), said)


def fetch_quantised(whole: torch.Tensor, how: Quantize, call: int, rank: int) -> torch.Tensor:
    """Values of a GPU in the processor's memory, quantised before they leave it.

    With the largest magnitude for a scale: then quantising them again, as the allreduce does with what each rank has,
    leaves them as they are (but for what 16 bits round away, unbiased).
    """
    values = torch.empty(whole.numel(), dtype=whole.dtype)
    packed = gpu.quantise(whole, how, call=call, rank=rank, check=False).cpu()
    try:
        native.dequantise(packed.numpy(), (how.bits, how.bucket), as_numbers(values))
    except BadInput:
        return whole.cpu()  # what is not finite is looked for there
    return values


def _on_gpu(
    layout: Layout, share: torch.Tensor, spans: list[Span], factor: float | None, momentum: float | None
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[Any], int | None]:
    """By the kernels of the GPU: what leaves it is what was chosen."""
    assert layout.residual is not None
    found = [(torch.empty(0, dtype=torch.int32, device=share.device), share[:0])]
    there = torch.stack([share[start:stop].any() for start, stop, _, _ in spans]).tolist()
    for (start, stop, k, bucket), any_gradient in zip(spans, there, strict=True):
        if not any_gradient:
            continue  # what its residual holds waits
        gradient = share[start:stop]
        velocity = None if layout.velocity is None else layout.velocity[start:stop]
        places, picked = gpu.take_topk(
            layout.residual[start:stop],
            gradient,
            k,
            bucket,
            velocity=velocity,
            momentum=0.0 if momentum is None else momentum,
            scale=1.0 if factor is None else factor,
        )
        found.append((places + start, picked))
    places, picked = torch.cat([a for a, _ in found]), torch.cat([b for _, b in found])
    came = picked.cpu()
    odd = (~torch.isfinite(came)).nonzero()
    return places.cpu().numpy().astype(np.uint32), as_numbers(came), int(odd[0]) if len(odd) else None


def first_odd(numbers: torch.Tensor) -> int | None:
    """The place of the first that is not finite."""
    # Most often there is none, and the sum tells; a sum of large numbers may be infinite without one.
    if bool(torch.isfinite(numbers.sum())):
        return None
    found = (~torch.isfinite(numbers)).nonzero()
    return int(found[0]) if len(found) else None


def words(layout: Layout, at: int, value: Any) -> str:
    """What is said of a gradient that is not finite, at a place of the vector."""
    name, at = layout.name_at(at)
    return f"the gradient of {name} is {float(value)} at its place {at} ({_REMEDY})"


def words_of_row(name: str, gradient: torch.Tensor, odd: int) -> str:
    """The same of a sparse gradient's values, counted one after the other."""
    values = gradient._values()
    row = gradient._indices()[:, odd // values[0].numel()].tolist()
    value = float(values.reshape(-1)[odd])
    return f"the gradient of {name} is {value} in its row {', '.join(map(str, row))} ({_REMEDY})"


def _place(slices: list[slice], at: int) -> int:
    return int(np.concatenate([np.arange(one.start, one.stop) for one in slices])[at])


def _undo(layout: Layout, share: torch.Tensor, factor: float | None, momentum: float | None) -> None:
    """Residual and velocity as they were before, but for rounding; 0 where that cannot be known."""
    residual, velocity = layout.residual, layout.velocity
    assert residual is not None
    for layer in layout.sparse:
        there = slice(layer.start, layer.stop)
        if not bool(share[there].any()):
            continue  # nothing was added
        scale = 1.0 if factor is None else factor
        if velocity is None or not momentum:
            residual[there].sub_(share[there], alpha=scale)
        else:
            residual[there].sub_(velocity[there])
            velocity[there].sub_(share[there], alpha=scale).div_(momentum)
    for held in (residual, velocity):
        if held is not None:
            held.masked_fill_(~torch.isfinite(held), 0.0)


def put_back(residual: torch.Tensor, places: npt.NDArray[np.uint32], picked: npt.NDArray[Any]) -> None:
    """Chosen values to the residual again."""
    at = torch.from_numpy(places.astype(np.int64)).to(residual.device)
    residual.index_add_(0, at, of_numbers(picked, residual.dtype).to(residual.device))
