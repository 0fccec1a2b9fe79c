"""State of a communication hook: its settings, and the pipeline that reduces the gradients of a step.

::

    hook thread      one level:   select values, start their allreduce among ranks
                     two levels:  start the sum within the host
    select worker                 wait for that sum, select values, start their allreduce among hosts  (two levels)
    finish worker                 wait for the allreduce, gather it within the host, write it to the bucket

Each worker takes buckets in order, so all ranks make the calls of a group in the same order. Buckets overlap each other
and the rest of backward.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import Any, NoReturn

import torch

from ...collectives.agreement import fail
from ...collectives.quantize import Quantize
from ...errors import BadInput
from ..backend.group_comm import check_group, comm_of, group_of
from ..backend.ordered_worker import OrderedWorker, Promise
from ..backend.tensors import as_numbers, of_numbers
from ..training.consistency import require_same
from ..training.skip_step import skip_steps
from .bucket_layouts import BucketLayouts
from .layout import Layout
from .levels import Levels
from .parameter_names import ParameterNames
from .selection import Selection, describe_non_finite, first_non_finite
from .share_reduction import VectorCall, Write, fail_share, start_share
from .sparse_gradient import start_sparse_gradient
from .undo_log import UndoLog

__all__ = ["HookState"]

_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


class HookState:
    """Base class of the states of communication hooks. Subclasses define the compression."""

    #: Algorithm of the sparse allreduce.
    _algorithm: str = "auto"
    #: Content of the residual: nothing, values that were not sent, or ("quantised") quantisation errors too.
    _feedback: bool | str = False
    #: Momentum of the momentum correction.
    _momentum: float | None = None

    def __init__(self, levels: int, nonfinite: str, grad_scaler: Any, process_group: Any, model: Any) -> None:
        if levels not in (1, 2):
            raise BadInput(f"levels must be 1 or 2, not {levels!r}")
        if nonfinite not in ("raise", "skip", "pass"):
            raise BadInput(f'nonfinite must be "raise", "skip" or "pass", not {nonfinite!r}')
        if grad_scaler is not None and not hasattr(grad_scaler, "get_scale"):
            raise BadInput(f"grad_scaler must be a torch.amp.GradScaler or None, not {grad_scaler!r}")
        if grad_scaler is not None and nonfinite != "pass":
            raise BadInput(
                f'with a grad_scaler pass nonfinite="pass", not {nonfinite!r}: the scaler has to see NaN and infinity '
                "to lower its scale"
            )
        if not isinstance(model, torch.nn.Module | None):
            raise BadInput(f"model must be a torch.nn.Module or None, not {model!r}")
        check_group(process_group)
        self._levels_asked, self._nonfinite = levels, nonfinite
        self._scaler, self._process_group = grad_scaler, process_group
        self._steps = 0
        self._levels: Levels | None = None
        self._names = ParameterNames(model)
        self._layouts = BucketLayouts()
        #: Whether patterns and a loaded state were compared with the names of all parameters.
        self._has_checked_names = False
        self._select_worker, self._finish_worker = OrderedWorker("skyphos-select"), OrderedWorker("skyphos-finish")
        self._undo_log = UndoLog()
        #: Whether all gradients of the step under way are finite.
        self._is_finite = True
        #: The last step that optimizers are to skip.
        self._skipped_step: int | None = None
        #: Whether anything calls :meth:`leaves_out`.
        self._is_polled = False
        self._skipped = 0
        self._sent_bytes = self._received_bytes = 0
        #: Whether the warning that nothing is compressed was given.
        self._has_warned = False

    # -- For subclasses: the kind of compression.

    def _choose(self, name: str, parameter: torch.Tensor) -> int | None:
        """Number of values selected in each bucket of a layer. None: the layer is not compressed."""
        raise NotImplementedError

    def _select(self, layout: Layout, share: torch.Tensor, factor: float | None, step: int) -> Selection:
        """Select the values of a share to send in a step. Gradients are multiplied by the factor first."""
        raise NotImplementedError

    def _quantize(self) -> Quantize | None:
        """Quantisation of chosen values."""
        return None

    def _dense_quantize(self) -> Quantize | None:
        """Quantisation of layers that are not compressed."""
        return None

    def _settings(self) -> dict[str, Any]:
        """The settings that must be the same on all ranks and in a loaded state, as plain values."""
        raise NotImplementedError

    def _patterns(self) -> Sequence[str]:
        """Patterns of names, each of which must fit some parameter."""
        return ()

    # -- For users.

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._described(self._settings()))})"

    @property
    def steps(self) -> int:
        """Number of steps whose gradients have been reduced."""
        return self._steps

    @property
    def skipped(self) -> int:
        """Number of steps that were skipped because a gradient was not finite."""
        return self._skipped

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent to reduce gradients; with two levels, bytes sent to other hosts.

        With two levels on one host it stays 0, because nothing is compressed. A warning says so once.
        """
        levels = self._levels
        if levels is not None and not levels.compresses and levels.comm.rank == 0 and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{type(self).__name__}.sent_bytes stays 0: it counts bytes sent to other hosts, and with levels=2 the "
                "ranks of one host add up whole gradients in its memory. levels=1 compresses between ranks",
                stacklevel=2,
            )
        return self._sent_bytes

    @property
    def received_bytes(self) -> int:
        """Bytes that this rank has received to reduce gradients."""
        return self._received_bytes

    def guard(self, optimizer: torch.optim.Optimizer) -> Any:
        """Make an optimizer skip the steps in which a gradient was not finite, on all ranks alike.

        In such a step its parameters have no gradient (``None``), so PyTorch's optimizers do nothing. If ``step`` gets
        a closure, gradients are removed after each call of the closure. Several optimizers need a guard each. Returns
        the handle of the optimizer's hook.
        """
        if getattr(optimizer, "compression", None) is self:
            return optimizer.register_step_pre_hook(lambda *_: None)  # it skips steps by itself
        return skip_steps(optimizer, self)

    def leaves_out(self) -> bool:
        """Whether the step whose gradients were reduced last is to be skipped."""
        self._is_polled = True
        return self._skipped_step == self._steps - 1

    def state_dict(self) -> dict[str, Any]:
        """Settings, number of steps, and this rank's residuals. Save it on each rank.

        Returns
        -------
        dict
            ``"residual"`` and ``"velocity"`` map names of parameters to lists of pairs: an index of the parameter, and
            the values from there on. ``"owner"`` is this rank, the number of ranks and with two levels the ranks of
            each host (None before the first gradients). The random numbers of quantisation are not part of the state.
        """
        self._drain()
        return {"settings": self._settings(), "steps": self._steps, **self._layouts.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state of the same settings, on the same rank. All ranks load theirs, or none does.

        Raises
        ------
        BadInput
            The state has other settings, or is not a state of a hook. With the next gradients, on all ranks: the state
            has parameters of other sizes, or is of another rank or another number of ranks.
        """
        try:
            settings, steps = state["settings"], index(state["steps"])
            if settings.keys() != self._settings().keys():
                raise BadInput(f"this is not a state of a {type(self).__name__}, but of another hook")
            if settings != self._settings():
                differing = [name for name, value in self._settings().items() if settings.get(name, None) != value]
                saved = ", ".join(f"{name}={settings.get(name)!r}" for name in differing)
                raise BadInput(
                    f"the state is of a {type(self).__name__} with {saved}, not {', '.join(self._described(differing))}"
                )
            if steps < 0:
                raise BadInput(f"a state after {steps} steps")
            self._layouts.load(state)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"this is not a state of a {type(self).__name__}: {error!r}") from None
        self._drain()
        self._steps, self._skipped_step = steps, None
        self._has_checked_names = False
        self._layouts.clear()
        self._undo_log = UndoLog()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse copy and pickle: the state has threads, groups and parameters."""
        name = type(self).__name__
        raise TypeError(f"a {name} cannot be copied or pickled: make another, and load_state_dict() its state_dict()")

    def close(self) -> None:
        """Leave the groups that were made for this state. The next bucket makes new ones."""
        self._select_worker.close()
        self._finish_worker.close()
        if self._levels is not None:
            self._levels.close()
            self._levels = None

    # -- The reduction of a vector.

    def registered_with(self, model: torch.nn.parallel.DistributedDataParallel) -> None:
        """Store the model of the hook. ``DistributedDataParallel.register_comm_hook`` calls it."""
        self._names.register(model)

    def reduce_bucket(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Reduce a bucket of ``DistributedDataParallel`` to its mean over ranks. This is what a hook returns."""
        promise = Promise()
        self.reduce_vector(bucket.index(), bucket.parameters(), bucket.buffer(), promise, is_last=bucket.is_last())
        return promise.future

    def reduce_vector(
        self,
        number: int,
        parameters: list[torch.Tensor],
        vector: torch.Tensor,
        promise: Promise,
        *,
        is_last: bool,
        rate: float | None = None,
    ) -> None:
        """Start to reduce the gradients of these parameters, in place. ``is_last`` marks the last vector of a step.

        Without ``rate`` the result is the mean over ranks, else the sum times the rate. Errors end the promise and are
        not raised: a hook that raised would keep this rank from the calls that DDP makes after the last bucket.
        """
        call = VectorCall(vector, promise, is_last, self._steps, rate)
        try:
            self._start(number, parameters, call)
        except Exception as error:
            write = _raising(error)
            if self._levels is not None and self._levels.has_two:
                self._select_worker.submit(lambda: self._finish_later(call, write), promise)
            else:
                self._finish_later(call, write)
        finally:
            self._steps += is_last

    def _start(self, number: int, parameters: list[torch.Tensor], call: VectorCall) -> None:
        """Start the reduction of a vector, and queue the rest of it."""
        vector = call.vector
        if self._undo_log.failed_step not in (-1, call.step):
            self._drain()
            self._undo_log.failed_step = -1
        self._names.learn(parameters)
        levels = self._open_levels()
        if vector.is_sparse:
            self._check_names(levels, call)
            return self._finish_later(call, start_sparse_gradient(self, self._names[parameters[0]], vector))
        self._check_types(parameters, vector)
        layout = self._layouts.layout_of(
            number,
            parameters,
            vector,
            choose=self._choose,
            names=self._names,
            levels=levels,
            step=self._steps,
            has_velocity=self._momentum is not None,
        )
        self._check_names(levels, call)
        if not levels.has_two:
            return self._finish_share_later(layout, lambda: start_share(self, layout, vector, call), call)
        flat = as_numbers(vector.cpu())
        bad = first_non_finite(vector) if self._nonfinite == "raise" else None
        if bad is None:
            wait_for_sum = levels.sum_inside(flat)
        else:
            where = describe_non_finite(layout, bad, vector[bad])
            wait_for_sum = levels.fail_sum(BadInput(f"rank {levels.comm.rank}: {where}"))

        def start() -> Write:
            try:
                share = of_numbers(wait_for_sum(), vector.dtype)
            except Exception as error:
                fail_share(self, layout, error)  # the other hosts wait for this one
            return start_share(self, layout, share.to(vector.device), call)

        self._select_worker.submit(lambda: self._finish_share_later(layout, start, call), call.promise)

    def _finish_share_later(self, layout: Layout, start: Callable[[], Write], call: VectorCall) -> None:
        """Start the reduction of this rank's share, and queue the rest of it."""
        try:
            write_share = start()
        except Exception as error:
            write_share = _raising(error)

        def write(vector: torch.Tensor) -> None:
            levels = self._levels
            assert levels is not None
            if not levels.has_two:
                return write_share(vector)
            share = torch.empty(len(layout.share), dtype=vector.dtype)
            try:
                write_share(share)
            except Exception as error:
                levels.fail_inside(error)
            whole = vector if vector.device.type == "cpu" else torch.empty_like(vector, device="cpu")
            levels.allgather_shares(as_numbers(share), as_numbers(whole))
            if whole is not vector:
                vector.copy_(whole)

        self._finish_later(call, write)

    def _finish_later(self, call: VectorCall, write: Write) -> None:
        """Have the finish worker write the result and end the promise."""

        def finish() -> None:
            try:
                write(call.vector)
                self._undo_log.finish_vector(call.step)
                if call.is_last:
                    self._finish_step(call.step)
            except Exception:
                self._undo_log.fail(call.step)
                raise
            finally:
                if call.is_last:
                    self._is_finite = True
                    self._undo_log.finish_step(call.step)
            call.promise.set_result(call.vector)

        self._finish_worker.submit(finish, call.promise)

    def _finish_step(self, step: int) -> None:
        """After the last vector: if the step is skipped, put back what it sent."""
        assert self._levels is not None
        if self._levels.has_two and self._nonfinite != "raise":
            self._is_finite = not self._levels.any_inside(not self._is_finite)
        if self._is_finite:
            return
        self._skipped += 1
        self._undo_log.undo(step)
        if self._nonfinite == "skip":
            self._skipped_step = step
            if not self._is_polled:
                raise BadInput(
                    f"a gradient of step {step} is not finite, and no optimizer would skip the step: call "
                    "guard(optimizer) of the hook's state, or call leaves_out() of it before each optimizer step"
                )

    def _drain(self) -> None:
        """Wait until the workers have done all their tasks, so that a failed step has put back what it sent."""
        self._select_worker.drain()
        self._finish_worker.drain()

    def _count(self, sent_bytes: int, received_bytes: int) -> None:
        self._sent_bytes += sent_bytes
        self._received_bytes += received_bytes

    # -- Checks that all ranks make together.

    def _open_levels(self) -> Levels:
        """The groups of ranks and hosts, made on first use. Collective then."""
        if self._levels is None or self._levels.comm._native.closed:
            comm = comm_of(group_of(self._process_group, self._names.process_group))
            require_same(comm, [f"a {type(self).__name__}", *self._described(self._settings()), *self._facts()])
            self._levels = Levels(comm, self._levels_asked)
        return self._levels

    def _described(self, names: Iterable[str]) -> list[str]:
        """Settings as ``name=value``."""
        settings = self._settings()
        return [f"{name}={settings[name]!r}" for name in names]

    def _facts(self) -> list[str]:
        """Further facts that must be the same on all ranks."""
        scaler = "no grad_scaler" if self._scaler is None else "a grad_scaler"
        patterns = [f"pattern {pattern!r}" for pattern in self._patterns()]
        return [f"nonfinite={self._nonfinite!r}", f"algorithm={self._algorithm!r}", scaler, *patterns]

    def _check_names(self, levels: Levels, call: VectorCall) -> None:
        """Refuse patterns and loaded names that no parameter has.

        Checked once, with the last vector of the first step, when all names are known. Collective then.
        """
        if not call.is_last or self._has_checked_names:
            return
        unused = [pattern for pattern in self._patterns() if not self._names.matches(pattern)]
        if unused:
            cause = ""
            if not self._names.has_model:
                cause = ": parameters have no names without a model, so pass model="
            self._fail(f"k= or layers= have {', '.join(map(repr, unused))}, which no parameter's name fits{cause}")
        if (unclaimed := self._layouts.unclaimed()) is not None:
            self._fail(unclaimed)
        levels.comm.barrier()  # raises the error of a rank whose state does not fit
        self._has_checked_names = True

    def _check_types(self, parameters: list[torch.Tensor], vector: torch.Tensor) -> None:
        unfit = [one for one in parameters if one.dtype not in _FLOATS]
        if vector.device.type not in ("cpu", "cuda"):
            self._fail(f"gradients on {vector.device}: the hooks take those of the CPU and of CUDA")
        elif unfit or vector.dtype not in _FLOATS:
            some = ", ".join(f"{self._names[one]} ({one.dtype})" for one in unfit[:4]) or str(vector.dtype)
            self._fail(f"gradients of {some}: the hooks take float16, bfloat16, float32 and float64")

    def _fail(self, problem: str) -> NoReturn:
        """Raise an error on all ranks, in the next call that they all make. They still make the step's other calls."""
        assert self._levels is not None
        fail(self._levels.comm, BadInput(problem), goes_on=True)


def _raising(error: Exception) -> Write:
    def write(_: torch.Tensor) -> None:
        raise error

    return write
