"""Exchange of factors: weight gradients are summed over ranks from their factors while backward goes on.

Each use of a layer y = x Wᵀ has two factors: the gradients of its outputs (rows of N numbers) and its inputs (rows of
M numbers). The weight's gradient is the sum of their outer products over all uses and ranks (*DSOP*, section 3), made
by one ``outer_product_sum`` a weight. The call starts when autograd has passed the last use, in an order that all ranks
share. Calls that have not started when backward ends start then; a rank that did not use the weight passes no rows.

Not promised: ``.grad`` changes at the end of backward, not before.
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
#: Factors of these types are scaled, which is less work than scaling the sum. Narrower ones would lose digits.
_WIDE = (torch.float32, torch.float64)


class Weight:
    """A weight of N by M, and the rows that wait for its next exchange."""

    def __init__(self, name: str, parameter: torch.nn.Parameter, exchange: Exchange) -> None:
        self.name = name
        self.parameter = parameter
        #: Type of the last factors. A rank without rows passes empty factors of this type.
        self.dtype: torch.dtype | None = None
        self._exchange = weakref.ref(exchange)
        self._accumulated: Pairs = []
        reference = weakref.ref(self)

        def on_gradient(gradient: torch.Tensor | None) -> None:
            # Layers return no gradient, so None means that all uses are done. Autograd calls this hook before other
            # nodes that are ready.
            weight = reference()
            if weight is None:
                return
            if not weight.changes_grad():
                return  # `torch.autograd.grad` calls
            if gradient is not None:
                raise BadInput(
                    f"{weight.name} has a gradient that is no outer product: something other than its layer uses it. "
                    "Exclude it: outer_product(model, layers=...)"
                )
            if (exchange := weight._exchange()) is not None:
                exchange.backward().complete(weight)

        parameter.register_hook(on_gradient)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied or pickled models have ordinary layers."""
        return type(None), ()

    def refuse_double_backward(self) -> None:
        """Refuse a backward whose result is differentiated again."""
        if torch.is_grad_enabled():
            raise BadInput(
                f"the gradient of {self.name} is summed over ranks and cannot be differentiated again "
                "(create_graph=True): exclude it, outer_product(model, layers=...)"
            )

    def changes_grad(self) -> bool:
        """Whether the current backward changes ``.grad``. That of ``torch.autograd.grad`` does not."""
        node = torch.autograd.graph.get_gradient_edge(self.parameter).node
        try:
            is_executed: bool = torch._C._will_engine_execute_node(node)
        except RuntimeError:
            return False  # PyTorch raises this if backward returns the gradient instead of accumulating it
        return is_executed

    def gradient(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
        """A layer's gradient aᵀ b, the sum of outer products of the rows of a (r, N) and b (r, M).

        In a backward that changes ``.grad`` it is None, and the rows are kept for the exchange. In
        ``torch.autograd.grad`` it is this rank's own sum.
        """
        if self.changes_grad():
            self.add_rows(a, b)
            return None
        return a.T @ b

    def add_rows(self, a: torch.Tensor, b: torch.Tensor) -> None:
        """Add the outer products of the rows of a (r, N) and b (r, M) to the next exchange. Called in backward."""
        exchange = self._exchange()
        if exchange is None:
            raise BadInput(f"the model of {self.name} was deleted, but its layer is still used")
        self.dtype = exchange.dtype = a.dtype
        exchange.backward().rows[self].append((a.detach(), b.detach()))

    def accumulate(self, pairs: Pairs) -> None:
        """Keep rows for a later exchange, or their sum if that is smaller."""
        if not pairs:
            return
        n, m = self.parameter.shape
        # The parameter's type, because many small sums are added; a copy, because callers may reuse their input.
        wide = self.parameter.dtype
        a, b = (torch.cat([one.to(wide) for one in each]) for each in zip(*self._waiting(), *pairs, strict=True))
        if len(a) * (n + m) > n * m:
            # As factors: the matrix and the identity.
            product = a.T @ b
            eye = torch.eye(min(n, m), dtype=wide, device=product.device)
            a, b = (eye, product) if n <= m else (product.T.contiguous(), eye)
        self._accumulated = [(a, b)]
        if self.parameter.grad is None:
            self.parameter.grad = torch.zeros_like(self.parameter)

    def _waiting(self) -> Pairs:
        """Rows of earlier backwards; empty if ``.grad`` was set to None since."""
        return self._accumulated if self.parameter.grad is not None else []

    def take(self, pairs: Pairs, wide: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """The factors of this exchange, in host memory; with ``wide`` in the parameter's type."""
        pairs, self._accumulated = self._waiting() + pairs, []
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
        gradient = sum_.to(parameter.device, parameter.dtype)
        if scale != 1.0:
            gradient = gradient.mul_(scale)
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad.add_(gradient)


class _Backward:
    """One backward: the rows it has produced, and the calls it has started."""

    def __init__(self, exchange: Exchange, task: int, synced: bool) -> None:
        self.task = task
        self.rows: dict[Weight, Pairs] = {weight: [] for weight in exchange.order}
        self._exchange = exchange
        self.is_synced = synced
        self._order = list(exchange.order)
        self._complete: list[Weight] = []
        self._calls: list[tuple[Weight, Work[Any], torch.Tensor]] = []
        self._started = 0
        self._error: Exception | None = None
        _at_end(self._end)

    def complete(self, weight: Weight) -> None:
        """All uses of a weight are done: start its call, once all calls before it in the order have started."""
        self._complete.append(weight)
        while self.is_synced and self._started < len(self._order) and self._order[self._started] in self._complete:
            self._start_next()

    def _start_next(self) -> None:
        weight = self._order[self._started]
        self._started += 1
        exchange = self._exchange
        comm = exchange.comm
        try:
            a, b = weight.take(self.rows.pop(weight), exchange.has_accumulated)
            if exchange.nonfinite == "raise" and not (_is_finite(a) and _is_finite(b)):
                error = BadInput(f"rank {comm.rank}: factors of the gradient of {weight.name} are not finite")
                fail(comm, error, goes_on=True)
            if a.dtype in _WIDE and exchange.scale != 1.0:
                a = a * exchange.scale
            out = torch.empty(weight.parameter.shape, dtype=a.dtype)
            work = comm.outer_product_sum(_array(a), _array(b), out=_array(out), explain=True, async_op=True)
            self._calls.append((weight, work, out))
        except Exception as error:  # raised after the other calls, which all ranks make
            self._error = self._error or error

    def _end(self) -> None:
        """At the end of backward: start the remaining calls, or keep the rows of a backward without exchange."""
        exchange = self._exchange
        exchange.end(self)
        if not self.is_synced:
            exchange.has_accumulated = True
            for weight, pairs in self.rows.items():
                weight.accumulate(pairs)
            return
        while self._started < len(self._order):
            self._start_next()
        exchange.has_accumulated = False
        # After DDP's own callback, which must run even if this raises.
        _at_end(self._finish)

    def _finish(self) -> None:
        """Wait for all sums, then add them to gradients. If a call fails, it fails on all ranks and adds nothing."""
        exchange, sums = self._exchange, []
        for weight, work, out in self._calls:
            try:
                sums.append((weight, out, work.wait()[1].pairs))
            except Exception as error:
                self._error = self._error or error
        if self._error is not None:
            raise self._error
        is_skipped = exchange.nonfinite == "skip" and exchange.agree_to_skip(
            any(not _is_finite(out) for _, out, pairs in sums if pairs)
        )
        for weight, out, pairs in sums:
            if pairs and not is_skipped:  # a weight that no rank used keeps its gradient
                weight.add(out, exchange.scale if out.dtype not in _WIDE else 1.0)
        exchange.learn_order(self._complete)
        exchange.check_polled()


def _at_end(callback: Callable[[], None]) -> None:
    """Call this at the end of backward, after the callbacks queued so far."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


class Exchange:
    """The weights of a model whose gradients are summed from factors.

    Parameters
    ----------
    comm : Comm
        Duplicated. Collective.
    parameters : list of (str, Parameter)
        In the model's order, with the same names and shapes on all ranks.
    scale : float
        Factor of the sums.
    nonfinite : {"raise", "skip", "pass"}
        What NaN or infinity in factors does: see :func:`outer_product`.
    """

    def __init__(
        self, comm: Comm, parameters: list[tuple[str, torch.nn.Parameter]], scale: float, nonfinite: str
    ) -> None:
        self.comm = comm.dup()
        self.scale, self.nonfinite = scale, nonfinite
        #: Number of skipped steps; whether the last step was skipped; whether anything calls :meth:`leaves_out`.
        self.skipped, self._is_skipped, self._is_polled = 0, False, False
        self.weights = [Weight(name, parameter, self) for name, parameter in parameters]
        #: The order of calls, the same on all ranks. The first guess is from the model's end to its beginning.
        self.order = self.weights[::-1]
        #: Type of the last factors of any weight.
        self.dtype: torch.dtype | None = None
        #: Whether a backward without exchange came after the last exchange. The same on all ranks.
        self.has_accumulated = False
        self._has_order = False
        self._backward: _Backward | None = None
        #: Whether backwards exchange rows.
        self._synced = True
        #: Whether a forward of DDP set that, and no backward that exchanges rows has ended since.
        self._is_prepared = False
        self._pauses = 0

    def begin_forward(self) -> None:
        """The model's forward begins. Its backward exchanges rows unless DDP's ``no_sync`` is on."""
        if not torch.is_grad_enabled():
            return
        ddp: Any = DistributedDataParallel._active_ddp_module
        if ddp is not None and ddp._join_config.enable:
            raise BadInput(
                "outer products do not work with join(), because ranks without batches would not take part: give "
                "those ranks empty batches"
            )
        # Like DDP's reducer: a forward prepares the next backward, even if other forwards come between.
        if ddp is None or ddp.require_backward_grad_sync:
            self._synced, self._is_prepared = True, ddp is not None
        elif not self._is_prepared:
            self._synced = False

    def backward(self) -> _Backward:
        """The current backward."""
        # Backwards are told apart by number: one that failed never ends, and reentrant checkpoints run several at once.
        task = torch._C._current_graph_task_id()
        if self._backward is None or self._backward.task != task:
            self._backward = _Backward(self, task, self._synced and self._pauses == 0)
        return self._backward

    def end(self, backward: _Backward) -> None:
        """A backward is over."""
        if self._backward is backward:
            self._backward = None
        if backward.is_synced:
            self._is_prepared = False

    def learn_order(self, complete: list[Weight]) -> None:
        """Adopt the order of weights in rank 0's first backward. Collective."""
        if self._has_order:
            return
        self._has_order = True
        first = dict.fromkeys([*complete, *self.order])
        places = {weight: place for place, weight in enumerate(self.weights)}
        order = np.array([places[weight] for weight in first], np.int64)
        self.order = [self.weights[place] for place in self.comm.broadcast(order, 0)]

    def agree_to_skip(self, is_bad: bool) -> bool:
        """Whether any rank found NaN or infinity, so that all skip the step. Collective."""
        self._is_skipped = bool(self.comm.allreduce(np.array([is_bad], np.uint8), op="max")[0])
        self.skipped += self._is_skipped
        return self._is_skipped

    def leaves_out(self) -> bool:
        """Whether the step of the last backward is to be skipped."""
        self._is_polled = True
        return self._is_skipped

    def check_polled(self) -> None:
        """Refuse to skip a step if no optimizer would."""
        if self._is_skipped and not self._is_polled:
            raise BadInput(
                "factors are not finite, and no optimizer would skip this step: call "
                "skyphos.torch.guard(model, optimizer) before training"
            )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within this context backwards keep their rows for the next exchange."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1


def _array(matrix: torch.Tensor) -> npt.NDArray[Any]:
    """A matrix as an array, which shares its memory if that is contiguous."""
    return as_numbers(matrix).reshape(matrix.shape)


def _is_finite(rows: torch.Tensor) -> bool:
    """Whether no number is NaN or infinite."""
    # A finite sum proves it and is fast. An infinite one may be an overflow.
    return math.isfinite(rows.sum().item()) or bool(rows.isfinite().all())
