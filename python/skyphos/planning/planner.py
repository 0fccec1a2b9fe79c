"""Planner: predicted times of the algorithms of a collective, without a cluster.

Predictions follow from a :class:`Profile` of machine and network, and from the size of the union of m ranks' index
sets: for uniform indices (SparCML, appendix B), a power law (*Kylix*, Proposition 4.1), or a measured curve.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, Literal, TypeGuard

from .. import _skyphos as native
from ..errors import BadInput

__all__ = [
    "PlanPrediction",
    "Prediction",
    "Profile",
    "Stage",
    "greedy_degrees",
    "predict_agreement",
    "predict_allreduce",
    "predict_plans",
    "predict_reduce_scatter",
    "union_entries",
]

#: Format number of the file that :meth:`Profile.load` reads.
FORMAT = 1


#: Largest time of a profile, and bounds of its other numbers, beyond any real machine.
_MAX_SECONDS = 1e6
_LIMITS = {"rate": (1.0, 1e15), "cores": (1e-6, 1e6), "incast": (0.0, 1e6), "ring_gain": (1e-3, 1e6)}

#: Largest depth of a file; valid files are less deep, and deep nesting would reach Python's recursion limit.
_MAX_NESTED = 50


def is_number(value: object) -> TypeGuard[int | float]:
    """True for a finite number that a float can hold; booleans are excluded."""
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and -sys.float_info.max <= value <= sys.float_info.max  # type: ignore[operator]


def is_real(value: Any) -> bool:
    """True for a number of any library that a float can hold, including infinity and NaN; booleans are excluded."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def short(value: object) -> str:
    """A value as text for errors, shortened.

    Examples
    --------
    >>> from skyphos.planning.planner import short
    >>> short("x" * 99)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…"
    """
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        return "a number of too many digits"
    return text if len(text) <= 40 else text[:39] + "…"


@dataclass(frozen=True)
class Profile:
    """Rates and times of a machine and its network, as one rank sees them.

    Attributes
    ----------
    latency_s : float
        Seconds until a small message arrives.
    rate : float
        Bytes a second of a rank's link in each direction.
    incast : float
        Share by which a transfer takes longer for each further rank that sends to the same rank at once.
    cores : float
        Share of a core that a rank has.
    frame_s, byte_s, array_byte_s : float
        Processor time of a frame, of a byte, and of a byte of a dense array, at either end.
    encode_s, place_s : float
        Processor time of encoding an entry, and of writing a received one into the result; for rows of 4 bytes.
    merge_s, merge_more_s, block_s, position_s : float
        Processor time of reducing an entry by merges (for the first source, and for each further one) and by blocks,
        and of skipping a position of a block.
    dense_byte_s, fresh_byte_s : float
        Processor time of reading, adding or copying a byte of a dense array, and of allocating one.
    bitmap_s : float
        Additional time of an entry that is read from or written to an array with a bitmap.
    message_s : float
        Seconds for which each message occupies a link, whatever its length (LogGP's g without the processors'
        overhead).
    gather_s, fold_s, row_byte_s : float
        Processor time that a plan takes to gather a row and to add one, and more for each of its bytes.
    set_code_s, set_join_s : float
        Processor time of encoding an index of a configuration, and of merging it with others.
    product_s : float
        Processor time of a multiplication and an addition in a matrix product in float64; half of it for float32.
    wake_s : float
        Processor time of waking up for an awaited message, in addition to its frames.
    call_s : float
        Additional seconds of each call if ranks share processors: the time until each rank has run.
    ring_gain : float
        Factor of ``rate`` if each rank sends only to the next one in the order of hosts and racks: links between racks
        then carry one stream instead of all.
    """

    latency_s: float
    rate: float
    incast: float
    cores: float
    frame_s: float
    byte_s: float
    array_byte_s: float
    encode_s: float
    place_s: float
    merge_s: float
    merge_more_s: float
    block_s: float
    position_s: float
    dense_byte_s: float
    fresh_byte_s: float
    bitmap_s: float
    message_s: float = 0.0
    gather_s: float = 0.8e-9
    fold_s: float = 1.2e-9
    row_byte_s: float = 0.1e-9
    set_code_s: float = 1.0e-9
    set_join_s: float = 4.0e-9
    product_s: float = 20e-12
    wake_s: float = 0.0
    call_s: float = 0.0
    ring_gain: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least, most = _LIMITS.get(field.name, (0, _MAX_SECONDS))
            if not is_number(value) or not least <= value <= most:
                raise BadInput(
                    f"{field.name} of a profile must be a number between {least:g} and {most:g}, not {short(value)}"
                )

    @classmethod
    def one_host(cls, ranks: int, cores: float | None = None) -> Profile:
        """Defaults for ranks on one host, which share its cores (None: this machine's).

        Examples
        --------
        >>> from skyphos.planning import Profile
        >>> Profile.one_host(8, cores=2).cores
        0.25
        """
        count = float(cores or os.cpu_count() or 1)
        return cls(**dict(native.default_profile(ranks, count, None)))

    @classmethod
    def network(cls, rate: float) -> Profile:
        """Defaults for ranks on hosts of their own, with links of ``rate`` bytes a second.

        Examples
        --------
        >>> from skyphos.planning import Profile
        >>> Profile.network(125e6).rate
        125000000.0
        """
        return cls(**dict(native.default_profile(1, 1.0, float(rate))))

    @classmethod
    def load(cls, path: str) -> Profile:
        """Read a profile that :meth:`to_json` or ``skyphos probe`` wrote; BadInput if the file is not a profile."""
        return read_profile(read_text(path), path)[0]

    def to_json(self) -> str:
        """The text of a profile's file."""
        return json.dumps({"skyphos_profile": FORMAT, "profile": asdict(self)}, indent=2) + "\n"


