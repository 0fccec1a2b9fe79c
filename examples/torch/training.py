"""The training loop of the examples: the same steps for any number of ranks, dense or compressed.

A task defines the model, its samples and its metrics. Losses are summed over a rank's samples and divided by the size
of the *global* batch, so the mean over ranks, which the gradient exchange computes, is the loss of the whole batch for
any number of ranks. Only dropout and batch norm depend on the rank.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from batches import global_batches, share
from exchange import Spent, average_blocks, machine_bytes, wrap
from group import Place, group
from options import Run
from record import Display, Record

__all__ = ["Task", "train"]


class Task(ABC):
    """Base class of the examples' tasks.

    Attributes
    ----------
    name : str
    headline : tuple of str
        Names of the main metrics, the most usual one first.
    counts, lengths : sequence of int
        Weight in a batch and length of each training sample.
    """

    name: str
    headline: tuple[str, ...]
    counts: Sequence[int]
    lengths: Sequence[int]

    @abstractmethod
    def model(self) -> nn.Module:
        """The model. Called with the tensors of ``batch``, it returns the sum of those samples' losses."""

    @abstractmethod
    def units(self, samples: Sequence[int]) -> int:
        """The number of units, such as words, over which the loss of these training samples is averaged."""

    @abstractmethod
    def batch(self, samples: Sequence[int], epoch: int) -> tuple[Tensor, ...]:
        """Training samples as tensors."""

    @abstractmethod
    def sums(self, model: nn.Module, rank: int, size: int) -> Mapping[str, float]:
        """Counts over a rank's share of the test samples, to be added up over ranks; all ranks give the same names."""

    @abstractmethod
    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Metrics, from counts over all test samples."""


def train(make: Callable[[], Task], run: Run) -> None:
    """Train as the run says; rank 0 shows and records it."""
    with group(run.backend) as place:
        _train(make, run, place)  # a function of its own, so that its objects are freed before the group ends


def _train(make: Callable[[], Task], run: Run, place: Place) -> None:
    training = Training(_first_alone(make, place), run, place)
    for epoch in range(run.settings.epochs):
        training.epoch(epoch)
    training.end()


def _first_alone(make: Callable[[], Task], place: Place) -> Task:
    """Make the task on one rank of each host first, because it may fill a cache that the others read."""
    if place.local_rank == 0:
        task = make()
    dist.barrier()
    return task if place.local_rank == 0 else make()


class Training:
    """A model in training, with the same parameters on all ranks after each step."""

    def __init__(self, task: Task, run: Run, place: Place) -> None:
        self._task, self._settings, self._seed, self._place = task, run.settings, run.seed, place
        torch.manual_seed(run.seed)
        self._spent = Spent()
        self._ddp = wrap(task.model(), run, self._spent, len(self._batches(0)))
        torch.manual_seed(run.seed + 1000 * place.rank)  # dropout: each rank its own
        self._optimizer = _optimizer(self._ddp, run)
        self._end_block = average_blocks(self._optimizer, run, place.size, self._spent)
        parameters = sum(parameter.numel() for parameter in self._ddp.parameters())
        self._record = Record(task.name, task.headline, run, place, parameters)
        self._display = Display(self._record, quiet=place.rank > 0)

    def epoch(self, epoch: int) -> None:
        """Run all steps of an epoch, counted from 0; evaluate after some epochs and after the last."""
        rate = self._settings.rate(epoch)
        for each in self._optimizer.param_groups:
            each["lr"] = rate
        steps = self._batches(epoch)
        before, bytes_before = replace(self._spent), machine_bytes()
        begin, busy = time.perf_counter(), time.thread_time()
        loss = self._steps(steps, epoch)
        seconds, busy = time.perf_counter() - begin, time.thread_time() - busy
        bytes_after = machine_bytes()
        begin, metrics = time.perf_counter(), {}
        if (epoch + 1) % self._settings.evaluate_every == 0 or epoch + 1 == self._settings.epochs:
            _average_buffers(self._ddp.module, self._place.size)
            metrics = evaluate(self._task, self._ddp.module, self._place)
        entry = {
            "epoch": epoch + 1,
            "steps": len(steps),
            "rate": rate,
            "train_loss": loss,
            "train_s": seconds,
            # Processor time of the training thread, without waiting for other ranks or for a core.
            "busy_s": busy,
            "seconds": self._spent.since(before),
            "gradient_bytes": self._spent.gradient_bytes - before.gradient_bytes,
            **{name: bytes_after[name] - count for name, count in bytes_before.items()},
            **metrics,
            "evaluate_s": time.perf_counter() - begin,
        }
        self._record.add(entry)
        self._display.epoch(entry)

    def end(self) -> None:
        """Compare the ranks' parameters."""
        self._record.end(_all_equal(self._ddp.module, self._place.size))
        self._display.end()

    def _batches(self, epoch: int) -> list[list[int]]:
        """The samples of an epoch's steps."""
        return global_batches(self._task.counts, self._task.lengths, self._settings.batch, self._seed, epoch)

    def _steps(self, steps: Sequence[Sequence[int]], epoch: int) -> float:
        """Run these steps; return their mean loss."""
        self._ddp.train()
        loss_sum, units = torch.zeros((), dtype=torch.float64), 0
        for samples in steps:
            begin = time.perf_counter()
            batch_units = self._task.units(samples)
            loss_sum += self._step(samples, batch_units, epoch)
            units += batch_units
            self._spent.step_s += time.perf_counter() - begin
            self._display.step(epoch, len(steps))
        self._end_block()
        dist.all_reduce(loss_sum)
        return float(loss_sum) / units

    def _step(self, samples: Sequence[int], units: int, epoch: int) -> Tensor:
        """Run one step with a global batch of so many units; return the sum of the losses of this rank's share."""
        mine = share(samples, self._place.rank, self._place.size)
        # With fewer samples than ranks, ranks without samples take part with a loss of zero.
        loss: Tensor = self._ddp(*self._task.batch(mine or samples[:1], epoch)) * (1 if mine else 0)
        self._optimizer.zero_grad()
        (loss * (self._place.size / units)).backward()
        self._spent.waited()
        if self._settings.clip is not None:
            nn.utils.clip_grad_norm_(self._ddp.parameters(), self._settings.clip)
        self._optimizer.step()
        return loss.detach()


def _optimizer(model: nn.Module, run: Run) -> torch.optim.Optimizer:
    settings = run.settings
    if settings.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    # With momentum correction the hook applies the momentum.
    momentum = 0.0 if run.compress == "topk" and settings.momentum_correction else settings.momentum
    return torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=momentum, weight_decay=settings.weight_decay)


def evaluate(task: Task, model: nn.Module, place: Place) -> dict[str, float]:
    """The task's metrics over all test samples, divided among ranks."""
    model.eval()
    with torch.no_grad():
        sums = task.sums(model, place.rank, place.size)
    names = sorted(sums)
    values = torch.tensor([sums[name] for name in names], dtype=torch.float64)
    dist.all_reduce(values)
    return task.metrics(dict(zip(names, values.tolist(), strict=True)))


def _average_buffers(model: nn.Module, size: int) -> None:
    """Average the ranks' batch norm statistics, with which all ranks evaluate."""
    for buffer in model.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer.div_(size)


def _all_equal(model: nn.Module, size: int) -> bool:
    """Whether all ranks have the same parameters, to the last bit."""
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy())
    digests: list[str | None] = [None] * size
    dist.all_gather_object(digests, digest.hexdigest())
    return len(set(digests)) == 1
