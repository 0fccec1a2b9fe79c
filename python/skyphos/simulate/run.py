"""Simulation of a collective: the same code under a virtual clock, at up to 4,096 ranks.

A :class:`Network` describes links, racks, processors and their disturbances. :func:`simulate` runs a collective on it
with indices drawn from a model or, for runs that exceed memory, with lengths instead of data (``sized=True``). All
random values follow from one seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .. import _skyphos as native
from ..errors import BadInput
from ..planning.planner import MAX_ROW_BYTES, whole
from .network import Network, checked_seed

__all__ = ["USED_BY", "Network", "Phase", "Round", "Simulation", "collectives", "simulate"]

#: Number of ranks whose frames and work are recorded for the timeline, unless ``watch`` names others.
_WATCHED = 32


@dataclass(frozen=True)
class Round:
    """One round or layer of all ranks.

    Attributes
    ----------
    name : str
    first_s, last_s : float
        Seconds at which its first frame was sent and its last one arrived.
    messages, sent_bytes, received_bytes : int
        Sums over all ranks.
    """

    name: str
    first_s: float
    last_s: float
    messages: int
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class Phase:
    """One simulated collective.

    Attributes
    ----------
    name, algorithm : str
    chunk_bytes : int or None
        Upper bound on the bytes of a broadcast's chunk.
    degrees : tuple of int
        Degrees of the layers of a butterfly.
    seconds : tuple of float
        Time of each rank until it had its result.
    rounds : tuple of Round
        In the order of their start.
    timeline : dict of rank to list of (round, start, end)
        Rounds of the watched ranks, in seconds.
    busy : dict of rank to list of (from, to)
        Times at which the watched ranks computed.
    trace : str
        Trace of the watched ranks as JSON for Perfetto; empty unless requested.
    """

    name: str
    algorithm: str
    chunk_bytes: int | None
    degrees: tuple[int, ...]
    seconds: tuple[float, ...]
    rounds: tuple[Round, ...]
    timeline: dict[int, list[tuple[str, float, float]]] = field(repr=False)
    busy: dict[int, list[tuple[float, float]]] = field(repr=False)
    trace: str = field(repr=False)

    @property
    def last_s(self) -> float:
        """Seconds until the last rank had its result."""
        return max(self.seconds)


@dataclass(frozen=True)
class Simulation:
    """Result of a simulation: its phases, one after the other."""

    phases: tuple[Phase, ...]

    @property
    def last_s(self) -> float:
        """Seconds of the last phase."""
        return self.phases[-1].last_s


@dataclass(frozen=True)
class _Request:
    collective: str
    algorithm: str
    chunk_bytes: int | None
    degrees: list[int] | None
    n: int
    cols: int
    entries: float
    alpha: float | None
    row_bytes: int
    sized: bool
    repeats: int
    seed: int
    watched: list[int]


def collectives() -> list[str]:
    """Names of the collectives that can be simulated.

    Examples
    --------
    >>> from skyphos.simulate import collectives
    >>> "allreduce" in collectives()
    True
    """
    return native.simulated_collectives()


_WHOLE_ARRAYS = ("allreduce_dense", "broadcast")
_OUTER = "outer_product_sum"
_INDICES = tuple(name for name in collectives() if name not in ("barrier", "shuffle", _OUTER, *_WHOLE_ARRAYS))

#: Arguments of :func:`simulate`, and the collectives that use them; the others ignore them.
USED_BY: dict[str, tuple[str, ...]] = {
    "n": (*_INDICES, *_WHOLE_ARRAYS, _OUTER),
    "cols": (_OUTER,),
    "entries": (*_INDICES, "shuffle", _OUTER),
    "alpha": _INDICES,
    "row_bytes": (*_INDICES, *_WHOLE_ARRAYS, "shuffle", _OUTER),
    "algorithm": ("allreduce", *_WHOLE_ARRAYS, _OUTER),
    "chunk_bytes": ("broadcast",),
    "degrees": ("configure", "reduce", "configure_reduce", "reduce_scatter", "allreduce"),
}


def simulate(
    network: Network,
    collective: str = "allreduce",
    *,
    n: int | None = None,
    cols: int | None = None,
    entries: float | None = None,
    alpha: float | None = None,
    row_bytes: int = 4,
    algorithm: str = "auto",
    chunk_bytes: int | None = None,
    degrees: Sequence[int] | None = None,
    sized: bool = False,
    repeats: int = 1,
    seed: int = 1,
    watch: Sequence[int] | None = None,
    trace: bool = False,
    progress: Callable[[str, int, float], None] | None = None,
) -> Simulation:
    """Run a collective on a simulated cluster.

    Parameters
    ----------
    network : Network
        The cluster.
    collective : str
        One of :func:`collectives`. ``"reduce"`` configures a plan and reduces with it. ``"broadcast"`` is from rank 0,
        and sends a copy to each rank of a host, where the library sends one per host. ``"shuffle"`` is the exchange of
        blocks between all ranks, without merging and without the stage within hosts.
    n : int
        Size of the index space; for ``"allreduce_dense"`` the length of the arrays, for ``"broadcast"`` the rows of the
        message of ``n * row_bytes`` bytes, for ``"outer_product_sum"`` the rows of the sum. Not used by ``"barrier"``
        and ``"shuffle"``.
    cols : int, optional
        Columns of an ``"outer_product_sum"``; None: as many as rows.
    entries : float
        Mean number of indices of a rank; for ``"topk_allreduce"`` also k; for ``"shuffle"`` the rows of each rank,
        which are distributed evenly over all ranks; for ``"outer_product_sum"`` the pairs of each rank. Not used by
        ``"allreduce_dense"``, ``"broadcast"`` and ``"barrier"``.
    alpha : float, optional
        Exponent of a power law from which indices are drawn (*Kylix*, section IV); without it they are uniform.
    row_bytes : int
        Bytes of an index's values; for ``"shuffle"`` and ``"broadcast"`` of a whole row; for ``"outer_product_sum"`` of
        a number, 4 or 8.
    algorithm, degrees
        As :meth:`skyphos.Comm.allreduce`, :meth:`skyphos.Comm.broadcast`, :meth:`skyphos.Comm.outer_product_sum` and
        :meth:`skyphos.Comm.configure` take them.
    chunk_bytes : int, optional
        As :meth:`skyphos.Comm.broadcast` takes it.
    sized : bool
        Simulate with lengths instead of data, for ``"configure"``, ``"reduce"``, ``"broadcast"``, ``"shuffle"`` and
        ``"outer_product_sum"``.
    repeats : int
        Number of runs.
    seed : int
        Seed of all random values; the same seed gives the same result, bit by bit.
    watch : sequence of int, optional
        Ranks whose frames and work are recorded; None: 32 of them.
    trace : bool
        Whether a trace is made.
    progress : callable, optional
        Called now and then with the phase's name, the number of ranks that are done, and the virtual time in seconds.

    Raises
    ------
    BadInput
        For an invalid network, or invalid or missing data.

    Examples
    --------
    >>> from skyphos.simulate import Network, simulate
    >>> done = simulate(Network(100), "broadcast", n=10**9, row_bytes=1, sized=True).phases[-1]
    >>> done.algorithm, round(done.last_s, 1)
    ('chain', 0.9)
    >>> done = simulate(Network(16), "reduce", n=10_000, entries=500, degrees=[4, 4])
    >>> [phase.name for phase in done.phases], [r.name for r in done.phases[-1].rounds]
    (['configure', 'reduce'], ['down 1', 'down 2', 'up 2', 'up 1'])
    """
    if watch is None:
        step = max(1, math.ceil(network.ranks / _WATCHED))
        watch = range(0, network.ranks, step)
    outside = [rank for rank in watch if not 0 <= rank < network.ranks]
    if outside:
        raise BadInput(f"rank {outside[0]} cannot be watched: there are {network.ranks}")
    for name, value, meaning in (("n", n, "how large the index space is"), ("entries", entries, "how much a rank has")):
        if value is None and collective in USED_BY[name]:
            raise BadInput(f"say {meaning}: {collective} takes {name}=")
    n = 1 if n is None else n
    whole("the size n of an index space", n, 2**63)
    whole("the number of columns", n if cols is None else cols, 2**63)
    whole("the bytes of a row", row_bytes, MAX_ROW_BYTES)
    whole("the number of repeats", repeats, 2**63)
    if chunk_bytes is not None:
        whole("the bytes of a chunk", chunk_bytes, 2**63)
    request = _Request(
        collective=collective,
        algorithm=algorithm,
        chunk_bytes=chunk_bytes,
        degrees=None if degrees is None else list(degrees),
        n=n,
        cols=n if cols is None else cols,
        entries=float(entries or 0),
        alpha=alpha,
        row_bytes=row_bytes,
        sized=sized,
        repeats=repeats,
        seed=checked_seed(seed),
        watched=sorted(set(watch)),
    )
    return Simulation(tuple(_phase(p) for p in native.simulate(network, request, trace, progress)))


def _round(r: native.SimulatedRound) -> Round:
    return Round(r.name, r.first_s, r.last_s, r.messages, r.sent_bytes, r.received_bytes)


def _phase(p: native.SimulatedPhase) -> Phase:
    return Phase(
        name=p.name,
        algorithm=p.algorithm,
        chunk_bytes=p.chunk_bytes,
        degrees=tuple(p.degrees),
        seconds=tuple(p.seconds),
        rounds=tuple(_round(one) for one in p.rounds),
        timeline=dict(p.timeline),
        busy=dict(p.busy),
        trace=p.trace,
    )
