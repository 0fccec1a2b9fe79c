"""What a collective did, in words and numbers."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Explanation"]


@dataclass(frozen=True)
class Explanation:
    """What an allreduce did on this rank; ``print`` it.

    Attributes
    ----------
    algorithm : str
        The algorithm that ran.
    reason : str
        Why this one.
    degrees : tuple of int
        Layers of a butterfly or a split.
    dense_threshold : float
        Entries above which a vector turns dense (δ).
    entries, result_entries : int
        Entries of this rank's vector, and of the result.
    result_is_dense : bool
        The form of the result.
    sent_bytes, received_bytes : int
        Payload to and from other ranks, without the 64 bytes that lead each frame.
    sent_frames : int
        Frames sent, of at most 128 KB.
    notes : tuple of str
        What might be done better.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     _, how = comm.allreduce(sky.SparseVector([3], np.ones(1), n=1000), explain=True)
    >>> print(how)
    recursive_doubling: asked for "auto": small, two ranks, or little overlap: the fewest rounds, and hardly more bytes
      entries: 1 here, 1 in the result (sparse); dense above 300
      sent: 0 bytes in 0 frames; received: 0 bytes
    """

    algorithm: str
    reason: str
    degrees: tuple[int, ...]
    dense_threshold: float
    entries: int
    result_entries: int
    result_is_dense: bool
    sent_bytes: int
    received_bytes: int
    sent_frames: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        form = "dense" if self.result_is_dense else "sparse"
        layers = f", degrees {'x'.join(map(str, self.degrees))}" if len(self.degrees) > 1 else ""
        lines = [
            f"{self.algorithm}{layers}: {self.reason}",
            f"  entries: {self.entries:,} here, {self.result_entries:,} in the result ({form}); "
            f"dense above {self.dense_threshold:,.0f}",
            f"  sent: {self.sent_bytes:,} bytes in {self.sent_frames:,} frames; "
            f"received: {self.received_bytes:,} bytes",
        ]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


#: Algorithm, degrees, dense threshold, bytes sent, frames sent, bytes received: from the native library.
Told = tuple[str, list[int], float, int, int, int]

_WHY_AUTO = {
    "recursive_doubling": "small, two ranks, or little overlap: the fewest rounds, and hardly more bytes",
    "butterfly": "the split, whose parts are sparse or dense as each is smaller",
    "allgather": "gathered and added up, which is the least work",
    "split_allgather": 'op="mean_present" needs the counts that other algorithms lose',
    "split_allgather_dense": "what is quantised must have an owner",
    "dense": "a small array",
    "dense_ring": "a large array",
}


def explanation_of(asked: str, told: Told, entries: int, result_entries: int, is_dense: bool) -> Explanation:
    """Put together what the native library told and what the caller knows."""
    algorithm, degrees, threshold, sent, frames, received = told
    reason = f'asked for "{asked}"'
    if asked == "auto":
        reason += f": {_WHY_AUTO.get(algorithm, 'the rule')}"
    notes = []
    if algorithm == "split_allgather" and result_entries > threshold:
        notes.append(
            "the result is above the dense threshold, and stays sparse because split_allgather never changes form: "
            "auto or split_allgather_dense would move and keep less"
        )
    if algorithm == "split_allgather_dense" and result_entries < threshold:
        notes.append("the result is below the dense threshold: auto or split_allgather would move less")
    return Explanation(
        algorithm, reason, tuple(degrees), threshold, entries, result_entries, is_dense, sent, received, frames,
        tuple(notes),
    )  # fmt: skip
