"""The graphs and the cluster of *Sparse Allreduce* and *Kylix*, for the simulator.

**Graphs** (*Kylix*, section VII): vertices n, edges, and density, the share of the vertices that the edges of one of 64
random parts touch. For m parts the density follows from Proposition 4.1: a part has 64/m times as many edges, so the
expected number of its edges at each vertex is 64/m times as large.

**Cluster.** Kylix's text gives two points of its Figure 2, on 10 Gbit/s: messages of 0.4 MB reach 30 % of the rate of
messages of 5 MB, which are the smallest efficient ones. If a message occupies the link for g + s/R, its rate is
s R / (s + g R), and the two points give g R = 1.27 MB: each message costs as much as 1.27 MB. With R = 10 Gbit/s,
g = 1.02 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from math import prod
from typing import Any

from skyphos.planning import PlanPrediction, Profile, predict_plans, union_entries
from skyphos.simulate import Network, Simulation, simulate

#: Exponent of the power laws. The paper: most graphs lie between 0.5 and 2, and the exponent matters little.
ALPHA = 1.1
RATE = 10e9 / 8
LATENCY_S = 100e-6
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
#: Share of payload in the bytes of simulated links; the rest is framing.
_PAYLOAD = 1448 / 1538
#: Kylix's Figure 2: messages of SMALL bytes reach SHARE of the rate of messages of EFFICIENT bytes.
SMALL, EFFICIENT, SHARE = 0.4e6, 5e6, 0.3


@dataclass(frozen=True)
class Graph:
    """A graph whose edges are partitioned at random; ``optimal`` are Kylix's degrees for 64 nodes."""

    name: str
    n: int
    edges: float
    density: float
    optimal: tuple[int, ...]

    def entries(self, parts: int) -> float:
        """Vertices that one of ``parts`` parts touches."""
        return union_entries([64 / parts], self.n, self.density * self.n, model="power_law", alpha=ALPHA)[0]


TWITTER = Graph("Twitter", 60_000_000, 1.5e9, 0.21, (8, 4, 2))
YAHOO = Graph("Yahoo", 1_400_000_000, 6e9, 0.035, (16, 4))
GRAPHS = (TWITTER, YAHOO)


def message_bytes() -> float:
    """A message's fixed cost in bytes, g R, from the two points of Figure 2.

    SMALL/(SMALL + x) = SHARE EFFICIENT/(EFFICIENT + x), solved for x.
    """
    return SMALL * EFFICIENT * (1 - SHARE) / (SHARE * EFFICIENT - SMALL)


def network(ranks: int, **other: Any) -> Network:
    """The papers' cluster of ``ranks`` nodes; ``other`` adds incast, stragglers and so on."""
    settings: dict[str, Any] = {
        "rate_out": RATE,
        "rate_in": RATE,
        "latency_s": LATENCY_S,
        "message_s": message_bytes() / RATE,
    }
    return Network(ranks, **settings | other)


def plan(
    graph: Graph, degrees: Sequence[int] | None, on: Network, *, seed: int = 1, parts: int | None = None
) -> Simulation:
    """Simulate `configure` and `reduce` of one value a vertex; messages have lengths and no data.

    ``degrees``: None lets the planner choose. ``parts``: number of parts of the edges, if not one for each node.
    """
    return simulate(
        on,
        "reduce",
        n=graph.n,
        entries=graph.entries(parts or on.ranks),
        alpha=ALPHA,
        degrees=degrees,
        sized=True,
        seed=seed,
        watch=[],
    )


def predictions(graph: Graph, on: Network) -> list[PlanPrediction]:
    """The planner's predictions for a network, the fastest reduction first."""
    known = {"latency_s": on.latency_s, "message_s": on.message_s, "rate": on.rate_out * _PAYLOAD, "incast": on.incast}
    profile = replace(on.machine, **known)
    return predict_plans(on.ranks, graph.n, graph.entries(on.ranks), profile=profile, alpha=ALPHA)


def idle() -> Profile:
    """A profile of processors whose work takes no time, so that only the network counts."""
    free = dict.fromkeys((f.name for f in fields(Profile)), 0.0)
    return Profile(**free | {"rate": RATE, "cores": 1.0, "ring_gain": 1.0})


def layer_bytes(graph: Graph, degrees: Sequence[int], parts: int = 64) -> list[float]:
    """Bytes of all nodes' values at the top of each layer, then at the bottom (Proposition 4.1).

    As in *Kylix*'s Figure 5, including a node's messages to itself, with 4 bytes a value.
    """
    joined = [prod(degrees[:layer]) for layer in range(len(degrees) + 1)]
    held = union_entries(joined, graph.n, graph.entries(parts), model="power_law", alpha=ALPHA)
    return [4 * prod(degrees) * each / k for each, k in zip(held, joined, strict=True)]


def factorisations(ranks: int, max_layers: int | None = None) -> list[tuple[int, ...]]:
    """All ordered factorisations of ``ranks``, of at most ``max_layers`` factors."""
    if ranks == 1:
        return [()]
    if max_layers == 0:
        return []
    fewer = None if max_layers is None else max_layers - 1
    return [
        (first, *rest)
        for first in range(ranks, 1, -1)
        if ranks % first == 0
        for rest in factorisations(ranks // first, fewer)
    ]


def layers(degrees: Sequence[int]) -> str:
    """Degrees as text: ``8×4×2``."""
    return "×".join(map(str, degrees))


def short_layers(degrees: Sequence[int]) -> str:
    """Degrees as short text, with powers for repeated ones."""
    groups = [(degree, len(list(same))) for degree, same in groupby(degrees)]
    return "×".join(f"{degree}{str(count).translate(_RAISED) if count > 1 else ''}" for degree, count in groups)
