"""How compressed gradients are reduced: what the states of all hooks share.

::

    hook thread     one level:   select, begin the reduction of ranks
                    two levels:  begin the sum on this host
    first line                   wait for it, select, begin the reduction of hosts          (two levels)
    second line                  wait for the reduction, give the host's ranks theirs, write the result

The lines work in the order of the buckets, so that the calls of each group have the same order on all ranks, and the
buckets overlap each other and the rest of backward.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import index
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
import torch

from ...collectives.agreement import fail
from ...collectives.allreduce import _allreduce_settings
from ...collectives.quantize import Quantize
from ...collectives.topk import reduce_chosen
from ...errors import BadInput, SkyphosError
from ...inputs.arguments import resolve_op
from ...vectors.sparse_vector import SparseVector
from ..backend.group_comm import check_group, comm_of, group_of
from ..backend.ordered_worker import Answer, Line
from ..backend.tensors import as_numbers, as_vector, check, fill_sparse, of_numbers
from ..training.consistency import agree
from ..training.skip_step import guarded
from .layout import Layout, laid_out, spread
from .levels import Levels
from .non_finite import has_mark, marked
from .parameter_names import Names
from .residual_store import Held
from .selection import Selection, first_odd, put_back, words, words_of_row
from .undo import Ledger, Sent

__all__ = ["Engine"]

_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


class _Call(NamedTuple):
    """What a vector's reduction is to end in."""

    vector: torch.Tensor
    answer: Answer
    last: bool
    step: int
    rate: float | None


