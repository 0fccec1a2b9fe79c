"""``TopK`` and ``QSGD``: the states of the two communication hooks, which say how gradients are compressed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal

import torch

from ... import _skyphos as native
from ...collectives.allreduce import SPARSE_ALGORITHMS
from ...collectives.quantize import Quantize, check_seed
from ...collectives.topk import check_feedback
from ...errors import BadInput
from ...inputs.arguments import as_one_of
from ...inputs.settings import whole
from .hook_state import HookState
from .layout import Layout
from .name_patterns import LayerChoice, check_choice, first_match, is_chosen, patterns_of
from .selection import Selection, fetch_quantised, select

__all__ = ["QSGD", "TopK"]

#: Chosen values that share a scale when they are quantised.
_QUANTISATION_BUCKET = 1024


class TopK(HookState):
    """Send each layer's largest gradients and keep the rest for the next step: state of :func:`topk_hook`.

    The gradient is added to the residual. The ``k`` values of largest magnitude in every ``bucket`` consecutive values
    of the sum are sent, and the rest is the new residual. Layers are compressed and sent while backward goes on.

    Parameters
    ----------
    k : int or mapping from patterns of names to int or None, default 4
        Values sent of each bucket. A mapping sets it by layer: ``{"*.weight_hh*": 8, "*": 4}``. The first pattern that
        fits counts; with None, or if no pattern fits, the layer is not compressed.
    bucket : int, default 512
        Number of consecutive values; the last bucket of a layer may have fewer.
    bits : {2, 4, 8} or None
        Quantise the values sent, unbiased. Every 1,024 of them share a scale, their largest magnitude.
    feedback : bool or "quantised", default True
        True: the residual keeps values that were not sent. "quantised": it keeps quantisation errors too. False: there
        is no residual.
    levels : {2, 1}
        2: the ranks of a host first add up their gradients, densely in the host's memory. Values are selected from that
        sum, once a host, and hosts exchange them. On a single host nothing is then compressed. 1: each rank selects.
    layers : patterns of names, or function of (name, parameter), optional
        The layers to compress; others are sent whole. None: all.
    dense_below : int, default 1024
        Layers with fewer values are sent whole, all of a bucket in one message.
    warmup : int, default 0
        Number of first steps that send more: the density falls by equal factors, down to k / bucket.
    momentum_correction : float, optional
        Momentum m of Lin et al. 2018, §3.2: the residual takes u = m u + gradient, and u is cleared where values are
        sent. The optimizer must then have no momentum of its own.
    nonfinite : {"raise", "skip", "pass"}
        On NaN or infinity. "raise": all ranks raise an error that names rank and parameter. "skip": all ranks skip the
        step (see :meth:`guard`). "pass": the bucket's result is NaN on all ranks, for a ``GradScaler`` to find. With
        "skip" and "pass" the bucket's gradient is dropped, and the residuals take back what the step has sent.
    algorithm : str, default "auto"
        Algorithm of the sparse allreduce, as in :meth:`skyphos.Comm.allreduce`.
    seed : int, default 0
        Seed of the random numbers of quantisation.
    grad_scaler : torch.amp.GradScaler, optional
        The scaler whose scale gradients are multiplied by. Residuals are kept without the scale, because it changes.
        Only with ``nonfinite="pass"``.
    process_group : ProcessGroup, optional
        The ranks that share the model; any backend. None: the group of its ``DistributedDataParallel``, or else the
        default one.
    model : Module, optional
        The model whose names of parameters are used in ``k``, ``layers``, errors and saved states. None: the model of
        the ``DistributedDataParallel`` that this state is registered with.

    Raises
    ------
    BadInput
        Settings outside these. With the first gradients, on all ranks: a NaN or infinity; models or settings that
        differ between ranks (``Mismatch``); dtypes other than float16, bfloat16, float32, float64; devices other than
        CPU and CUDA.

    Notes
    -----
    SparCML (Renggli et al. 2019), section 8.3 and Algorithm 2, with two changes: the residual has gradients, not
    gradients times the learning rate, and results are means over ranks, not sums. So any optimizer can use them as it
    uses the gradients of dense training. :class:`DistributedOptimizer` is the algorithm to the letter.

    A state is for one model. A rank sends nothing of a parameter whose gradient is all zero there (unused, or the rank
    is in ``join()`` without batches). Memory: a residual as large as the model, twice that with
    ``momentum_correction``; with ``levels=2`` the ranks of a host share it. Save :meth:`state_dict` on each rank,
    because each has other residuals.

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
        layers: LayerChoice | None = None,
        dense_below: int = 1024,
        warmup: int = 0,
        momentum_correction: float | None = None,
        nonfinite: Literal["raise", "skip", "pass"] = "raise",
        algorithm: str = "auto",
        seed: int = 0,
        grad_scaler: Any = None,
        process_group: Any = None,
        model: torch.nn.Module | None = None,
    ) -> None:
        bucket = whole(bucket, "bucket", 1, 2**32 - 1)
        for number in k.values() if isinstance(k, Mapping) else [k]:
            if number is not None or not isinstance(k, Mapping):
                whole(number, "k, of a bucket's values,", 1, bucket)
        for pattern in [*(k if isinstance(k, Mapping) else ()), *check_choice(layers)]:
            if not isinstance(pattern, str):
                raise BadInput(f"k= and layers= take patterns of names as str, not {pattern!r}")
        check_feedback(bits, feedback)
        if momentum_correction is not None and not (
            isinstance(momentum_correction, int | float) and 0 < momentum_correction < 1
        ):
            raise BadInput(f"momentum_correction must be between 0 and 1, not {momentum_correction!r}")
        whole(warmup, "warmup", 0, 2**63)
        whole(dense_below, "dense_below", 0, 2**63)
        as_one_of(algorithm, ("auto", *sorted(SPARSE_ALGORITHMS)), "algorithm")
        check_seed(seed)
        super().__init__(levels, nonfinite, grad_scaler, process_group, model)
        self._k, self._bucket, self._bits, self._feedback = k, bucket, bits, feedback
        self._layers, self._dense_below, self._warmup = layers, dense_below, warmup
        self._momentum, self._algorithm, self._seed = momentum_correction, algorithm, seed

    def _choose(self, name: str, parameter: torch.Tensor) -> int | None:
        k: int | None = first_match(self._k, name)
        if k is None or parameter.numel() < self._dense_below or not is_chosen(self._layers, name, parameter):
            return None
        return k

    def _k_of(self, k: int, step: int) -> int:
        """Number of values to send of a bucket in a step. More during warm-up."""
        if step >= self._warmup:
            return k
        density: float = (k / self._bucket) ** ((step + 1) / (self._warmup + 1))
        return min(self._bucket, max(k, round(self._bucket * density)))

    def _select(self, layout: Layout, share: torch.Tensor, factor: float | None, step: int) -> Selection:
        """Select the largest values of residual plus gradient."""
        if not self._feedback and layout.residual is not None:
            layout.residual.zero_()
        layers = [
            native.TopkLayer(layer.start, layer.stop, self._k_of(layer.k or 1, step), self._bucket)
            for layer in layout.sparse
        ]
        return select(layout, share, layers, factor, self._momentum)

    def _patterns(self) -> list[str]:
        return [*(self._k if isinstance(self._k, Mapping) else ()), *patterns_of(self._layers)]

    def _quantize(self) -> Quantize | None:
        if self._bits is None:
            return None
        return Quantize(self._bits, _QUANTISATION_BUCKET, "input", "max", self._seed)

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


