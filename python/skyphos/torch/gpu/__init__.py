"""Compression of gradients on a GPU: top-k with error feedback, and quantisation.

Only a few values of each bucket, or a few bits of each value, leave the GPU. The results are those of
:class:`skyphos.TopK` and :class:`skyphos.Quantize` on the CPU, to the bit.

::

    residual = torch.zeros_like(gradient)
    indices, values = gpu.take_topk(residual, gradient, k=4, bucket=512)      # nothing waits for the device
    packed = gpu.quantise(values, sky.Quantize(bits=4, scale="max"), call=step, rank=rank)

The kernels are written in Triton (``topk.py``, ``quantisation.py``), which the first call imports. Without Triton, and
for buckets that do not fit a program's registers, plain torch does the same in more passes (``plain.py``).
"""

from __future__ import annotations

from .compress import dequantise, quantise, take_topk
from .form import quantised_bytes

__all__ = ["dequantise", "quantise", "quantised_bytes", "take_topk"]