def profile_of(comm: native.Comm) -> Profile | None:
    """The profile with which a group started."""
    numbers = native.get_profile(comm)
    return None if numbers is None else Profile(**dict(numbers))


def read_text(path: str) -> str:
    """The text of a file; BadInput if it cannot be read."""
    if not isinstance(path, str | os.PathLike):  # a number would be a descriptor
        raise BadInput(f"a file is named by its path, not by {short(path)}")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def read_json(text: str, name: str) -> Any:
    """The JSON content of a file's text; BadInput names the file and the error."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{name}: no JSON: {error}") from None
    except RecursionError:
        raise BadInput(f"{name}: {_TOO_DEEP}") from None
    level = [found]
    for _ in range(_MAX_NESTED):
        parts = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list)]
        level = [part for inside in parts for part in inside if isinstance(part, dict | list)]
        if not level:
            return found
    raise BadInput(f"{name}: {_TOO_DEEP}")


_TOO_DEEP = f"parts of it lie within each other more than {_MAX_NESTED} deep"


def read_profile(text: str, name: str) -> tuple[Profile, dict[str, Any]]:
    """The profile in a file's text, and the whole content; ``name`` is the file's name in errors."""
    found = read_json(text, f"{name}: no profile of skyphos")
    if not isinstance(found, dict) or "skyphos_profile" not in found:
        raise BadInput(f"{name}: no profile of skyphos: it does not say skyphos_profile")
    if found["skyphos_profile"] != FORMAT:
        raise BadInput(
            f"{name}: a profile of format {short(found['skyphos_profile'])}, and this version reads {FORMAT}"
        )
    numbers = found.get("profile")
    if not isinstance(numbers, dict):
        raise BadInput(f"{name}: no profile of skyphos: it has no part named profile")
    names = [field.name for field in fields(Profile)]
    needed = [field.name for field in fields(Profile) if field.default is MISSING]
    absent, strange = [k for k in needed if k not in numbers], [k for k in numbers if k not in names]
    if absent or strange:
        wrong = f"lacks {', '.join(absent)}" if absent else f"has {', '.join(strange)}, which no profile has"
        raise BadInput(f"{name}: no profile of skyphos: its part named profile {wrong}")
    try:
        return Profile(**numbers), found
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from None


@dataclass(frozen=True)
class Stage:
    """Work of the busiest rank in one stage of an algorithm; sending, receiving and computing overlap.

    Attributes
    ----------
    sent_bytes, received_bytes : float
    messages : float
        Messages sent.
    rounds : float
        Number of messages in sequence.
    compute_s : float
        Processor time of encoding, adding and writing.
    seconds : float
        Time of the stage.
    """

    sent_bytes: float
    received_bytes: float
    messages: float
    rounds: float
    compute_s: float
    seconds: float

    @classmethod
    def _of(cls, stage: native.Stage) -> Stage:
        return cls(stage.sent_bytes, stage.received_bytes, stage.messages, stage.rounds, stage.compute_s, stage.seconds)


@dataclass(frozen=True)
class Prediction:
    """Predicted cost of an algorithm, for one rank.

    Attributes
    ----------
    algorithm : str
        Name of the algorithm as in :meth:`skyphos.Comm.allreduce`.
    degrees : tuple of int
        Degrees of the layers of a butterfly.
    stages : tuple of Stage
        Consecutive stages; for a butterfly each layer down and then up.
    """

    algorithm: str
    degrees: tuple[int, ...]
    stages: tuple[Stage, ...]

    @property
    def seconds(self) -> float:
        """Seconds of the call."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def sent_bytes(self) -> float:
        """Bytes that the busiest rank sends."""
        return sum(stage.sent_bytes for stage in self.stages)

    @property
    def messages(self) -> float:
        """Messages that a rank sends."""
        return sum(stage.messages for stage in self.stages)

    @property
    def rounds(self) -> float:
        """Number of messages in sequence."""
        return sum(stage.rounds for stage in self.stages)

    @property
    def name(self) -> str:
        """Algorithm and degrees."""
        layers = "x".join(map(str, self.degrees))
        return f"{self.algorithm} {layers}" if self.algorithm == "butterfly" else self.algorithm


