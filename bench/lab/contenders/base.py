"""Base class of contenders: join, convert the input, reduce, return the answer, leave."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from ..data import Data
from ..oracle import Answer


@dataclass(frozen=True)
class Place:
    """A rank's address and number, and the inputs' shape and operation."""

    rank: int
    size: int
    addresses: tuple[str, ...]
    ports: tuple[int, ...]
    n: int
    dtype: str
    op: str


class Contender(ABC):
    """One implementation of the allreduce. Each rank has an instance; all methods are called on all ranks in step.

    Only :meth:`run` is timed. Converting the input before it and the answer after it is not timed, for any
    contender.
    """

    kind: ClassVar[str] = "sparse"
    """``ours``: Skyphos; ``dense`` or ``sparse``: another library; ``partial``: delivers only a part; ``probe``: no
    allreduce; ``computing``: no communication; ``together``: an allreduce and a computation at once."""
    mpi: ClassVar[bool] = False
    """Whether its ranks must be started by ``mpiexec``."""
    ops: ClassVar[tuple[str, ...]] = ("sum",)

    def missing(self) -> str | None:
        """The reason why it cannot take part on this machine, or None. Called before any rank starts."""
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
        """Return when all ranks are done, because others may still need a rank after its own :meth:`run`."""
        return

    def close(self) -> None:
        """Leave the group."""
        return