class QSGD(HookState):
    """Send every value of the gradient in a few bits: state of :func:`qsgd_hook`.

    Parameters
    ----------
    bits : {2, 4, 8}, default 4
        Bits a value. Each bucket has a scale of 32 bits besides.
    bucket : int, default 512
        Number of consecutive values that share a scale.
    scale : {"l2", "max"}, default "max"
        A bucket's scale: its Euclidean length, or its largest magnitude.
    where : {"both", "input", "result"}, default "both"
        What is quantised, as in :class:`skyphos.Quantize`: each rank's gradient ("input"), the reduced parts that
        owners send to all ("result"), or both.
    levels, nonfinite, seed, grad_scaler, process_group, model
        As in :class:`TopK`.

    Raises
    ------
    BadInput
        Settings outside these; with gradients, as :class:`TopK`.

    Notes
    -----
    QSGD (Alistarh et al. 2017), as in SparCML, section 6: unbiased, and without a residual.

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
        model: torch.nn.Module | None = None,
    ) -> None:
        super().__init__(levels, nonfinite, grad_scaler, process_group, model)
        self._quantizer = Quantize(bits, bucket, where, scale, seed)
        self._fetched = 0

    def _choose(self, name: str, parameter: torch.Tensor) -> int | None:
        return None

    def _select(self, layout: Layout, share: torch.Tensor, factor: float | None, step: int) -> Selection:
        return select(layout, share, [], factor, None, self._fetch)

    def _fetch(self, packed: torch.Tensor) -> torch.Tensor:
        """Copy gradients to host memory, quantised on the GPU if that gives the same values."""
        how = self._quantizer
        if not packed.is_cuda or how.where == "result" or how.scale != "max":
            return packed.cpu()
        assert self._levels is not None
        self._fetched += 1
        return fetch_quantised(packed, how, self._fetched, self._levels.comm.rank)

    def _dense_quantize(self) -> Quantize | None:
        return self._quantizer

    def _settings(self) -> dict[str, Any]:
        return {**asdict(self._quantizer), "levels": self._levels_asked}
