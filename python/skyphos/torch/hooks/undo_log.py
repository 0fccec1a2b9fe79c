"""Undo log of a step: the values that it took out of residuals, so that a failed step can put them back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .layout import Layout
from .selection import put_back

__all__ = ["SentValues", "UndoLog"]


@dataclass
class SentValues:
    """The values of one vector that left its residual."""

    layout: Layout
    indices: npt.NDArray[np.uint32]
    values: npt.NDArray[Any]
    is_undone: bool = False

    def undo(self) -> None:
        """Put the values back. A second call does nothing."""
        if not self.is_undone and self.layout.residual is not None:
            put_back(self.layout.residual, self.indices, self.values)
        self.is_undone = True


class UndoLog:
    """The values sent in each step under way, and the step that failed last.

    The hook's thread or the select worker adds to the log. The finish worker, which finishes vectors in order, reads
    it.
    """

    def __init__(self) -> None:
        self._sent: dict[int, list[SentValues]] = {}
        #: The step that failed last, or -1.
        self.failed_step = -1

    def add(self, step: int, sent: SentValues) -> None:
        """Log a vector's values."""
        self._sent.setdefault(step, []).append(sent)

    def fail(self, step: int) -> None:
        """Undo a step because one of its vectors failed."""
        self.failed_step = step
        self.undo(step)

    def undo(self, step: int) -> None:
        """Put back the values that the step has sent so far."""
        for sent in list(self._sent.get(step, ())):
            sent.undo()

    def finish_vector(self, step: int) -> None:
        """After a vector's reduction: undo it too if an earlier vector of the step failed."""
        if step == self.failed_step:
            self.undo(step)

    def finish_step(self, step: int) -> None:
        """Forget a step that needs no undo."""
        self._sent.pop(step, None)
