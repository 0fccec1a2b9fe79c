"""Weights whose gradients are summed over ranks from their factors, while the rest of a backward goes on.

A layer y = x Wᵀ hands over, for each use, the gradients of its outputs (rows of N) and its inputs (rows of M): the
weight's gradient is the sum of their outer products over all uses and ranks (*DSOP*, section 3), one
``outer_product_sum`` a weight. Its call begins once autograd has been through the last use, in an order that all ranks
share; what is left begins as the backward ends, with no rows where a rank did not use the weight.

Not promised: ``.grad`` changes at the end of the backward, not before.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.parallel import DistributedDataParallel

from ...collectives.agreement import fail
from ...comm import Comm
from ...errors import BadInput
from ...work import Work
from ..backend.tensors import as_numbers

__all__ = ["Exchange", "Weight"]

Pairs = list[tuple[torch.Tensor, torch.Tensor]]
#: Factors of these are scaled before they are sent, for less work; narrower ones would lose digits.
_WIDE = (torch.float32, torch.float64)


class Weight:
    """A weight of N by M, and the pairs of rows that wait for its next exchange."""

    def __init__(self, name: str, parameter: torch.nn.Parameter, exchange: Exchange) -> None:
        self.name = name
        self.parameter = parameter
        #: Of the factors that came last: ranks without any say the same.
        self.dtype: torch.dtype | None = None
        self._exchange = weakref.ref(exchange)
        self._held: Pairs = []
        here = weakref.ref(self)

        def arrived(gradient: torch.Tensor | None) -> None:
            # Layers return no gradient, so None says that all uses are done. Autograd runs this hook ahead of all
            # else that is ready then.
            weight = here()
            if weight is None:
                return
            if not weight.is_wanted():
                return  # `torch.autograd.grad` asks for it
            if gradient is not None:
                raise BadInput(
                    f"{weight.name} has a gradient that is no outer product: something other than its layer used it. "
                    "Leave it out: outer_product(model, layers=...)"
                )
            if (exchange := weight._exchange()) is not None:
                exchange.backward().complete(weight)

        parameter.register_hook(arrived)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a model, or a pickled one, has ordinary layers."""
        return type(None), ()

    def check_once(self) -> None:
        """Refuse a backward that is to be differentiated itself."""
        if torch.is_grad_enabled():
            raise BadInput(
                f"the gradient of {self.name} is summed over ranks and cannot be differentiated again "
                "(create_graph=True): leave it out, outer_product(model, layers=...)"
            )

    def is_wanted(self) -> bool:
        """Whether the backward that this is called from changes ``.grad``: ``torch.autograd.grad`` does not."""
        node = torch.autograd.graph.get_gradient_edge(self.parameter).node
        try:
            wanted: bool = torch._C._will_engine_execute_node(node)
        except RuntimeError:
            return False  # PyTorch refuses the question where a gradient is returned
        return wanted

    def gradient(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
        """What a layer's backward returns for the sum of outer products of rows of a (r, N) and b (r, M).

        None, and they go their way; where ``torch.autograd.grad`` asks, this rank's own sum.
        """
        if self.is_wanted():
            self.hand_over(a, b)
            return None
        return a.T @ b

    def hand_over(self, a: torch.Tensor, b: torch.Tensor) -> None:
        """Add outer products of rows of a (r, N) and b (r, M) to the gradient, from within a backward."""
        exchange = self._exchange()
        if exchange is None:
            raise BadInput(f"{self.name} outlived its model")
        self.dtype = exchange.dtype = a.dtype
        exchange.backward().rows[self].append((a.detach(), b.detach()))

    def hold(self, pairs: Pairs) -> None:
        """Keep rows for a later exchange, or their sum where that is less."""
        if not pairs:
            return
        n, m = self.parameter.shape
        # As wide as the parameter: many small sums are added. New memory, for callers may reuse the input's.
        wide = self.parameter.dtype
        a, b = (torch.cat([one.to(wide) for one in each]) for each in zip(*self._waiting(), *pairs, strict=True))
        if len(a) * (n + m) > n * m:
            # A matrix is the product of itself and the identity.
            product = a.T @ b
            eye = torch.eye(min(n, m), dtype=wide, device=product.device)
            a, b = (eye, product) if n <= m else (product.T.contiguous(), eye)
        self._held = [(a, b)]
        if self.parameter.grad is None:
            self.parameter.grad = torch.zeros_like(self.parameter)

    def _waiting(self) -> Pairs:
        """What earlier backwards left; nothing if gradients were set to None since."""
        return self._held if self.parameter.grad is not None else []

    def take(self, pairs: Pairs, wide: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """The factors of this exchange, in the processor's memory."""
        pairs, self._held = self._waiting() + pairs, []
        exchange = self._exchange()
        dtype = self.dtype or (exchange.dtype if exchange else None) or self.parameter.dtype
        if wide:
            dtype = self.parameter.dtype
        sides = []
        for width, each in zip(self.parameter.shape, zip(*pairs, strict=True) if pairs else ((), ()), strict=True):
            rows = each[0] if len(each) == 1 else torch.cat(each) if each else torch.empty(0, width)
            sides.append(rows.to("cpu", dtype))
        return sides[0], sides[1]

    def add(self, sum_: torch.Tensor, scale: float) -> None:
        """Add a sum to the gradient."""
        parameter = self.parameter
        found = sum_.to(parameter.device, parameter.dtype)
        if scale != 1.0:
            found = found.mul_(scale)
        if parameter.grad is None:
            parameter.grad = found
        else:
            parameter.grad.add_(found)


class _Backward:
    """One run of autograd: rows that came, and calls that began."""

    def __init__(self, exchange: Exchange, task: int, synced: bool) -> None:
        self.task = task
        self.rows: dict[Weight, Pairs] = {weight: [] for weight in exchange.order}
        self._exchange = exchange
        self.is_synced = synced
        self._order = list(exchange.order)
        self._complete: list[Weight] = []
        self._calls: list[tuple[Weight, Work[Any], torch.Tensor]] = []
        self._begun = 0
        self._error: Exception | None = None
        _at_end(self._end)

    def complete(self, weight: Weight) -> None:
        """All uses of a weight are done: begin its call, once those of all before it have begun."""
        self._complete.append(weight)
        while self.is_synced and self._begun < len(self._order) and self._order[self._begun] in self._complete:
            self._begin()

    def _begin(self) -> None:
        weight = self._order[self._begun]
        self._begun += 1
        exchange = self._exchange
        comm = exchange.comm
        try:
            a, b = weight.take(self.rows.pop(weight), exchange.accumulated)
            if exchange.nonfinite == "raise" and not (_finite(a) and _finite(b)):
                odd = BadInput(f"rank {comm.rank}: factors of the gradient of {weight.name} are not finite")
                fail(comm, odd, goes_on=True)
            if a.dtype in _WIDE and exchange.scale != 1.0:
                a = a * exchange.scale
            out = torch.empty(weight.parameter.shape, dtype=a.dtype)
            work = comm.outer_product_sum(_array(a), _array(b), out=_array(out), explain=True, async_op=True)
            self._calls.append((weight, work, out))
        except Exception as error:  # after the other calls, which all ranks make
            self._error = self._error or error

    def _end(self) -> None:
        """All of the backward is done: begin what is left, or keep rows where it is not synchronised."""
        exchange = self._exchange
        exchange.forget(self)
        if not self.is_synced:
            exchange.accumulated = True
            for weight, pairs in self.rows.items():
                weight.hold(pairs)
            return
        while self._begun < len(self._order):
            self._begin()
        exchange.accumulated = False
        # After DDP's own end, which waits too, and which an error here must not keep from coming.
        _at_end(self._finish)

    def _finish(self) -> None:
        """Wait, and add all sums to gradients. If a call fails it fails on all ranks, and no weight's changes."""
        exchange, sums = self._exchange, []
        for weight, work, out in self._calls:
            try:
                sums.append((weight, out, work.wait()[1].pairs))
            except Exception as error:
                self._error = self._error or error
        if self._error is not None:
            raise self._error
        left_out = exchange.nonfinite == "skip" and exchange.agree_on(
            any(not _finite(out) for _, out, pairs in sums if pairs)
        )
        for weight, out, pairs in sums:
            if pairs and not left_out:  # what no rank used keeps its gradient
                weight.add(out, exchange.scale if out.dtype not in _WIDE else 1.0)
        exchange.learn(self._complete)
        exchange.check_asked()


def _at_end(callback: Callable[[], None]) -> None:
    """Have this called when the backward is over, after what else was to be."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


class Exchange:
    """The weights of a model that are summed by factors, over calls of their own.

    Parameters
    ----------
    comm : Comm
        Its group is duplicated. Collective.
    parameters : list of (str, Parameter)
        Of the same names and shapes on all ranks, as the model has them.
    scale : float
        Of sums.
    nonfinite : {"raise", "skip", "pass"}
        Whether NaN or infinity among factors is an error, or a step left out on all ranks.
    """

    def __init__(
        self, comm: Comm, parameters: list[tuple[str, torch.nn.Parameter]], scale: float, nonfinite: str
    ) -> None:
        self.comm = comm.dup()
        self.scale, self.nonfinite = scale, nonfinite
        #: Steps that were left out; whether the last was; whether somebody asks.
        self.skipped, self._left_out, self._is_asked = 0, False, False
        self.weights = [Weight(name, parameter, self) for name, parameter in parameters]
        #: Of calls, the same on all ranks: models are mostly back-propagated from their end.
        self.order = self.weights[::-1]
        #: Of the factors that came last.
        self.dtype: torch.dtype | None = None
        #: Whether there was a backward without an exchange since the last one: the same on all ranks.
        self.accumulated = False
        self._learned = False
        self._now: _Backward | None = None
        #: Whether backwards are synchronised; whether a forward of DDP said so, with no such backward since.
        self._synced, self._is_prepared = True, False
        self._pauses = 0

    def begins(self) -> None:
        """The model's forward begins: its backward is synchronised unless DDP says no."""
        if not torch.is_grad_enabled():
            return
        ddp: Any = DistributedDataParallel._active_ddp_module
        if ddp is not None and ddp._join_config.enable:
            raise BadInput(
                "outer products do not go with join(): ranks that have no more batches would not take part. "
                "Give them empty ones"
            )
        # As DDP's reducer, which one forward prepares for the next backward, whatever forwards there are between.
        if ddp is None or ddp.require_backward_grad_sync:
            self._synced, self._is_prepared = True, ddp is not None
        elif not self._is_prepared:
            self._synced = False

    def backward(self) -> _Backward:
        """The run of autograd that this is called from."""
        # By number: one that ended with an error is never heard of again, and reentrant checkpoints run several.
        task = torch._C._current_graph_task_id()
        if self._now is None or self._now.task != task:
            self._now = _Backward(self, task, self._synced and self._pauses == 0)
        return self._now

    def forget(self, backward: _Backward) -> None:
        """A run of autograd is over."""
        if self._now is backward:
            self._now = None
        if backward.is_synced:
            self._is_prepared = False

    def learn(self, complete: list[Weight]) -> None:
        """Take the order in which the first backward of rank 0 came by weights. Collective."""
        if self._learned:
            return
        self._learned = True
        first = dict.fromkeys([*complete, *self.order])
        places = {weight: place for place, weight in enumerate(self.weights)}
        order = np.array([places[weight] for weight in first], np.int64)
        self.order = [self.weights[place] for place in self.comm.broadcast(order, 0)]

    def agree_on(self, odd: bool) -> bool:
        """Whether the backward that ends is left out, for what this rank or another found. Collective."""
        self._left_out = bool(self.comm.allreduce(np.array([odd], np.uint8), op="max")[0])
        self.skipped += self._left_out
        return self._left_out

    def leaves_out(self) -> bool:
        """Whether the last backward is left out."""
        self._is_asked = True
        return self._left_out

    def check_asked(self) -> None:
        """Refuse to leave out what nobody would know of."""
        if self._left_out and not self._is_asked:
            raise BadInput(
                "this step is to be left out for factors that are not finite, and nothing does: call "
                "skyphos.torch.guard(model, optimizer) before"
            )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Backwards in here keep their rows for the next one outside."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1


def _array(matrix: torch.Tensor) -> npt.NDArray[Any]:
    """A matrix as an array, of the same memory if it is in one stretch."""
    return as_numbers(matrix).reshape(matrix.shape)


def _finite(rows: torch.Tensor) -> bool:
    """Whether no number is NaN or infinite."""
    # A sum is fastest, and finite only if all are; one that overflows says nothing.
    return math.isfinite(rows.sum().item()) or bool(rows.isfinite().all())
