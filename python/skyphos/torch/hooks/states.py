"""Compression of gradients for data-parallel training: the states of the communication hooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal

import torch

from ...collectives.allreduce import SPARSE_ALGORITHMS
from ...collectives.quantize import Quantize, check_seed
from ...collectives.topk import check_feedback
from ...errors import BadInput
from ...inputs.arguments import as_one_of
from ...inputs.settings import whole
from .engine import Engine
from .layout import Layout
from .parameter_names import Choice, check_choice, chosen, of_name, patterns_of
from .selection import Selection, fetch_quantised, select

__all__ = ["QSGD", "TopK"]

#: Values that share a scale when chosen ones are quantised.
_QUANTISED_TOGETHER = 1024


class TopK(Engine):
    """Send each layer's largest gradients and keep the rest for the next step: state of :func:`topk_hook`.

    Of every ``bucket`` consecutive values of a layer the ``k`` of largest magnitude are sent, of the sum of gradient
    and residual; what is not sent is the residual. Layers are compressed and sent while backward goes on.

    Parameters
    ----------
    k : int or mapping from patterns of names to int or None, default 4
        Values chosen of each bucket; a mapping has it by layer (``{"*.weight_hh*": 8, "*": 4}``, the first pattern that
        fits; None or no pattern: the layer travels whole).
    bucket : int, default 512
        So many consecutive values of a layer; its last bucket may have fewer.
    bits : {2, 4, 8} or None
        Quantise what is sent, unbiased; values that are chosen share scales by the 1,024, their largest magnitude.
    feedback : bool or "quantised", default True
        True: values not chosen stay in the residual. "quantised": what quantisation changed too. False: no residual.
    levels : {2, 1}
        2: gradients of the ranks of a host are added up first, densely and in the host's memory; values are chosen of
        the sum, once a host, and only hosts exchange them; among ranks of one host alone nothing is then compressed. 1:
        each rank chooses.
    layers : patterns of names, or function of (name, parameter), optional
        Which layers are compressed; others travel whole. None: all.
    dense_below : int, default 1024
        Layers with fewer values travel whole, all of a bucket together.
    warmup : int, default 0
        Steps in which more is sent: the density falls in equal factors from the first on, to k / bucket after so many.
    momentum_correction : float, optional
        Momentum m of Lin et al. 2018, §3.2: what is added to the residual is u = m u + gradient, and u is cleared where
        values are sent. The optimizer must then have no momentum of its own.
    nonfinite : {"raise", "skip", "pass"}
        What a NaN or an infinity does: an error on all ranks that names rank and parameter; a step that all ranks leave
        out (see :meth:`guard`); or NaN in that bucket's result on all ranks, for a ``GradScaler`` to find. Then and
        with "skip" that bucket's gradient is dropped, and what others sent in the step goes back to their residuals.
    algorithm : str, default "auto"
        Of the sparse allreduce, as in :meth:`skyphos.Comm.allreduce`.
    seed : int, default 0
        Start of the random numbers of quantisation.
    grad_scaler : torch.amp.GradScaler, optional
        Gradients are multiplied by its scale: the residual then is without it, so that it may change. With
        ``nonfinite="pass"`` alone.
    process_group : ProcessGroup, optional
        Whose ranks share the model; of any backend. None: that of its
        ``DistributedDataParallel``, or else the default one.

    Raises
    ------
    BadInput
        Settings outside these. When gradients come, on all ranks: a NaN or an infinity; ranks whose models or settings
        differ (``Mismatch``); other dtypes than float16, bfloat16, float32, float64; devices but CPU and CUDA.

    Notes
    -----
    SparCML (Renggli et al. 2019), section 8.3 and Algorithm 2, but for two things: the residual has gradients, not
    gradients times the learning rate, and results are means over ranks, not sums. So the optimizer does with them what
    it does with those of dense training. :class:`DistributedOptimizer` is the algorithm to the letter.

    One state is of one model, whose parameters' names it goes by.

    A parameter whose gradient is zero everywhere on a rank (unused, or a rank that has joined) sends nothing there.
    Memory: a residual as large as the model (twice with ``momentum_correction``), shared by a host's ranks with
    ``levels=2``. Each rank has its own: save :meth:`state_dict` on all.

    Examples
    --------
    >>> import torch, torch.distributed as dist, skyphos.torch
    >>> dist.init_process_group("skyphos", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    >>> state = skyphos.torch.TopK(k=1, bucket=512)
    >>> state
    TopK(k=1, bucket=512, bits=None, feedback=True, warmup=0, momentum_correction=None, seed=0, levels=2)
    >>> model.register_comm_hook(state, skyphos.torch.topk_hook)
    >>> model(torch.ones(8, 64)).sum().backward()
    >>> int((model.module.weight.grad != 0).sum()), int((model.module.bias.grad != 0).sum())
    (8, 64)
    >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        k: int | Mapping[str, int | None] = 4,
        bucket: int = 512,
        bits: Literal[2, 4, 8] | None = None,
        *,
        feedback: bool | Literal["quantised"] = True,
        levels: Literal[1, 2] = 2,
        layers: Choice | None = None,
        dense_below: int = 1024,
        warmup: int = 0,
        momentum_correction: float | None = None,
        nonfinite: Literal["raise", "skip", "pass"] = "raise",
        algorithm: str = "auto",
        seed: int = 0,
        grad_scaler: Any = None,
        process_group: Any = None,
    ) -> None:
        bucket = whole(bucket, "bucket", 1, 2**32 - 1)
        for number in k.values() if isinstance(k, Mapping) else [k]:
            if number is not None or not isinstance(k, Mapping):
                whole(number, "k, of a bucket's values,", 1, bucket)
        for pattern in [*(k if isinstance(k, Mapping) else ()), *check_choice(layers)]:
            if not isinstance(pattern, str):
                raise BadInput(f"k= and layers= go by patterns of names, in text, not by {pattern!r}")
        check_feedback(bits, feedback)
        if momentum_correction is not None and not (
            isinstance(momentum_correction, int | float) and 0 < momentum_correction < 1
        ):
            raise BadInput(f"momentum_correction must be between 0 and 1, not {momentum_correction!r}")
        whole(warmup, "warmup", 0, 2**63)
        whole(dense_below, "dense_below", 0, 2**63)
        as_one_of(algorithm, ("auto", *sorted(SPARSE_ALGORITHMS)), "algorithm")
        check_seed(seed)
        super().__init__(levels, nonfinite, grad_scaler, process_group)
        self._k, self._bucket, self._bits, self._feedback = k, bucket, bits, feedback
        self._layers, self._dense_below, self._warmup = layers, dense_below, warmup
        self._momentum, self._algorithm, self._seed = momentum_correction, algorithm, seed

    def _choose(self, name: str, parameter: torch.Tensor) -> int | None:
        k: int | None = of_name(self._k, name)
        if k is None or parameter.numel() < self._dense_below or not chosen(self._layers, name, parameter):
            return None
        return k

    def _k_of(self, k: int, step: int) -> int:
        """Values to choose of a bucket in a step: more while it warms up."""
        if step >= self._warmup:
            return k
        density: float = (k / self._bucket) ** ((step + 1) / (self._warmup + 1))
        return min(self._bucket, max(k, round(self._bucket * density)))

    def _select(self, layout: Layout, share: torch.Tensor, factor: float | None, step: int) -> Selection:
        """Take out of residual and gradient what is to be sent."""
        if not self._feedback and layout.residual is not None:
            layout.residual.zero_()
        spans = [(layer.start, layer.stop, self._k_of(layer.k or 1, step), self._bucket) for layer in layout.sparse]
        return select(layout, share, spans, factor, self._momentum)

    def _patterns(self) -> list[str]:
        return [*(self._k if isinstance(self._k, Mapping) else ()), *patterns_of(self._layers)]

    def _quantize(self) -> Quantize | None:
        if self._bits is None:
            return None
        return Quantize(self._bits, _QUANTISED_TOGETHER, "input", "max", self._seed)

    def _settings(self) -> dict[str, Any]:
        return {
            "k": dict(self._k) if isinstance(self._k, Mapping) else self._k,
            "bucket": self._bucket,
            "bits": self._bits,
            "feedback": self._feedback,
            "warmup": self._warmup,
            "momentum_correction": self._momentum,
            "seed": self._seed,
            "levels": self._levels_asked,
        }


