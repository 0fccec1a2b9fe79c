"""Explanation of a call: its algorithm, the reason for it, and its traffic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .. import _skyphos as native
from .planner import PlanPrediction, Prediction, Stage

__all__ = ["Explanation", "PlanExplanation"]


@dataclass(frozen=True)
class Explanation:
    """A collective call on this rank: choices, reasons, traffic; ``print`` it.

    Attributes
    ----------
    algorithm : str
        The algorithm that ran; for an allgather its schedule.
    reason : str
        Reason for the algorithm.
    degrees : tuple of int
        Degrees of the layers of a butterfly or a split.
    dense_threshold : float
        Entries above which a vector becomes dense (δ); 0 if the algorithm never makes one dense.
    entries, result_entries : int
        Entries of this rank's vector, and of the result.
    result_is_dense : bool
        Whether the result is dense.
    sent_bytes, received_bytes : int
        Payload to and from other ranks, without the 64-byte header of each frame.
    sent_frames : int
        Frames sent, of at most 128 KB.
    predicted : Prediction or None
        Prediction of ``auto`` by stage; None if the algorithm was named.
    others : tuple of (str, float)
        Other algorithms, with their predicted seconds. Measured times of tries take precedence over predictions, so
        some of these may be predicted faster than the algorithm that ran; ``reason`` says so.
    notes : tuple of str
        Hints for a faster call.
    tried : tuple of (str, float)
        Algorithms that earlier calls tried, and that were not faster than the chosen one, with their measured
        seconds. Empty before the choice, and if no other algorithm was worth a try.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     _, how = comm.allreduce(sky.SparseVector([3], np.ones(1), n=1000), explain=True)
    >>> print(how)
    recursive_doubling: asked for "auto": the fewest rounds, and hardly more bytes
      entries: 1 here, 1 in the result (sparse); dense above 300
      sent: 0 bytes in 0 frames; received: 0 bytes
      predicted: 0 ms, 0 bytes in 0 messages
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
    predicted: Prediction | None = None
    others: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()
    tried: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        form = "dense" if self.result_is_dense else "sparse"
        layers = f", degrees {'x'.join(map(str, self.degrees))}" if len(self.degrees) > 1 else ""
        lines = [
            f"{self.algorithm}{layers}: {self.reason}",
            f"  entries: {self.entries:,} here, {self.result_entries:,} in the result ({form})"
            + (f"; dense above {self.dense_threshold:,.0f}" if self.dense_threshold else ""),
            f"  sent: {self.sent_bytes:,} bytes in {self.sent_frames:,} frames; "
            f"received: {self.received_bytes:,} bytes",
        ]
        if self.predicted is not None:
            found = self.predicted
            lines.append(
                f"  predicted: {_ms(found.seconds)}, {found.sent_bytes:,.0f} bytes in {found.messages:.0f} messages"
            )
            if len(found.stages) > 1:
                stages = ", ".join(f"{_ms(s.seconds)} {s.sent_bytes:,.0f} bytes" for s in found.stages)
                lines.append(f"    by stage: {stages}")
        for what, names in (("passed over (predicted)", self.others), ("tried, and slower (measured)", self.tried)):
            if names:
                lines.append(f"  {what}: " + ", ".join(f"{name} {_ms(s)}" for name, s in names))
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


@dataclass(frozen=True)
class PlanExplanation:
    """The choice of the degrees of a plan, and its alternatives; ``print`` it.

    Attributes
    ----------
    degrees : tuple of int
        Degree of each layer.
    reason : str
    predicted : PlanPrediction or None
        Predicted times of configuration and reduction by layer; None if degrees were not chosen by prediction.
    others : tuple of PlanPrediction
        The next best degrees.
    """

    degrees: tuple[int, ...]
    reason: str
    predicted: PlanPrediction | None
    others: tuple[PlanPrediction, ...]

    @classmethod
    def of(cls, degrees: tuple[int, ...], considered: list[native.PlanPrediction]) -> PlanExplanation:
        """Make the explanation from the native report."""
        found = [PlanPrediction._of(one) for one in considered]
        if not found:
            return cls(degrees, "they were named, or there is no other choice", None, ())
        if not found[0].reduce:
            return cls(
                degrees,
                "Kylix's rule: messages of at least min_packet bytes, or all ranks that are left in one layer",
                None,
                (),
            )
        return cls(degrees, "the least predicted time of a reduction", found[0], tuple(found[1:]))

    def __str__(self) -> str:
        lines = [f"degrees {'x'.join(map(str, self.degrees))}: {self.reason}"]
        if self.predicted is not None:
            found = self.predicted
            lines.append(f"  predicted: {_ms(found.seconds)} a reduction, {_ms(found.configure_seconds)} to configure")
            names = [f"down {k + 1}" for k in range(len(self.degrees))]
            names += [f"up {k + 1}" for k in reversed(range(len(self.degrees)))]
            lines += [
                f"    {name}: {_ms(stage.seconds)}, {stage.sent_bytes:,.0f} bytes in {stage.messages:.0f} messages"
                for name, stage in zip(names, found.reduce, strict=True)
            ]
        if self.others:
            lines.append("  passed over: " + ", ".join(f"{other.name} {_ms(other.seconds)}" for other in self.others))
        return "\n".join(lines)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


