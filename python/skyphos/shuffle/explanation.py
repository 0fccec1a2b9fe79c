"""Explanation of a shuffle: counts of values and traffic."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ShuffleExplanation"]


@dataclass(frozen=True)
class ShuffleExplanation:
    """A shuffle on this rank: counts and traffic; ``print`` it.

    Attributes
    ----------
    values, merged, keys : int
        Values that this rank passed; values left after merging within the process; keys that it owns.
    waves : int
        Number of parts of the keys that were sent one after the other.
    spilled_bytes : int
        Bytes written to files because they exceeded the memory limit.
    host_bytes, sent_bytes : int
        Bytes sent to ranks of this host for merging, and to owners.
    sent_frames, received_bytes : int
        Frames sent to, and bytes received from, other ranks in both stages.
    seconds : dict of str to float
        Time of each stage: ``merge``, ``host``, ``owners``.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     _, _, how = comm.shuffle([7, 8, 7], np.ones(3), explain=True)
    >>> how.values, how.merged, how.keys
    (3, 2, 2)
    """

    values: int
    merged: int
    keys: int
    waves: int
    spilled_bytes: int
    host_bytes: int
    sent_bytes: int
    sent_frames: int
    received_bytes: int
    seconds: dict[str, float]

    def __str__(self) -> str:
        times = ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in self.seconds.items())
        waves = f", in {self.waves} waves" if self.waves > 1 else ""
        spilled = f"; {self.spilled_bytes:,} bytes in files" if self.spilled_bytes else ""
        return "\n".join(
            [
                f"shuffle: {self.values:,} values, {self.merged:,} after merging here, {self.keys:,} owned{waves}",
                f"  sent: {self.host_bytes:,} bytes within the host, {self.sent_bytes:,} to owners, in "
                f"{self.sent_frames:,} frames; received: {self.received_bytes:,} bytes{spilled}",
                f"  {times}",
            ]
        )
