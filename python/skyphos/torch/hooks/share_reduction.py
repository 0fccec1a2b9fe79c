"""Reduction of one rank's share of a vector: a sparse allreduce of chosen values, a dense one of the other layers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import numpy as np
import torch

from ... import _skyphos as native
from ...collectives.agreement import fail
from ...collectives.allreduce import options_of
from ...collectives.topk import reduce_chosen
from ...errors import BadInput, SkyphosError
from ...inputs.arguments import resolve_op
from ...vectors.sparse_vector import SparseVector
from ..backend.ordered_worker import Promise
from ..backend.tensors import as_numbers, of_numbers
from .layout import Layout, unpack
from .non_finite import has_flag, with_flag
from .selection import describe_non_finite, first_non_finite, put_back
from .undo_log import SentValues

if TYPE_CHECKING:
    from .hook_state import HookState

__all__ = ["VectorCall", "Write", "fail_share", "start_share"]

#: Waits for a reduction and writes its result to a tensor.
Write = Callable[[torch.Tensor], None]


class VectorCall(NamedTuple):
    """One vector to reduce in place, and the promise that ends with it.

    ``is_last`` marks the last vector of a step. Without ``rate`` the result is the mean over ranks, else the sum times
    the rate.
    """

    vector: torch.Tensor
    promise: Promise
    is_last: bool
    step: int
    rate: float | None


def start_share(state: HookState, layout: Layout, share: torch.Tensor, call: VectorCall) -> Write:
    """Start the reduction of a share. The returned function waits, and writes the mean to a tensor of that length."""
    levels = state._levels
    assert levels is not None
    across = levels.across
    try:
        if across is None:
            return _mean_of_one_host(state, layout, share, call.rate)
        op: Literal["mean", "sum"] = "mean" if call.rate is None else "sum"
        scale = _scale(state)
        selection = state._select(layout, share, _factor(state, call.rate, scale), call.step)
    except Exception as error:
        fail_share(state, layout, error)
    has_sparse = _has_sparse_call(state, layout)
    if selection.non_finite is not None and state._nonfinite == "raise":
        fail_share(state, layout, BadInput(f"rank {levels.comm.rank}: {selection.non_finite}"))
    length, is_flagged = len(share), state._nonfinite != "raise"
    sent = SentValues(layout, selection.indices, selection.values)
    state._undo_log.add(call.step, sent)
    works: list[Any] = []
    with across.fuse():
        if has_sparse:
            vector = SparseVector._of(selection.indices, selection.values, None, length)
            if is_flagged:
                vector = with_flag(vector, is_finite=selection.non_finite is None)
            works.append(_start_sparse(state, layout, vector, op, sent))
        if layout.dense:
            numbers = as_numbers(selection.dense)
            reduced = torch.empty_like(selection.dense)
            quantize = state._dense_quantize()
            out = as_numbers(reduced)
            works.append(across.allreduce(numbers, op=op, out=out, quantize=quantize, explain=True, async_op=True))

    def write(into: torch.Tensor) -> None:
        results = [work.wait() for work in works]
        is_finite = True
        if not layout.dense or layout.sparse or is_flagged:
            into.zero_()
        if has_sparse:
            is_finite = _write_sparse(results[0], into, length)
        if layout.dense:
            how = results[-1][1]
            state._count(how.sent_bytes, how.received_bytes)
            unpack(reduced.to(into.device), layout.dense, into)
        if scale is not None:
            into.mul_(scale)
        if not is_finite:
            _write_non_finite(state, into)

    return write


def fail_share(state: HookState, layout: Layout, error: Exception) -> NoReturn:
    """Raise an error on all ranks, in each of the calls that they make for this share."""
    assert state._levels is not None
    across = state._levels.across
    if across is not None:
        for _ in range(_has_sparse_call(state, layout) + bool(layout.dense)):
            with suppress(SkyphosError):
                fail(across, error, goes_on=True)
    raise error


def _has_sparse_call(state: HookState, layout: Layout) -> bool:
    """Whether ranks make a sparse allreduce for this vector: for chosen values, or for the flag alone."""
    return state._nonfinite != "raise" or any(layer.k is not None for layer in layout.layers)


def _scale(state: HookState) -> float | None:
    """The loss scale that gradients are multiplied by. Residuals are kept without it, because it changes."""
    return None if state._scaler is None else float(state._scaler.get_scale())


def _factor(state: HookState, rate: float | None, scale: float | None) -> float | None:
    """The factor of gradients before they are added to the residual."""
    assert state._levels is not None
    factor = state._levels.host_sum_factor if rate is None else rate
    return factor if scale is None else (1.0 if factor is None else factor) / scale


def _mean_of_one_host(state: HookState, layout: Layout, share: torch.Tensor, rate: float | None) -> Write:
    """The mean over the ranks of one host, which needs no other host. Adds momentum if the state has it."""
    assert state._levels is not None
    scale = None if state._momentum is None else _scale(state)
    factor = _factor(state, rate, scale)
    mean = share if factor is None else share * factor
    bad = first_non_finite(mean)
    if bad is not None and state._nonfinite == "raise":
        where = describe_non_finite(layout, layout.share.start + bad, mean[bad])
        raise BadInput(f"rank {state._levels.comm.rank}, of the sum on its host: {where}")
    if state._momentum is not None and layout.velocity is not None and bad is None:
        mean = layout.velocity.mul_(state._momentum).add_(mean)

    def write(into: torch.Tensor) -> None:
        into.copy_(mean)
        if scale is not None:
            into.mul_(scale)
        if bad is not None:
            _write_non_finite(state, into)

    return write


def _start_sparse(
    state: HookState, layout: Layout, vector: SparseVector, op: Literal["mean", "sum"], chosen: SentValues
) -> Any:
    """Start the sparse allreduce. It expects about as many entries in the result as the last one had."""
    levels = state._levels
    assert levels is not None and levels.across is not None
    quantize = state._quantize()
    options = options_of(
        state._algorithm, quantize=quantize, expected_nnz=layout.entries, tell_sent=quantize is not None
    )
    values = vector.values

    def keep_errors(quantised: Any) -> None:
        if state._feedback == "quantised" and layout.residual is not None:
            own = slice(len(chosen.indices))  # without the flag, which is no value
            put_back(layout.residual, chosen.indices, values[own] - quantised[own])
            chosen.values = quantised[own]

    def finish(reduced: SparseVector, report: native.Explanation) -> SparseVector:
        layout.entries = reduced.nnz or None
        state._count(report.traffic.sent_bytes, report.traffic.received_bytes)
        return reduced

    return reduce_chosen(
        levels.across,
        vector,
        resolve_op(op),
        options,
        on_sent=keep_errors,
        restore=lambda: None,
        finish=finish,
        async_op=True,
    )


def _write_sparse(reduced: SparseVector, into: torch.Tensor, length: int) -> bool:
    """Write a sparse result into zeros. Returns whether all ranks had finite gradients."""
    is_flagged = has_flag(reduced, length)
    if reduced.is_dense:
        values = reduced.to_dense()
        into.copy_(of_numbers(values[:length], into.dtype))
        return not is_flagged
    indices, values = reduced.indices, reduced.values
    if is_flagged:
        indices, values = indices[:-1], values[:-1]
    if into.device.type == "cpu":
        as_numbers(into)[indices] = values
    else:
        at = torch.from_numpy(indices.astype(np.int64)).to(into.device)
        into[at] = of_numbers(values, into.dtype).to(into.device)
    return not is_flagged


def _write_non_finite(state: HookState, into: torch.Tensor) -> None:
    """Write the result of a vector that was not finite: NaN for a GradScaler to find, else 0."""
    state._is_finite = False
    into.fill_(float("nan") if state._nonfinite == "pass" else 0.0)
