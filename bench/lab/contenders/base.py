"""What every contender does: join, take its input, reduce, show its answer, leave."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from ..data import Data
from ..oracle import Answer


@dataclass(frozen=True)
class Place:
    """Where a rank is and what all ranks reduce."""

    rank: int
    size: int
    addresses: tuple[str, ...]
    ports: tuple[int, ...]
    n: int
    dtype: str
    op: str


class Contender(ABC):
    """One way to make the allreduce. Each rank has one of its own; all methods are called on all ranks in step.

    Only :meth:`run` is timed. What comes before it (an input in the contender's own form) and after it (an answer
    that can be checked) is not, for anybody.
    """

    kind: ClassVar[str] = "sparse"
    """``ours``; ``dense`` or ``sparse`` of others; ``partial``: delivers only a part; ``probe``: no allreduce;
    ``computing``: no communication; ``together``: an allreduce and a computation at once."""
    mpi: ClassVar[bool] = False
    """Whether its ranks must be started by ``mpiexec``."""
    ops: ClassVar[tuple[str, ...]] = ("sum",)

    def missing(self) -> str | None:
        """Why it cannot take part on this machine; None where it can. Called before any rank starts."""
        return None

    @abstractmethod
    def setup(self, place: Place) -> None:
        """Join the group."""

    @abstractmethod
    def prepare(self, data: Data) -> Any:
        """The input in its own form, new for each iteration."""

    @abstractmethod
    def run(self, given: Any) -> Any:
        """Reduce. Timed."""

    @abstractmethod
    def answer(self, result: Any) -> Answer | None:
        """The result as a dense vector, or as indices and values; None: nothing to check."""

    def settle(self) -> None:
        """Return when all ranks are done: a rank may still be needed by others after its own :meth:`run`."""
        return

    def close(self) -> None:
        """Leave the group."""
        return