class Engine:
    """State of a communication hook: layouts of the buckets, groups, lines."""

    #: Of the sparse allreduce; what goes back to the residual; of momentum correction.
    _algorithm: str = "auto"
    _feedback: bool | str = False
    _momentum: float | None = None

    def __init__(self, levels: int, nonfinite: str, grad_scaler: Any, process_group: Any) -> None:
        if levels not in (1, 2):
            raise BadInput(f"levels must be 1 or 2, not {levels!r}")
        if nonfinite not in ("raise", "skip", "pass"):
            raise BadInput(f'nonfinite must be "raise", "skip" or "pass", not {nonfinite!r}')
        if grad_scaler is not None and not hasattr(grad_scaler, "get_scale"):
            raise BadInput(f"grad_scaler must be a torch.amp.GradScaler or None, not {grad_scaler!r}")
        if grad_scaler is not None and nonfinite != "pass":
            raise BadInput(
                'with a grad_scaler say nonfinite="pass": the scaler itself looks for what is not finite and lowers '
                f"its scale then, and nonfinite={nonfinite!r} would keep that from it"
            )
        check_group(process_group)
        self._levels_asked, self._nonfinite = levels, nonfinite
        self._scaler, self._process_group = grad_scaler, process_group
        self._steps = 0
        self._levels: Levels | None = None
        self._names = Names()
        #: Where the first bucket is.
        self._memory = 0
        self._layouts: dict[int, Layout] = {}
        self._held = Held()
        #: Whether all names that settings and a state have were looked for.
        self._has_looked = False
        self._first, self._second = Line("skyphos-select"), Line("skyphos-finish")
        self._ledger = Ledger()
        #: Whether the step under way is left out; the last that optimizers are to leave out.
        self._odd = False
        self._left_out: int | None = None
        #: Whether somebody will ask which.
        self._is_asked = False
        self._skipped = 0
        self._sent_bytes = self._received_bytes = 0
        #: Whether the user has heard why nothing is sent.
        self._has_said = False

    # -- What a kind of compression is.

    def _choose(self, name: str, parameter: torch.Tensor) -> int | None:
        """Values chosen of a bucket of a layer; None: it travels whole."""
        raise NotImplementedError

    def _select(self, layout: Layout, share: torch.Tensor, factor: float | None, step: int) -> Selection:
        """What is sent of a vector in a step, whose gradients are multiplied by a factor first."""
        raise NotImplementedError

    def _quantize(self) -> Quantize | None:
        """How chosen values travel."""
        return None

    def _dense_quantize(self) -> Quantize | None:
        """How layers that are not compressed travel."""
        return None

    def _settings(self) -> dict[str, Any]:
        """What must be the same on all ranks, and in a state that is loaded: plain values."""
        raise NotImplementedError

    def _patterns(self) -> Sequence[str]:
        """Patterns of names, each of which some parameter must fit."""
        return ()

    # -- What the user sees.

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._said(self._settings()))})"

    @property
    def steps(self) -> int:
        """How many gradients have been reduced."""
        return self._steps

    @property
    def skipped(self) -> int:
        """How many steps were left out for what was not finite."""
        return self._skipped

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent to reduce gradients; with two levels, to other hosts.

        With two levels and one host it stays 0, since nothing is compressed: that is said once, as a warning.
        """
        levels = self._levels
        if levels is not None and not levels.compresses and levels.comm.rank == 0 and not self._has_said:
            self._has_said = True
            warnings.warn(
                f"{type(self).__name__}.sent_bytes stays 0: it counts what goes to other hosts, and with levels=2 the "
                "ranks of one host add up whole gradients in its memory. levels=1 compresses between ranks",
                stacklevel=2,
            )
        return self._sent_bytes

    @property
    def received_bytes(self) -> int:
        """Bytes that this rank has received for them."""
        return self._received_bytes

    def guard(self, optimizer: torch.optim.Optimizer) -> Any:
        """Let an optimizer leave out the steps in which a gradient was not finite, on all ranks alike.

        Its parameters then have no gradient (``None``) in that step, with which optimizers of torch do nothing; each
        of several optimizers has a guard of its own. With a closure that is so after each call of it. Returns the
        handle of the optimizer's hook.
        """
        if getattr(optimizer, "compression", None) is self:
            return optimizer.register_step_pre_hook(lambda *_: None)  # it leaves them out by itself
        return guarded(optimizer, self)

    def leaves_out(self) -> bool:
        """Whether the gradients that were reduced last are to be left out."""
        self._is_asked = True
        return self._left_out == self._steps - 1

    def state_dict(self) -> dict[str, Any]:
        """Settings, steps, and what this rank holds back of each parameter: to be saved on each rank.

        Returns
        -------
        dict
            ``"residual"`` and ``"velocity"`` map names of parameters to lists of pairs: the first value's place, and
            the values. ``"owner"`` is this rank, the number of ranks and with two levels the ranks of hosts (None
            before the first gradients). Random numbers of quantisation are not part of it: they begin anew.
        """
        self._drain()
        return {"settings": self._settings(), "steps": self._steps, **self._held.state(self._layouts.values())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where another state of the same settings was, on the same rank; all ranks do so, or none.

        Raises
        ------
        BadInput
            The state of other settings, or no state of a hook. With the next gradients, on all ranks: of parameters of
            other sizes, of another rank, or of another number of ranks.
        """
        try:
            settings, steps = state["settings"], index(state["steps"])
            if settings.keys() != self._settings().keys():
                raise BadInput(f"this is no state of a {type(self).__name__}, but of another hook")
            if settings != self._settings():
                differ = [name for name, value in self._settings().items() if settings.get(name, None) != value]
                what = ", ".join(f"{name}={settings.get(name)!r}" for name in differ)
                raise BadInput(
                    f"the state is of a {type(self).__name__} with {what}, not {', '.join(self._said(differ))}"
                )
            if steps < 0:
                raise BadInput(f"a state after {steps} steps")
            self._held.load(state)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"this is no state of a {type(self).__name__}: {error!r}") from None
        self._drain()
        self._steps, self._left_out = steps, None
        self._has_looked = False
        self._layouts.clear()
        self._ledger = Ledger()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Neither copied nor pickled: it has threads, groups and parameters of its own."""
        name = type(self).__name__
        raise TypeError(f"a {name} cannot be copied or pickled: make another, and load_state_dict() its state_dict()")

    def close(self) -> None:
        """Leave the groups that were made for it. The next bucket makes new ones."""
        self._first.close()
        self._second.close()
        if self._levels is not None:
            self._levels.close()
            self._levels = None

    def _drain(self) -> None:
        """Wait for what is left of a step that failed: what it has sent comes back."""
        self._first.drain()
        self._second.drain()

    # -- A bucket.

    def reduce_bucket(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """The mean over ranks of a bucket of ``DistributedDataParallel``; what hooks return."""
        answer = Answer()
        number, vector = bucket.index(), bucket.buffer()
        if number == 0 and not vector.is_sparse and vector.data_ptr() != self._memory:
            # New buckets: maybe the model was wrapped again.
            self._memory = vector.data_ptr()
            self._names.renew()
        self.reduce_vector(number, bucket.parameters(), vector, answer, last=bucket.is_last())
        return answer.future

    def reduce_vector(
        self,
        number: int,
        parameters: list[torch.Tensor],
        vector: torch.Tensor,
        answer: Answer,
        *,
        last: bool,
        rate: float | None = None,
    ) -> None:
        """Begin to reduce a vector of these parameters' gradients in place; ``last`` is that of a step.

        To the mean over ranks, or with ``rate`` to the sum of the gradients times that. It raises nothing: an error is
        the answer. (In a hook it would keep this rank from calls that DDP makes after the last bucket.)
        """
        call = _Call(vector, answer, last, self._steps, rate)
        try:
            self._reduce(number, parameters, vector, call)
        except Exception as error:
            write = _raising(error)
            if self._levels is not None and self._levels.two:
                self._first.put(lambda: self._end_later(call, write), answer)
            else:
                self._end_later(call, write)
        finally:
            self._steps += last

    def _reduce(self, number: int, parameters: list[torch.Tensor], vector: torch.Tensor, call: _Call) -> None:
        if self._ledger.failed not in (-1, call.step):
            self._drain()
            self._ledger.failed = -1
        self._names.learn(parameters)
        levels = self._meet()
        if vector.is_sparse:
            self._look_at_names(levels, call)
            return self._reduce_sparse(levels, self._names[parameters[0]], call)
        self._check(parameters, vector)
        layout = self._layout(number, parameters, vector, levels)
        self._look_at_names(levels, call)
        if not levels.two:
            return self._finish_later(layout, lambda: self._begin(layout, vector, call), call)
        flat = as_numbers(vector.cpu())
        odd = first_odd(vector) if self._nonfinite == "raise" else None
        found = None if odd is None else BadInput(f"rank {levels.comm.rank}: {words(layout, odd, vector[odd])}")
        came = levels.sum_inside(flat) if found is None else levels.fail_sum(found)

        def begin() -> Callable[[torch.Tensor], None]:
            try:
                mine = of_numbers(came(), vector.dtype)
            except Exception as error:
                # The other hosts wait for this one.
                self._fail_all(layout, error)
            return self._begin(layout, mine.to(vector.device), call)

        self._first.put(lambda: self._finish_later(layout, begin, call), call.answer)

    def _meet(self) -> Levels:
        """The groups, made when there are none."""
        if self._levels is None or self._levels.comm._native.closed:
            comm = comm_of(group_of(self._process_group, self._names.group))
            agree(comm, [f"a {type(self).__name__}", *self._said(self._settings()), *self._facts()])
            self._levels = Levels(comm, self._levels_asked)
        return self._levels

    def _said(self, names: Iterable[str]) -> list[str]:
        """Settings in words."""
        settings = self._settings()
        return [f"{name}={settings[name]!r}" for name in names]

    def _facts(self) -> list[str]:
        """What else must be alike on all ranks."""
        scaler = "no grad_scaler" if self._scaler is None else "a grad_scaler"
        patterns = [f"pattern {pattern!r}" for pattern in self._patterns()]
        return [f"nonfinite={self._nonfinite!r}", f"algorithm={self._algorithm!r}", scaler, *patterns]

    def _look_at_names(self, levels: Levels, call: _Call) -> None:
        """With the last of the first gradients, when all names are known: patterns, and a state's names, must be some.

        Collective then.
        """
        if not call.last or self._has_looked:
            return
        idle = [pattern for pattern in self._patterns() if not self._names.fitting(pattern)]
        if idle:
            some = ", ".join(map(repr, idle))
            self._fail(BadInput(f"k= or layers= have {some}, which fits the name of no parameter with a gradient"))
        if (left := self._held.left()) is not None:
            self._fail(BadInput(left))
        levels.comm.barrier()  # in which ranks meet the error of one whose state is another
        self._has_looked = True

    def _check(self, parameters: list[torch.Tensor], vector: torch.Tensor) -> None:
        odd = [one for one in parameters if one.dtype not in _FLOATS]
        problem = None
        if vector.device.type not in ("cpu", "cuda"):
            problem = f"gradients on {vector.device}: the hooks take those of the CPU and of CUDA"
        elif odd or vector.dtype not in _FLOATS:
            some = ", ".join(f"{self._names[one]} ({one.dtype})" for one in odd[:4]) or str(vector.dtype)
            problem = f"gradients of {some}: the hooks take float16, bfloat16, float32 and float64"
        if problem is not None:
            self._fail(BadInput(problem))

    def _layout(self, number: int, parameters: list[torch.Tensor], vector: torch.Tensor, levels: Levels) -> Layout:
        key = tuple((self._names[parameter], parameter.numel()) for parameter in parameters)
        layout = self._layouts.get(number)
        if layout is not None and layout.key == key:
            layout.step = self._steps
            return layout
        length = sum(length for _, length in key)
        layers = laid_out(parameters, key, self._choose)
        problem = self._held.problem(layers, levels.owner, compressed=levels.compresses)
        if length != vector.numel():
            problem = f"a bucket of {vector.numel()} values, for parameters of {length}"
        if problem is not None:
            self._fail(BadInput(problem))
        done = f"{self._steps} steps done{', as of a loaded state' * self._held.is_loaded}"
        said = [f"{layer.name} of {layer.stop - layer.start} values with k={layer.k}" for layer in layers]
        agree(levels.comm, [done, str(vector.dtype), *said])
        self._held.exchange(levels)
        if layout is not None:
            # DDP makes its buckets anew after the first step. Those that this step has used already are of the new.
            now = {n: one for n, one in self._layouts.items() if one.step == self._steps and n != number}
            self._held.dissolve([one for n, one in self._layouts.items() if n not in now], levels)
            self._layouts = now
        layout = Layout(key, layers, levels.share(vector.numel()), step=self._steps)
        wanted = {"residual": bool(layout.sparse) and levels.across is not None, "velocity": self._momentum is not None}
        self._held.give(layout, vector.new_empty(0), wanted)
        self._layouts[number] = layout
        return layout

    # -- Among ranks, or hosts.

    def _scale(self) -> float | None:
        """By what gradients are too large: what is kept for later steps is kept without, as it may change."""
        return None if self._scaler is None else float(self._scaler.get_scale())

    def _factor(self, rate: float | None, scale: float | None) -> float | None:
        """By what gradients are multiplied before they are added to what is kept."""
        assert self._levels is not None
        factor = self._levels.mean_of_units if rate is None else rate
        return factor if scale is None else (1.0 if factor is None else factor) / scale

    def _finish_later(self, layout: Layout, begin: Callable[[], Callable[[torch.Tensor], None]], call: _Call) -> None:
        """Begin to reduce this rank's share, and let the second line wait for it and write the result."""
        try:
            write = begin()
        except Exception as error:
            write = _raising(error)

        def write_all(vector: torch.Tensor) -> None:
            levels = self._levels
            assert levels is not None
            if not levels.two:
                return write(vector)
            mine = torch.empty(len(layout.share), dtype=vector.dtype)
            try:
                write(mine)
            except Exception as error:
                levels.fail_inside(error)
            whole = vector if vector.device.type == "cpu" else torch.empty_like(vector, device="cpu")
            levels.give_inside(as_numbers(mine), as_numbers(whole))
            if whole is not vector:
                vector.copy_(whole)

        self._end_later(call, write_all)

    def _end_later(self, call: _Call, write: Callable[[torch.Tensor], None]) -> None:
        """Let the second line write the result, and answer."""

        def finish() -> None:
            try:
                write(call.vector)
                self._ledger.vector_ends(call.step)
                if call.last:
                    self._end_step(call.step)
            except Exception:
                self._ledger.fail(call.step)
                raise
            finally:
                if call.last:
                    self._odd = False
                    self._ledger.step_ends(call.step)
            call.answer.give(call.vector)

        self._second.put(finish, call.answer)

    def _begin(self, layout: Layout, share: torch.Tensor, call: _Call) -> Callable[[torch.Tensor], None]:
        """Begin the reduction of a share; what is returned waits, and writes the mean to a tensor like it."""
        assert self._levels is not None
        across = self._levels.across
        try:
            if across is None:
                return self._alone(layout, share, call.rate)
            op: Literal["mean", "sum"] = "mean" if call.rate is None else "sum"
            scale = self._scale()
            selection = self._select(layout, share, self._factor(call.rate, scale), call.step)
        except Exception as error:
            self._fail_all(layout, error)
        chosen = self._sends_chosen(layout)
        if selection.odd is not None and self._nonfinite == "raise":
            self._fail_all(layout, BadInput(f"rank {self._levels.comm.rank}: {selection.odd}"))
        length, marks = len(share), self._nonfinite != "raise"
        sent = Sent(layout, selection.places, selection.picked)
        self._ledger.add(call.step, sent)
        works: list[Any] = []
        with across.fuse():
            if chosen:
                vector = SparseVector._of(selection.places, selection.picked, None, length)
                if marks:
                    vector = marked(vector, is_odd=selection.odd is not None)
                works.append(self._reduce_chosen(layout, vector, op, sent))
            if layout.dense:
                numbers = as_numbers(selection.dense)
                reduced = torch.empty_like(selection.dense)
                quantize = self._dense_quantize()
                out = as_numbers(reduced)
                works.append(across.allreduce(numbers, op=op, out=out, quantize=quantize, explain=True, async_op=True))

        def write(into: torch.Tensor) -> None:
            results = [work.wait() for work in works]
            odd = False
            if not layout.dense or layout.sparse or marks:
                into.zero_()
            if chosen:
                odd = self._write_chosen(results[0], into, length)
            if layout.dense:
                how = results[-1][1]
                self._count(how.sent_bytes, how.received_bytes)
                spread(reduced.to(into.device), layout.dense, into)
            if scale is not None:
                into.mul_(scale)
            if odd:
                self._write_odd(into)

        return write

    def _count(self, sent_bytes: int, received_bytes: int) -> None:
        self._sent_bytes += sent_bytes
        self._received_bytes += received_bytes

    def _write_odd(self, into: torch.Tensor) -> None:
        """What a vector is in a step that is left out, or in which a scaler is to find something."""
        self._odd = True
        into.fill_(float("nan") if self._nonfinite == "pass" else 0.0)

    def _alone(self, layout: Layout, share: torch.Tensor, rate: float | None) -> Callable[[torch.Tensor], None]:
        """Of one host: its mean, with momentum if the optimizer has none."""
        assert self._levels is not None
        scale = None if self._momentum is None else self._scale()
        factor = self._factor(rate, scale)
        mean = share if factor is None else share * factor
        odd = first_odd(mean)
        if odd is not None and self._nonfinite == "raise":
            where = words(layout, layout.share.start + odd, mean[odd])
            raise BadInput(f"rank {self._levels.comm.rank}, of the sum on its host: {where}")
        if self._momentum is not None and layout.velocity is not None and odd is None:
            mean = layout.velocity.mul_(self._momentum).add_(mean)

        def write(into: torch.Tensor) -> None:
            into.copy_(mean)
            if scale is not None:
                into.mul_(scale)
            if odd is not None:
                self._write_odd(into)

        return write

    def _reduce_chosen(self, layout: Layout, vector: SparseVector, op: Literal["mean", "sum"], left: Sent) -> Any:
        """Begin the sparse allreduce; its result is known to have about as many entries as the last."""
        levels = self._levels
        assert levels is not None and levels.across is not None
        settings = _allreduce_settings(
            self._algorithm, None, "quantiles", None, self._quantize(), expected_nnz=layout.entries
        )
        picked = vector.values

        def sent(became: Any) -> None:
            if self._feedback == "quantised" and layout.residual is not None:
                # A mark that this rank found what is not finite is no value.
                chosen = slice(len(left.places))
                put_back(layout.residual, left.places, picked[chosen] - became[chosen])
                left.values = became[chosen]

        def finish(reduced: SparseVector, told: Any) -> SparseVector:
            layout.entries = reduced.nnz or None
            self._count(told[3], told[5])
            return reduced

        return reduce_chosen(
            levels.across,
            vector,
            resolve_op(op),
            settings,
            sent=sent,
            restore=lambda: None,
            finish=finish,
            async_op=True,
        )

    def _write_chosen(self, reduced: SparseVector, into: torch.Tensor, length: int) -> bool:
        """Put a sparse result into zeros; whether some rank said that it found what is not finite."""
        odd = has_mark(reduced, length)
        if reduced.is_dense:
            values = reduced.to_dense()
            into.copy_(of_numbers(values[:length], into.dtype))
            return odd
        places, values = reduced.indices, reduced.values
        if odd:
            places, values = places[:-1], values[:-1]
        if into.device.type == "cpu":
            as_numbers(into)[places] = values
        else:
            at = torch.from_numpy(places.astype(np.int64)).to(into.device)
            into[at] = of_numbers(values, into.dtype).to(into.device)
        return odd

    def _sends_chosen(self, layout: Layout) -> bool:
        """Whether ranks make a sparse allreduce for a vector; what travels whole is another call."""
        return self._nonfinite != "raise" or any(layer.k is not None for layer in layout.layers)

    def _fail(self, error: Exception) -> NoReturn:
        """An error on all ranks, in the next call of all of them. The step's other calls are made all the same."""
        assert self._levels is not None
        fail(self._levels.comm, error, goes_on=True)

    def _fail_all(self, layout: Layout, error: Exception) -> NoReturn:
        """An error on all ranks, in each of the calls that they make for this vector."""
        assert self._levels is not None
        across = self._levels.across
        if across is not None:
            for _ in range(self._sends_chosen(layout) + bool(layout.dense)):
                with suppress(SkyphosError):
                    fail(across, error, goes_on=True)
        raise error

    def _end_step(self, step: int) -> None:
        """After the last bucket: if the step is left out, what it sent is still to be sent."""
        assert self._levels is not None
        if self._levels.two and self._nonfinite != "raise":
            self._odd = self._levels.any_inside(self._odd)
        if self._odd:
            self._skipped += 1
            self._ledger.put_back(step)
            if self._nonfinite == "skip":
                self._left_out = step
                if not self._is_asked:
                    raise BadInput(
                        f"step {step} is to be left out for a gradient that is not finite, and nothing does: call "
                        "guard(optimizer) of the hook's state, or ask its leaves_out() before each step of optimizers"
                    )

    # -- Sparse gradients.

    def _reduce_sparse(self, levels: Levels, name: str, call: _Call) -> None:
        """Those of embeddings: a sparse allreduce of all ranks."""
        gradient = call.vector
        check([gradient])
        vector, odd = as_vector(gradient), first_odd(gradient._values().reshape(-1))
        length = vector.n
        if self._nonfinite != "raise":
            vector = marked(vector, is_odd=odd is not None)
        elif odd is not None:
            self._fail(BadInput(f"rank {levels.comm.rank}: {words_of_row(name, gradient, odd)}"))
        work = levels.comm.allreduce(vector, op="mean", explain=True, async_op=True)

        def write(into: torch.Tensor) -> None:
            reduced, how = work.wait()
            self._count(how.sent_bytes, how.received_bytes)
            if has_mark(reduced, length):
                self._odd = True
                rows = int(self._nonfinite == "pass")
                values = np.full((rows, *reduced.values.shape[1:]), np.nan, reduced.values.dtype)
                reduced = SparseVector._of(np.zeros(rows, reduced.indices.dtype), values, None, length)
            fill_sparse(into, reduced)

        self._end_later(call, write)


def _raising(error: Exception) -> Callable[[torch.Tensor], None]:
    def write(_: torch.Tensor) -> None:
        raise error

    return write
