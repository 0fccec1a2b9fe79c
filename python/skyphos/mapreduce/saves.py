"""Saved states of a job, from which a job that is started again continues."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checkpoint import Checkpoint
from ..collectives.agreement import together
from ..collectives.packing import pack, unpack
from ..errors import BadInput

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["Saves"]


class Saves:
    """A checkpoint of a job.

    Parameters
    ----------
    checkpoint : Checkpoint or path
        Where the states are.
    job : str
        Description of the job; a state with another description is refused.
    """

    def __init__(self, checkpoint: Checkpoint | str | os.PathLike[str], job: str) -> None:
        self._checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
        self._job = job

    def save(self, comm: Comm, iteration: int, state: Any, *, is_mine: bool) -> None:
        """Save the state after an iteration, on the rank that has it. Collective."""
        parts = pack(state) if is_mine else []
        state = {f"part-{number}": part for number, part in enumerate(parts)}
        self._checkpoint.save(comm, iteration, {"job": np.frombuffer(self._job.encode(), np.uint8), **state})

    def restore(self, comm: Comm) -> tuple[int, Any] | None:
        """The last iteration that all ranks have saved, and this rank's state after it. Collective.

        Raises
        ------
        BadInput
            On all ranks, if the checkpoint is of another job.
        """
        found = self._checkpoint.restore(comm)
        if found is None:
            return None

        def read() -> Any:
            saved_job = found.state["job"].tobytes().decode(errors="replace") if "job" in found.state else "of no job"
            if saved_job != self._job:
                raise BadInput(
                    f"{self._checkpoint!r} is of another job: {saved_job}. This one is: {self._job}. "
                    "Name another folder"
                )
            parts = [found.state[f"part-{number}"] for number in range(len(found.state) - 1)]
            return unpack(parts) if parts else None

        return found.iteration, together(comm, read)
