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

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
import torch

from ..allreduce import _allreduce_settings
from ..arguments import resolve_op
from ..errors import BadInput, SkyphosError
from ..quantize import Quantize
from ..sparse_vector import SparseVector
from ..topk import reduce_chosen
from .alike import agree
from .group_comm import comm_of
from .layout import Layout, Piece, laid_out, spread
from .levels import Levels
from .line import Answer, Line
from .names import names_of
from .select import Selection, first_odd, put_back, words
from .tensors import as_numbers, as_vector, check, fill_sparse, of_numbers

__all__ = ["Engine"]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class _Call(NamedTuple):
    """What a vector's reduction is to end in."""

    vector: torch.Tensor
    answer: Answer
    last: bool


class Engine:
    """State of a communication hook: layouts of the buckets, groups, lines."""

    #: Of the sparse allreduce; what goes back to the residual.
    _algorithm: str = "auto"
    _feedback: bool | str = False

    def __init__(self, levels: int, nonfinite: str, grad_scaler: Any, process_group: Any) -> None:
        if levels not in (1, 2):
            raise BadInput(f"levels must be 1 or 2, not {levels!r}")
        if nonfinite not in ("raise", "skip", "pass"):
            raise BadInput(f'nonfinite must be "raise", "skip" or "pass", not {nonfinite!r}')
        self._levels_asked, self._nonfinite = levels, nonfinite
        self._scaler, self._process_group = grad_scaler, process_group
        self._steps = 0
        self._levels: Levels | None = None
        self._names: dict[int, str] = {}
        self._layouts: dict[int, Layout] = {}
        #: What was held back for parameters, in layouts that are no more or in a state that was loaded.
        self._pieces: dict[str, dict[str, list[Piece]]] = {"residual": {}, "velocity": {}}
        self._first, self._second = Line("skyphos-select"), Line("skyphos-finish")
        #: What this step sent, to be put back if it is left out; whether it is.
        self._sent: list[tuple[Layout, Any, Any]] = []
        self._odd = self._leave_out = False
        self._skipped = 0
        self._sent_bytes = self._received_bytes = 0

    # -- What a kind of compression is.

    def _choose(self, name: str, parameter: torch.Tensor) -> int | None:
        """Values chosen of a bucket of a layer; None: it travels whole."""
        raise NotImplementedError

    def _select(self, layout: Layout, share: torch.Tensor, factor: float | None) -> Selection:
        """What is sent of a vector, whose gradients are multiplied by a factor first."""
        raise NotImplementedError

    def _quantize(self) -> Quantize | None:
        """How chosen values travel."""
        return None

    def _dense_quantize(self) -> Quantize | None:
        """How layers that are not compressed travel."""
        return None

    def _settings(self) -> dict[str, Any]:
        """What must be the same in a state that is loaded."""
        raise NotImplementedError

    # -- What the user sees.

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
        """Bytes that this rank has sent in the reductions of compressed gradients."""
        return self._sent_bytes

    @property
    def received_bytes(self) -> int:
        """Bytes that this rank has received in them."""
        return self._received_bytes

    def guard(self, optimizer: torch.optim.Optimizer) -> Any:
        """Let an optimizer leave out the steps in which a gradient was not finite, on all ranks alike.

        Its parameters then have no gradient (``None``) in that step, with which optimizers of torch do nothing.
        Returns the handle of the optimizer's hook.
        """

        def leave_out(of: torch.optim.Optimizer, *_: Any) -> None:
            if self._leave_out:
                self._leave_out = False
                for group in of.param_groups:
                    for parameter in group["params"]:
                        parameter.grad = None

        return optimizer.register_step_pre_hook(leave_out)

    def state_dict(self) -> dict[str, Any]:
        """Settings, steps, and what this rank holds back of each parameter: to be saved on each rank.

        Returns
        -------
        dict
            ``"residual"`` and ``"velocity"`` map names of parameters to pairs: the first value's place, and the values.
        """
        held: dict[str, dict[str, Any]] = {}
        for what in ("residual", "velocity"):
            pieces = dict(self._pieces[what])
            for layout in self._layouts.values():
                of = getattr(layout, what)
                if of is not None:
                    pieces |= {name: [piece] for name, piece in layout.pieces(of).items()}
            held[what] = {name: [(piece.start, piece.values) for piece in some] for name, some in pieces.items()}
        return {"settings": self._settings(), "steps": self._steps, **held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where another state of the same settings was, on the same rank.

        Raises
        ------
        BadInput
            The state of other settings, or no state of a hook.
        """
        try:
            settings, steps = state["settings"], int(state["steps"])
            held = {
                what: {
                    name: [Piece(int(start), values) for start, values in some] for name, some in state[what].items()
                }
                for what in ("residual", "velocity")
            }
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"this is no state of a {type(self).__name__}: {error!r}") from None
        if settings != self._settings():
            raise BadInput(f"the state is of a {type(self).__name__} with {settings}, this one has {self._settings()}")
        self._steps, self._pieces = steps, held
        self._layouts.clear()

    def close(self) -> None:
        """Leave the groups that were made for it. The next bucket makes new ones."""
        self._first.close()
        self._second.close()
        if self._levels is not None:
            self._levels.close()
            self._levels = None

    # -- A bucket.

    def reduce_bucket(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """The mean over ranks of a bucket of ``DistributedDataParallel``; what hooks return."""
        answer = Answer()
        try:
            self.reduce_vector(bucket.index(), bucket.parameters(), bucket.buffer(), answer, last=bucket.is_last())
        except Exception as error:
            # Raised here it would keep this rank from calls that DDP makes after the last bucket, and others wait for.
            answer.fail(error)
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

        To the mean over ranks, or with ``rate`` to the sum of the gradients times that.
        """
        if self._levels is None or self._levels.comm._native.closed:
            self._levels = Levels(comm_of(self._process_group), self._levels_asked)
        levels = self._levels
        if vector.is_sparse:
            self._reduce_sparse(levels, _Call(vector, answer, last))
        else:
            self._check(vector)
            layout = self._layout(number, parameters, vector, levels)
            call = _Call(vector, answer, last)
            if levels.two:
                flat = as_numbers(vector.cpu())
                work, share = levels.sum_inside(flat)

                def begin() -> Callable[[torch.Tensor], None]:
                    try:
                        work.wait()
                    except Exception as error:
                        # The other hosts wait for this one.
                        self._fail_all(layout, error)
                    mine = of_numbers(share, vector.dtype)
                    return self._begin(layout, mine.to(vector.device), rate)

                self._first.put(lambda: self._finish_later(layout, begin, call), answer)
            else:
                self._finish_later(layout, lambda: self._begin(layout, vector, rate), call)
        if last:
            self._steps += 1

    def _check(self, vector: torch.Tensor) -> None:
        problem = None
        if vector.device.type not in ("cpu", "cuda"):
            problem = f"gradients on {vector.device}: the hooks take those of the CPU and of CUDA"
        elif vector.dtype not in _FLOATS:
            problem = f"gradients of {vector.dtype}: the hooks take float16, bfloat16, float32 and float64"
        if problem is not None:
            assert self._levels is not None
            self._levels.comm._fail(BadInput(problem))

    def _layout(self, number: int, parameters: list[torch.Tensor], vector: torch.Tensor, levels: Levels) -> Layout:
        layout = self._layouts.get(number)
        if layout is not None and layout.key == tuple(id(parameter) for parameter in parameters):
            return layout
        if any(id(parameter) not in self._names for parameter in parameters):
            self._names |= names_of(parameters)
        if layout is not None:
            # DDP makes its buckets anew after the first step.
            self._dissolve(levels)
        key, layers = laid_out(parameters, self._names, self._choose)
        if layers and layers[-1].stop != vector.numel():
            message = f"a bucket of {vector.numel()} values, for parameters of {layers[-1].stop}"
            levels.comm._fail(BadInput(message))
        agree(
            levels.comm,
            f"{self._settings()} and {[(layer.name, layer.stop - layer.start, layer.k) for layer in layers]}",
        )
        layout = Layout(key, layers, levels.share(vector.numel()))
        self._layouts[number] = layout
        return layout

    def _dissolve(self, levels: Levels) -> None:
        """Make pieces of all that layouts hold back, for other layouts; another rank's share may then be this one's."""
        for what, pieces in self._pieces.items():
            mine: dict[str, list[Piece]] = {}
            for layout in self._layouts.values():
                of = getattr(layout, what)
                if of is not None:
                    for name, piece in layout.pieces(of).items():
                        mine.setdefault(name, []).append(piece)
            pieces.clear()
            everyone = levels.tell_inside(mine) if levels.two else [mine]
            for one in everyone:
                for name, some in one.items():
                    pieces.setdefault(name, []).extend(some)
        self._layouts.clear()

    # -- Among ranks, or hosts.

    def _factor(self, rate: float | None) -> float | None:
        """By what gradients are multiplied before they are added to a residual."""
        assert self._levels is not None
        factor = self._levels.mean_of_units if rate is None else rate
        if self._scaler is None:
            return factor
        return (1.0 if factor is None else factor) / float(self._scaler.get_scale())

    def _finish_later(self, layout: Layout, begin: Callable[[], Callable[[torch.Tensor], None]], call: _Call) -> None:
        """Begin to reduce this rank's share, and let the second line wait for it and write the result."""
        vector = call.vector
        try:
            write = begin()
        except Exception as error:
            write = _raising(error)

        def finish() -> None:
            levels = self._levels
            assert levels is not None
            if levels.two:
                mine = torch.empty(len(layout.share), dtype=vector.dtype)
                try:
                    write(mine)
                except Exception as error:
                    levels.fail_inside(error)
                whole = vector if vector.device.type == "cpu" else torch.empty_like(vector, device="cpu")
                levels.give_inside(as_numbers(mine), as_numbers(whole))
                if whole is not vector:
                    vector.copy_(whole)
            else:
                write(vector)
            if call.last:
                self._end_step()
            call.answer.give(vector)

        self._second.put(finish, call.answer)

    def _begin(self, layout: Layout, share: torch.Tensor, rate: float | None) -> Callable[[torch.Tensor], None]:
        """Begin the reduction of a share; what is returned waits, and writes the mean to a tensor like it."""
        assert self._levels is not None
        across = self._levels.across
        if across is None:
            return self._alone(layout, share, rate)
        op: Literal["mean", "sum"] = "mean" if rate is None else "sum"
        selection = self._select(layout, share, self._factor(rate))
        chosen = self._sends_chosen(layout)
        if selection.odd is not None and self._nonfinite == "raise":
            self._fail_all(layout, BadInput(f"rank {self._levels.comm.rank}: {selection.odd}"))
        scale = None if self._scaler is None else float(self._scaler.get_scale())
        places, picked, length = selection.places, selection.picked, len(share)
        marks = self._nonfinite != "raise"
        if marks and selection.odd is not None:
            places, picked = np.array([length], np.uint32), np.ones(1, picked.dtype)
        if marks:
            self._sent.append((layout, selection.places, selection.picked))
        works: list[Any] = []
        with across.fuse():
            if chosen:
                vector = SparseVector._of(places, picked, None, length + marks)
                works.append(self._reduce_chosen(layout, vector, op))
            if layout.dense:
                numbers = as_numbers(selection.dense)
                reduced = torch.empty_like(selection.dense)
                quantize = self._dense_quantize()
                works.append(
                    across.allreduce(numbers, op=op, out=as_numbers(reduced), quantize=quantize, async_op=True)
                )

        def write(into: torch.Tensor) -> None:
            results = [work.wait() for work in works]
            odd = False
            if not layout.dense or layout.sparse or marks:
                into.zero_()
            if chosen:
                odd = self._write_chosen(results[0], into, length)
            if layout.dense:
                spread(reduced.to(into.device), layout.dense, into)
            if scale is not None:
                into.mul_(scale)
            if odd:
                self._write_odd(into)

        return write

    def _write_odd(self, into: torch.Tensor) -> None:
        """What a vector is in a step that is left out, or in which a scaler is to find something."""
        self._odd = True
        into.fill_(float("nan") if self._nonfinite == "pass" else 0.0)

    def _alone(self, layout: Layout, share: torch.Tensor, rate: float | None) -> Callable[[torch.Tensor], None]:
        """Of one host: its mean."""
        assert self._levels is not None
        factor = self._levels.mean_of_units if rate is None else rate
        mean = share if factor is None else share * factor
        odd = first_odd(mean)
        if odd is not None and self._nonfinite == "raise":
            raise BadInput(f"rank {self._levels.comm.rank}: {words(layout, odd, mean[odd])}")

        def write(into: torch.Tensor) -> None:
            into.copy_(mean)
            if odd is not None:
                self._write_odd(into)

        return write

    def _reduce_chosen(self, layout: Layout, vector: SparseVector, op: Literal["mean", "sum"]) -> Any:
        """Begin the sparse allreduce; its result is known to have about as many entries as the last."""
        levels = self._levels
        assert levels is not None and levels.across is not None
        settings = _allreduce_settings(
            self._algorithm, None, "quantiles", None, self._quantize(), expected_nnz=layout.entries
        )
        places, picked = vector.indices, vector.values

        def sent(became: Any) -> None:
            if self._feedback == "quantised" and layout.residual is not None:
                put_back(layout.residual, places, picked - became)

        def finish(reduced: SparseVector, told: Any) -> SparseVector:
            layout.entries = max(1, reduced.nnz)
            self._sent_bytes += told[3]
            self._received_bytes += told[5]
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
        if reduced.is_dense:
            values = reduced.to_dense()
            into.copy_(of_numbers(values[:length], into.dtype))
            return reduced.n > length and bool(np.isin(length, reduced.indices))
        places, values = reduced.indices, reduced.values
        odd = len(places) > 0 and int(places[-1]) == length
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

    def _fail_all(self, layout: Layout, error: Exception) -> NoReturn:
        """An error on all ranks, in each of the calls that they make for this vector."""
        assert self._levels is not None
        across = self._levels.across
        if across is not None:
            for _ in range(self._sends_chosen(layout) + bool(layout.dense)):
                with suppress(SkyphosError):
                    across._fail(error)
        raise error

    def _end_step(self) -> None:
        """After the last bucket: if the step is left out, what it sent is still to be sent."""
        assert self._levels is not None
        if self._levels.two and self._nonfinite != "raise":
            self._odd = self._levels.any_inside(self._odd)
        if self._odd:
            self._skipped += 1
            for layout, places, picked in self._sent:
                if layout.residual is not None:
                    put_back(layout.residual, places, picked)
        self._leave_out = self._odd and self._nonfinite == "skip"
        self._odd = False
        self._sent.clear()

    # -- Sparse gradients.

    def _reduce_sparse(self, levels: Levels, call: _Call) -> None:
        """Those of embeddings: a sparse allreduce of all ranks."""
        gradient = call.vector
        check([gradient])
        work = levels.comm.allreduce(as_vector(gradient), op="mean", async_op=True)

        def finish() -> None:
            fill_sparse(gradient, work.wait())
            if call.last:
                self._end_step()
            call.answer.give(gradient)

        self._second.put(finish, call.answer)


def _raising(error: Exception) -> Callable[[torch.Tensor], None]:
    def write(_: torch.Tensor) -> None:
        raise error

    return write