@dataclass(frozen=True)
class PlanPrediction:
    """Predicted cost of a plan with these layers, for one rank.

    Attributes
    ----------
    degrees : tuple of int
    configure, reduce : tuple of Stage
        Each layer down, then up again.
    """

    degrees: tuple[int, ...]
    configure: tuple[Stage, ...]
    reduce: tuple[Stage, ...]

    @classmethod
    def _of(cls, found: native.PlanPrediction) -> PlanPrediction:
        return cls(tuple(found.degrees), tuple(map(Stage._of, found.configure)), tuple(map(Stage._of, found.reduce)))

    @property
    def configure_seconds(self) -> float:
        """Seconds of the configuration."""
        return sum(stage.seconds for stage in self.configure)

    @property
    def seconds(self) -> float:
        """Seconds of a reduction."""
        return sum(stage.seconds for stage in self.reduce)

    @property
    def name(self) -> str:
        """The degrees as text, such as ``8x4``."""
        return "x".join(map(str, self.degrees))


Model = Literal["uniform", "power_law"]


#: Largest number of ranks of a prediction, and of bytes of a row.
_MAX_RANKS, MAX_ROW_BYTES = 2**32 - 1, 2**40


def whole(name: str, value: object, maximum: int) -> None:
    """Refuse anything but a whole number from 1 to ``maximum``."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not 1 <= int(value) <= maximum:
        raise BadInput(f"{name} must be a whole number from 1 to {maximum}, not {short(value)}")


def _check_entries(n: int, entries: float, alpha: float) -> None:
    whole("the size n of an index space", n, 2**63)
    if not is_real(entries) or not 0 <= entries <= n:
        raise BadInput(
            f"{short(entries)} entries of an index space of {n}: pass n of at least 1, and at most n entries"
        )
    if not is_real(alpha) or not 0 <= alpha <= 10:
        raise BadInput(f"the exponent of a power law must be between 0 and 10, not {short(alpha)}")


def _model(
    n: int, entries: float, model: Model, alpha: float, curve: Sequence[tuple[float, float]] | None
) -> native.UnionModel:
    _check_entries(n, entries, alpha)
    if model not in ("uniform", "power_law"):
        raise BadInput(f'the model of unions is "uniform" or "power_law", not {model!r}')
    if curve is None:
        if model == "uniform":
            return native.UnionModel.uniform(n, float(entries))
        return native.UnionModel.power_law(n, float(entries), float(alpha))
    try:
        points = [(float(m), float(count)) for m, count in curve]
    except (TypeError, ValueError, OverflowError):
        raise BadInput("a curve of unions must be pairs of numbers: ranks, and entries") from None
    if any(not 0 < m < math.inf or not 0 <= count < math.inf for m, count in points):
        raise BadInput("a curve of unions must have numbers of ranks above 0, and of entries from 0")
    if not points or any(b[0] <= a[0] or b[1] < a[1] for a, b in pairwise(points)):
        raise BadInput("a curve of unions must be pairs of ranks and entries, both ascending")
    return native.UnionModel.measured(points)


def union_entries(
    ranks: Sequence[float],
    n: int,
    entries: float,
    *,
    model: Model = "uniform",
    alpha: float = 1.0,
    curve: Sequence[tuple[float, float]] | None = None,
) -> list[float]:
    """Entries of the union of the index sets of several ranks.

    Parameters
    ----------
    ranks : sequence of float
        Numbers of ranks, at least 0; fractions are allowed.
    n : int
        Size of the index space.
    entries : float
        Entries of one rank.
    model : {"uniform", "power_law"}
        Uniform indices, n (1 - (1 - entries/n)^m), or Kylix's equation 4 with exponent ``alpha``.
    curve : sequence of (ranks, entries), optional
        A measured curve instead.

    Raises
    ------
    BadInput
        For negative numbers of ranks, or other invalid numbers.

    Examples
    --------
    >>> from skyphos.planning import union_entries
    >>> [round(x, 2) for x in union_entries([1, 2, 8], n=512, entries=16)]
    [16.0, 31.5, 114.84]
    """
    try:
        counts = [float(m) for m in ranks]
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"ranks must be a sequence of numbers of ranks, not {short(ranks)}") from None
    if wrong := [m for m in counts if not 0 <= m < math.inf]:
        raise BadInput(f"a number of ranks must be finite and at least 0, not {wrong[0]:g}")
    return native.union_entries(_model(n, entries, model, alpha, curve), counts)


def predict_allreduce(
    ranks: int,
    n: int,
    entries: float,
    *,
    profile: Profile,
    row_bytes: int = 4,
    model: Model = "uniform",
    alpha: float = 1.0,
    curve: Sequence[tuple[float, float]] | None = None,
) -> list[Prediction]:
    """Predict time, bytes and rounds of every algorithm, the fastest first.

    A butterfly is predicted for every ordered factorisation of ``ranks``.

    Parameters
    ----------
    ranks : int
        Ranks in the group. If it has more than 20,000 ordered factorisations, only those with non-increasing degrees
        are considered.
    n, entries, model, alpha, curve
        As in :func:`union_entries`.
    profile : Profile
        Rates and times of machine and network.
    row_bytes : int
        Bytes of one index's values.

    Raises
    ------
    BadInput
        For invalid numbers.

    Examples
    --------
    >>> from skyphos.planning import Profile, predict_allreduce
    >>> best, *others = predict_allreduce(8, 2**24, 131072, profile=Profile.network(31.25e6))
    >>> best.seconds < others[-1].seconds
    True
    """
    return _reductions(ranks, n, row_bytes, _model(n, entries, model, alpha, curve), profile, to_parts=False)


def predict_reduce_scatter(
    ranks: int,
    n: int,
    entries: float,
    *,
    profile: Profile,
    row_bytes: int = 4,
    model: Model = "uniform",
    alpha: float = 1.0,
    curve: Sequence[tuple[float, float]] | None = None,
) -> list[Prediction]:
    """Predict a reduce-scatter with every choice of degrees, the fastest first.

    Arguments are those of :func:`predict_allreduce`.

    Examples
    --------
    >>> from skyphos.planning import Profile, predict_reduce_scatter
    >>> [found.degrees for found in predict_reduce_scatter(4, 2**20, 1000, profile=Profile.network(1e9))]
    [(4,), (2, 2)]
    """
    return _reductions(ranks, n, row_bytes, _model(n, entries, model, alpha, curve), profile, to_parts=True)


def predict_agreement(ranks: int, *, profile: Profile) -> Stage:
    """Predict the cost of the survey of all ranks that ``auto`` makes before a first call, and rarely later.

    Examples
    --------
    >>> from skyphos.planning import Profile, predict_agreement
    >>> predict_agreement(64, profile=Profile.network(1e9)).rounds
    6.0
    """
    _check(ranks, 1)
    return Stage._of(native.predict_agreement(ranks, profile))


def _check(ranks: int, row_bytes: int) -> None:
    whole("the number of ranks", ranks, _MAX_RANKS)
    whole("the bytes of a row", row_bytes, MAX_ROW_BYTES)


def _reductions(
    ranks: int, n: int, row_bytes: int, union: native.UnionModel, profile: Profile, *, to_parts: bool
) -> list[Prediction]:
    _check(ranks, row_bytes)
    return [
        Prediction(one.algorithm, tuple(one.degrees), tuple(map(Stage._of, one.stages)))
        for one in native.predict_reductions(ranks, n, row_bytes, union, profile, to_parts)
    ]


def predict_plans(
    ranks: int,
    n: int,
    entries: float,
    *,
    profile: Profile,
    row_bytes: int = 4,
    model: Model = "power_law",
    alpha: float = 1.0,
    curve: Sequence[tuple[float, float]] | None = None,
) -> list[PlanPrediction]:
    """Predict configuration and reduction of a plan with every choice of degrees (*Kylix*, sections III and IV).

    Parameters
    ----------
    ranks, n, entries, profile, row_bytes, model, alpha, curve
        As in :func:`predict_allreduce`; every rank wants the indices that it contributes.

    Returns
    -------
    list of PlanPrediction
        All ordered factorisations of ``ranks`` (as in :func:`predict_allreduce`), the fastest reduction first.

    Raises
    ------
    BadInput
        For invalid numbers.

    Examples
    --------
    Kylix's Twitter graph, where a message occupies the link for a millisecond, whatever its length:

    >>> from dataclasses import replace
    >>> from skyphos.planning import Profile, predict_plans
    >>> slow = replace(Profile.network(1.25e9), message_s=1e-3)
    >>> best, *others = predict_plans(64, 60_000_000, 0.21 * 60e6, profile=slow, alpha=1.1)
    >>> len(best.degrees) > 1, len(others)
    (True, 31)
    """
    _check(ranks, row_bytes)
    found = native.predict_plans(ranks, n, row_bytes, _model(n, entries, model, alpha, curve), profile)
    return [PlanPrediction._of(one) for one in found]


def greedy_degrees(
    ranks: int, n: int, entries: float, *, min_packet_bytes: float, row_bytes: int = 4, alpha: float = 1.0
) -> list[int]:
    """Degrees by Kylix's rule (section IV): in each layer the largest degree whose messages have at least the minimum
    size.

    Raises
    ------
    BadInput
        For invalid numbers.

    Examples
    --------
    >>> from skyphos.planning import greedy_degrees
    >>> greedy_degrees(64, 60_000_000, 0.21 * 60e6, min_packet_bytes=5e6)
    [8, 4, 2]
    """
    _check(ranks, row_bytes)
    _check_entries(n, entries, alpha)
    if not is_real(min_packet_bytes) or not 0 <= min_packet_bytes < math.inf:
        raise BadInput(f"the smallest message worth sending must have 0 bytes or more, not {short(min_packet_bytes)}")
    return native.greedy_degrees(ranks, n, float(entries), float(row_bytes), float(alpha), float(min_packet_bytes))