class QSGD(Engine):
    """Send gradients in a few bits each, without choosing: state of :func:`qsgd_hook`.

    Parameters
    ----------
    bits : {2, 4, 8}, default 4
        Bits a value; a scale of 32 bits a bucket comes to that.
    bucket : int, default 512
        Values that share a scale.
    scale : {"l2", "max"}, default "max"
    where : {"both", "input", "result"}, default "both"
        What is quantised, as in :class:`skyphos.Quantize`: what ranks send, what owners of parts send on, or both.
    levels, nonfinite, seed, grad_scaler, process_group
        As in :class:`TopK`.

    Raises
    ------
    BadInput
        Settings outside these; when gradients come, as of :class:`TopK`.

    Notes
    -----
    QSGD (Alistarh et al. 2017), as in SparCML, section 6: unbiased, and nothing is kept for later.

    Examples
    --------
    >>> import torch, torch.distributed as dist, skyphos.torch
    >>> dist.init_process_group("skyphos", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    >>> model.register_comm_hook(skyphos.torch.QSGD(bits=8), skyphos.torch.qsgd_hook)
    >>> model(torch.ones(8, 64)).sum().backward()
    >>> bool((model.module.weight.grad - 8.0).abs().max() < 0.1)
    True
    >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        bits: Literal[2, 4, 8] = 4,
        bucket: int = 512,
        *,
        scale: Literal["l2", "max"] = "max",
        where: Literal["both", "input", "result"] = "both",
        levels: Literal[1, 2] = 2,
        nonfinite: Literal["raise", "skip", "pass"] = "raise",
        seed: int = 0,
        grad_scaler: Any = None,
        process_group: Any = None,
    ) -> None:
        super().__init__(levels, nonfinite, grad_scaler, process_group)
        self._quantizer = Quantize(bits, bucket, where, scale, seed)
        self._fetched = 0

    def _choose(self, name: str, parameter: torch.Tensor) -> int | None:
        return None

    def _select(self, layout: Layout, share: torch.Tensor, factor: float | None, step: int) -> Selection:
        return select(layout, share, [], factor, None, self._fetch)

    def _fetch(self, whole: torch.Tensor) -> torch.Tensor:
        how = self._quantizer
        if not whole.is_cuda or how.where == "result" or how.scale != "max":
            return whole.cpu()
        assert self._levels is not None
        self._fetched += 1
        return fetch_quantised(whole, how, self._fetched, self._levels.comm.rank)

    def _dense_quantize(self) -> Quantize | None:
        return self._quantizer

    def _settings(self) -> dict[str, Any]:
        return {**asdict(self._quantizer), "levels": self._levels_asked}
