"""Times of the stages of an iteration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

__all__ = ["MOVING", "STAGES", "Iteration"]

#: Stages in their order.
STAGES = ("broadcast", "map", "shuffle", "reduce", "allreduce", "combine", "checkpoint")

#: Transfer of keys while earlier keys are reduced; it overlaps with the stages.
MOVING = "moving"


@dataclass
class Iteration:
    """Times and counts of an iteration on this rank; ``print`` it.

    Attributes
    ----------
    number : int
        Number of the iteration, from 1.
    seconds : dict of str to float
        Seconds of each stage. Keys are reduced while the next ones are in transfer, so ``shuffle`` is only the time for
        which this rank waited.
    total : float
        Seconds of the iteration: less than the sum of the stages if they overlapped.
    tasks, keys : int
        Numbers of map tasks that ran and keys that were reduced on this rank.
    taken, copied : int
        Numbers of these tasks that this rank took over from another, and that it copied (``schedule=``).
    sent_bytes : int
        Bytes that the shuffle sent to other ranks.
    read_bytes, remote_bytes : int
        Bytes read from files, and from files that another host has.

    Examples
    --------
    >>> from skyphos.mapreduce import Iteration
    >>> print(Iteration(1, {"map": 0.5, "reduce": 0.25}, total=0.7, tasks=4, keys=10))
    iteration 1: 0.700 s: map 0.500, reduce 0.250; 4 tasks, 10 keys, 0 bytes sent
    """

    number: int
    seconds: dict[str, float] = field(default_factory=dict)
    total: float = 0.0
    tasks: int = 0
    keys: int = 0
    taken: int = 0
    copied: int = 0
    sent_bytes: int = 0
    read_bytes: int = 0
    remote_bytes: int = 0
    #: A stage, with its start and end in seconds since the iteration began.
    spans: list[tuple[str, float, float]] = field(default_factory=list, repr=False)
    _begin: float = field(default_factory=perf_counter, repr=False, compare=False)

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Add the time of a block to a stage."""
        start = perf_counter()
        try:
            yield
        finally:
            self.count(stage, start)

    def count(self, stage: str, start: float) -> None:
        """Add the time since ``start``, by ``perf_counter``, to a stage."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + perf_counter() - start
        self._note(stage, start)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Record a block in which keys are transferred."""
        start = perf_counter()
        try:
            yield
        finally:
            self._note(MOVING, start)

    def _note(self, stage: str, start: float) -> None:
        self.spans.append((stage, start - self._begin, perf_counter() - self._begin))

    def __str__(self) -> str:
        stages = ", ".join(f"{stage} {self.seconds[stage]:.3f}" for stage in STAGES if stage in self.seconds)
        read = f", {self.read_bytes:,} read ({self.remote_bytes:,} of other hosts)" if self.read_bytes else ""
        others = f" ({self.taken:,} taken over, {self.copied:,} second copies)" if self.taken or self.copied else ""
        return (
            f"iteration {self.number}: {self.total:.3f} s: {stages}; {self.tasks:,} tasks{others}, {self.keys:,} keys, "
            f"{self.sent_bytes:,} bytes sent{read}"
        )
