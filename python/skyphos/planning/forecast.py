"""Forecast of a collective: predictions for every algorithm, the choice of ``auto``, and the assumptions.

The text, the JSON and the page of ``skyphos plan`` are made from one :class:`Forecast`, so that they agree.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

from .. import _skyphos as native
from ..text.quantities import fine_seconds, human_bytes, human_ranks
from .planner import (
    PlanPrediction,
    Prediction,
    Profile,
    Stage,
    greedy_degrees,
    predict_agreement,
    predict_allreduce,
    predict_plans,
    predict_reduce_scatter,
    union_entries,
)
from .profile_choice import host_words, read

__all__ = ["Assumptions", "Collective", "Forecast", "chosen", "forecast", "from_profile", "layers"]

Collective = Literal["allreduce", "reduce_scatter", "reduce"]


@dataclass(frozen=True)
class Assumptions:
    """Machines and network for which predictions are made.

    Attributes
    ----------
    profile : Profile
    source : str
        Source of the profile's numbers.
    notes : tuple of str
        Differences between the measured group and the planned one.
    """

    profile: Profile
    source: str
    notes: tuple[str, ...] = ()

    def sentences(self) -> list[str]:
        """Source, numbers and notes as sentences without full stops."""
        return [f"Assumed: {self.source}; {self.text()}", *(note[0].upper() + note[1:] for note in self.notes)]

    def text(self) -> str:
        """The most important numbers as text."""
        p = self.profile
        words = [f"{human_bytes(p.rate)}/s each way", f"latency {fine_seconds(p.latency_s)}"]
        words.append(f"{fine_seconds(p.message_s)} more for each message" if p.message_s else "no fixed cost a message")
        words.append(f"{100 * p.incast:.3g} % longer for each further sender" if p.incast else "no incast")
        words.append(f"{p.cores:.3g} of a core a rank" if p.cores < 1 else "a core a rank")
        return ", ".join(words) + (f", {fine_seconds(p.call_s)} more for each call" if p.call_s else "")


def from_profile(path: str, ranks: int) -> Assumptions:
    """The profile of a file, and its differences from a group of ``ranks`` ranks.

    Raises
    ------
    BadInput
        If the file has no profile.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from skyphos.planning.forecast import from_profile
    >>> from skyphos.planning import Profile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "slow.json")
    ...     _ = path.write_text(Profile.network(1e6).to_json())
    ...     from_profile(str(path), 8).notes
    ()
    """
    found, name = read(path), os.path.basename(path)
    if isinstance(found, Profile):
        return Assumptions(found, f"the numbers of {name}, which does not say where they were measured")
    hosts = Counter(host.name for host in found.hosts)
    where = "one host" if len(found.hosts) == 1 else f"{len(found.hosts)} hosts"
    measured = f"measured by {human_ranks(found.ranks)} on {where} ({host_words(hosts)})"
    is_here = os.uname().nodename in hosts
    notes = []
    if found.ranks != ranks or not is_here:
        host_note = "" if is_here else ", not on this one"
        another = "" if found.ranks == ranks else f" for {human_ranks(ranks)}"
        notes.append(
            f"the profile {name} was {measured}{host_note}, and is used as it is{another}: `skyphos probe` measures "
            "the group itself"
        )
    return Assumptions(found.profile, f"the profile {name}, {measured}", tuple(notes))


@dataclass(frozen=True)
class Forecast:
    """Predictions for a collective.

    Attributes
    ----------
    collective : {"allreduce", "reduce_scatter", "reduce"}
        ``reduce``: the reduction of a plan that is configured once.
    ranks, n, entries, row_bytes, alpha
        As in :func:`skyphos.planning.union_entries` and :func:`skyphos.planning.predict_allreduce`; ``alpha`` None:
        indices are uniform.
    assumed : Assumptions
    result_entries : float
        Entries of the result.
    found : tuple of Prediction
        Predictions, the fastest first; for ``reduce`` those of the plan's reductions.
    chosen : Prediction
        Prediction of the algorithm that runs unless an algorithm or degrees are named.
    configure : tuple of tuple of Stage
        Stages of the configuration of a plan, in the order of ``found``; else empty.
    survey : Stage or None
        Cost of the survey of all ranks before a first call; None if there is no survey.
    min_packet_bytes : float
    kylix_degrees : tuple of int
        Degrees by Kylix's rule, for messages of at least ``min_packet_bytes``.
    """

    collective: Collective
    ranks: int
    n: int
    entries: float
    row_bytes: int
    alpha: float | None
    assumed: Assumptions
    result_entries: float
    found: tuple[Prediction, ...]
    chosen: Prediction
    configure: tuple[tuple[Stage, ...], ...]
    survey: Stage | None
    min_packet_bytes: float
    kylix_degrees: tuple[int, ...]

    @property
    def best_butterfly(self) -> Prediction | None:
        """The fastest butterfly; None for a single rank."""
        return next((p for p in self.found if p.algorithm == "butterfly" and p.degrees != (1,)), None)

    @property
    def configure_s(self) -> float | None:
        """Seconds to configure the chosen plan; None if nothing is configured."""
        if not self.configure:
            return None
        return sum(stage.seconds for stage in self.configure[self.found.index(self.chosen)])

    def why(self) -> str:
        """The reason for ``chosen``, as text."""
        if self.collective == "reduce":
            return "the choice of configure without degrees="
        if self.collective == "reduce_scatter":
            return f"the choice without degrees=; {_TRIES}"
        if self.ranks == 1:
            return "the choice of auto"
        if not native.auto_may_take("allgather", self.ranks, self.entries, self.row_bytes):
            return "the choice of auto: for vectors of at most 16 KB a rank only the number of rounds counts"
        dense = self.found[0].algorithm
        never = f"; never {dense}, which does not record which rows are entries" if self.found[0] != self.chosen else ""
        return f"the first choice of auto{never}; {_TRIES}"

    def record(self) -> dict[str, Any]:
        """The forecast as a JSON object."""
        predictions = [
            {
                "algorithm": p.algorithm,
                "degrees": list(p.degrees),
                "seconds": p.seconds,
                "sent_bytes": p.sent_bytes,
                "messages": p.messages,
                "rounds": p.rounds,
                "stages": [asdict(stage) for stage in p.stages],
            }
            for p in self.found
        ]
        for prediction, stages in zip(predictions, self.configure, strict=False):
            prediction["configure_seconds"] = sum(stage.seconds for stage in stages)
        return {
            "collective": self.collective,
            "ranks": self.ranks,
            "n": self.n,
            "entries": self.entries,
            "row_bytes": self.row_bytes,
            "alpha": self.alpha,
            "result_entries": self.result_entries,
            "assumed": asdict(self.assumed),
            "chosen": {"algorithm": self.chosen.algorithm, "degrees": list(self.chosen.degrees), "why": self.why()},
            "configure_seconds": self.configure_s,
            "survey": None if self.survey is None else asdict(self.survey),
            "papers": {"min_packet_bytes": self.min_packet_bytes, "degrees": list(self.kylix_degrees)},
            "predictions": predictions,
        }


_TRIES = "blocking calls then try algorithms with similar predictions, and keep the fastest"


def forecast(
    collective: Collective,
    ranks: int,
    n: int,
    entries: float,
    *,
    assumed: Assumptions,
    alpha: float | None = None,
    row_bytes: int = 4,
    min_packet_bytes: float = 2e6,
) -> Forecast:
    """Predict a collective; arguments are the attributes of :class:`Forecast`.

    Raises
    ------
    BadInput
        For invalid numbers.

    Examples
    --------
    >>> from skyphos.planning.forecast import Assumptions, forecast
    >>> from skyphos.planning import Profile
    >>> seen = forecast("allreduce", 8, 10**6, 100, assumed=Assumptions(Profile.network(1e9), "defaults"))
    >>> seen.found[0].name, seen.chosen.name
    ('allgather', 'recursive_doubling')
    """
    law: dict[str, Any] = {"model": "uniform" if alpha is None else "power_law", "alpha": alpha or 0.0}
    options: dict[str, Any] = {"profile": assumed.profile, "row_bytes": row_bytes, **law}
    plans: list[PlanPrediction] = []
    if collective == "reduce":
        plans = predict_plans(ranks, n, entries, **options)
        found = [Prediction("butterfly", p.degrees, p.reduce) for p in plans]
    else:
        predict = predict_allreduce if collective == "allreduce" else predict_reduce_scatter
        found = predict(ranks, n, entries, **options)
    has_survey = collective != "reduce" and ranks > 1
    degrees = greedy_degrees(
        ranks, n, entries, min_packet_bytes=min_packet_bytes, row_bytes=row_bytes, alpha=alpha or 0.0
    )
    return Forecast(
        collective=collective,
        ranks=ranks,
        n=n,
        entries=entries,
        row_bytes=row_bytes,
        alpha=alpha,
        assumed=assumed,
        result_entries=union_entries([ranks], n, entries, **law)[0],
        found=tuple(found),
        chosen=chosen(collective, ranks, entries, row_bytes, found),
        configure=tuple(p.configure for p in plans),
        survey=predict_agreement(ranks, profile=assumed.profile) if has_survey else None,
        min_packet_bytes=min_packet_bytes,
        kylix_degrees=tuple(degrees),
    )


def chosen(collective: Collective, ranks: int, entries: float, row_bytes: int, found: list[Prediction]) -> Prediction:
    """The prediction of the algorithm that runs if none is named; ``found``: the fastest first."""
    if collective != "allreduce":
        return found[0]
    return next(p for p in found if native.auto_may_take(p.algorithm, ranks, entries, row_bytes))


def layers(prediction: Prediction) -> list[tuple[str, int, int, Stage]]:
    """The layers of a butterfly in the order in which they run, each as ``"down"`` or ``"up"``, number, degree, cost.

    Examples
    --------
    >>> from skyphos.planning.forecast import layers
    >>> from skyphos.planning import Prediction, Stage
    >>> idle = Stage(0, 0, 0, 0, 0, 0)
    >>> [layer[:3] for layer in layers(Prediction("butterfly", (4, 2), (idle,) * 4))]
    [('down', 1, 4), ('down', 2, 2), ('up', 2, 2), ('up', 1, 4)]
    """
    numbered = list(enumerate(prediction.degrees, 1))
    order = [("down", *layer) for layer in numbered]
    if len(prediction.stages) > len(order):  # a reduce-scatter has no layers up
        order += [("up", *layer) for layer in reversed(numbered)]
    return [(*layer, stage) for layer, stage in zip(order, prediction.stages, strict=True)]