_WHY_AUTO = {
    "recursive_doubling": "the fewest rounds, and hardly more bytes",
    "butterfly": "each part is sparse or dense, whichever is smaller",
    "allgather": "gathered and added up",
    "split_allgather": "each rank reduces a part, and parts stay sparse",
    "split_allgather_dense": "each rank reduces a part, and parts turn dense",
    "ring": "parts around a ring",
    "dense": "as arrays, because nearly every index is an entry of some rank",
    "dense_ring": "as arrays around a ring, because nearly every index is an entry of some rank",
    "dense_rabenseifner": "as arrays by halves, because nearly every index is an entry of some rank",
    "dense_mpi": "as arrays by the MPI library, because nearly every index is an entry of some rank",
}
#: Reasons of `auto` in other collectives: of dense arrays, allgather and reduce_scatter.
WHY_ARRAY = {
    "dense": "a small array",
    "dense_ring": "a large array",
    "dense_mpi": "an array of medium size, among hosts that MPI connects",
}


WHY_SCHEDULE = {
    "direct": "from each rank to each, in one round",
    "ring": "around a ring, which copies least",
    "recursive_doubling": "twice as much in each round, in fewer messages",
    "bruck": "twice as much in each round, in fewer messages",
}
WHY_PARTS = {"butterfly": "the layers that should take the least time"}


def explanation_of(
    requested: str,
    report: native.Explanation,
    entries: int,
    result_entries: int,
    *,
    is_dense: bool,
    why: Mapping[str, str] = _WHY_AUTO,
    limited: bool = False,
) -> Explanation:
    """Make the explanation from the native report and the arguments of the call.

    ``why`` has the reasons of ``auto``; ``limited``: the options exclude some algorithms or degrees.
    """
    algorithm, degrees, threshold = report.algorithm, tuple(report.degrees), report.dense_threshold
    traffic, found = report.traffic, report.prediction
    reason = f'asked for "{requested}"'
    if requested == "auto":
        reason += f": {why.get(algorithm, 'quantised parts must have an owner')}"
    predicted: Prediction | None = None
    others: tuple[tuple[str, float], ...] = ()
    tried: tuple[tuple[str, float], ...] = ()
    if found is not None:
        predicted = Prediction(algorithm, degrees, tuple(Stage._of(stage) for stage in found.stages))
        others, tried = _names_and_seconds(found.others), _names_and_seconds(found.tried)
        reason += _not_by_prediction(predicted, others, tried, limited=limited)
    notes = []
    if algorithm == "split_allgather" and result_entries > threshold:
        notes.append(
            "the result is above the dense threshold, and stays sparse because split_allgather never changes form: "
            "auto or split_allgather_dense would move and keep less"
        )
    if algorithm == "split_allgather_dense" and result_entries < threshold:
        notes.append("the result is below the dense threshold: auto or split_allgather would move less")
    return Explanation(
        algorithm, reason, degrees, threshold, entries, result_entries, is_dense,
        traffic.sent_bytes, traffic.received_bytes, traffic.sent_frames, predicted, others, tuple(notes), tried,
    )  # fmt: skip


def _not_by_prediction(
    predicted: Prediction, others: tuple[tuple[str, float], ...], tried: tuple[tuple[str, float], ...], *, limited: bool
) -> str:
    """The reason for an algorithm other than the one with the least predicted time."""
    least, least_s = min(others, key=lambda other: other[1], default=("", math.inf))
    is_least = predicted.seconds <= least_s * (1 + 1e-9)
    if tried:
        won = f"; it was the fastest of those that were tried, with at most {_ms(min(s for _, s in tried))}"
        return won if is_least else f"{won}, although {least} was predicted to be faster"
    if is_least:
        return ""
    if limited:
        return f"; the options may exclude {least}, which was predicted to be faster"
    return f"; a try, because it should take about as long as {least}"


def _names_and_seconds(timed: list[native.TimedAlgorithm]) -> tuple[tuple[str, float], ...]:
    return tuple((Prediction(one.algorithm, tuple(one.degrees), ()).name, one.seconds) for one in timed)
