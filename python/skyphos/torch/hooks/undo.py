"""What has left residuals in a step, so that it can be put back if the step comes to nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .layout import Layout
from .selection import put_back

__all__ = ["Ledger", "Sent"]


@dataclass
class Sent:
    """Values of one vector that are no more in its residual."""

    layout: Layout
    places: npt.NDArray[np.uint32]
    values: npt.NDArray[Any]
    is_back: bool = False

    def put_back(self) -> None:
        """Once."""
        if not self.is_back and self.layout.residual is not None:
            put_back(self.layout.residual, self.places, self.values)
        self.is_back = True


class Ledger:
    """What each step under way has sent, and which step failed last.

    The thread of the hook, or the first line, writes; the second line, which ends vectors in their order, reads.
    """

    def __init__(self) -> None:
        self._sent: dict[int, list[Sent]] = {}
        self.failed = -1

    def add(self, step: int, sent: Sent) -> None:
        """A vector's."""
        self._sent.setdefault(step, []).append(sent)

    def fail(self, step: int) -> None:
        """A vector of this step has failed, so all of the step is in vain."""
        self.failed = step
        self.put_back(step)

    def put_back(self, step: int) -> None:
        """Undo what the step has sent so far."""
        for sent in list(self._sent.get(step, ())):
            sent.put_back()

    def vector_ends(self, step: int) -> None:
        """A vector was reduced: in vain, if one before it in the step has failed."""
        if step == self.failed:
            self.put_back(step)

    def step_ends(self, step: int) -> None:
        """There is nothing more to be undone."""
        self._sent.pop(step, None)
