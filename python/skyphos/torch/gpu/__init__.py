"""Compression of gradients on the GPU they are on: top-k with error feedback, and quantisation.

A dense gradient never leaves the device; what does is a few values of each bucket, or a few bits of each value. The
results are those of :class:`skyphos.TopK` and :class:`skyphos.Quantize` on the CPU, to the bit.

::

    residual = torch.zeros_like(gradient)
    indices, values = gpu.take_topk(residual, gradient, k=4, bucket=512)      # nothing waits for the device
    packed = gpu.quantise(values, sky.Quantize(bits=4, scale="max"), call=step, rank=rank)

The kernels are Triton's (``topk.py``, ``quantisation.py``), which is imported by the first call that needs it. Where
there is none, and for buckets that do not fit a program's registers, plain torch does the same in more passes
(``plain.py``).
"""

from __future__ import annotations

from .compress import dequantise, quantise, take_topk
from .form import quantised_bytes

__all__ = ["dequantise", "quantise", "quantised_bytes", "take_topk"]
