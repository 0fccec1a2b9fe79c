"""Pairings of a probe: the pairs of ranks that measure with each other in each round, the same on all ranks.

The rounds are a tournament by the circle method: in each round a rank is in at most one pair, and after all rounds
every pair has measured. Large groups use only a sample of the rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["across", "incast_flows", "message_sizes", "neighbours", "pair_rounds", "ring", "tournament"]

Pairs = list[tuple[int, int]]

#: Up to this many ranks each pair measures alone; up to this many ranks all pairs measure; up to this many hosts all
#: pairs of hosts measure, by one rank of each.
_ALONE, _ALL_RANKS, _ALL_HOSTS = 8, 16, 32


def tournament(players: Sequence[int]) -> list[Pairs]:
    """Rounds in which each player meets every other once, all at the same time.

    Examples
    --------
    >>> from skyphos.probe.pairings import tournament
    >>> tournament([0, 1, 2, 3])
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    >>> [len(pairs) for pairs in tournament(range(5))]
    [2, 2, 2, 2, 2]
    """
    circle: list[int | None] = list(players)
    if len(circle) % 2:
        circle.append(None)  # a rank that is paired with None rests
    rounds = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        met = [(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None]
        rounds.append(sorted(met))
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return [pairs for pairs in rounds if pairs]


def _some(rounds: list[Pairs], limit: int) -> list[Pairs]:
    """At most ``limit`` of the rounds, evenly spaced."""
    return rounds if len(rounds) <= limit else [rounds[k * len(rounds) // limit] for k in range(limit)]


def pair_rounds(hosts: Sequence[Sequence[int]]) -> list[Pairs]:
    """Rounds of pairs to measure, for ranks by host.

    Up to 16 ranks: all pairs, up to 8 ranks one after the other. More ranks: one rank of each host with one of every
    other host (in at most 32 rounds), the first ranks within each host, and 15 rounds of all ranks.

    Examples
    --------
    >>> from skyphos.probe.pairings import pair_rounds
    >>> len(pair_rounds([[0, 1], [2, 3]])), len(pair_rounds([[k] for k in range(100)]))
    (6, 47)
    """
    ranks = sorted(rank for host in hosts for rank in host)
    if len(ranks) <= _ALONE:
        # Traffic of other pairs must not appear as distance.
        return [[pair] for pairs in tournament(ranks) for pair in pairs]
    if len(ranks) <= _ALL_RANKS:
        return tournament(ranks)
    rounds = _some(tournament([host[0] for host in hosts]), _ALL_HOSTS)
    inside = [tournament(host[:4]) for host in hosts if len(host) > 1]
    for turn in range(max(map(len, inside), default=0)):
        rounds.append([pair for own in inside if turn < len(own) for pair in own[turn]])
    return rounds + _some(tournament(ranks), _ALL_RANKS - 1)


def neighbours(hosts: Sequence[Sequence[int]]) -> Pairs:
    """Flows in which every rank sends and receives at once, to another host if there are several.

    Examples
    --------
    >>> from skyphos.probe.pairings import neighbours
    >>> neighbours([[0, 1], [2, 3]])
    [(0, 2), (1, 3), (2, 0), (3, 1)]
    """
    order = [rank for host in hosts for rank in host]
    shift = 1 if len(hosts) == 1 else max(len(host) for host in hosts)
    # If hosts have unequal sizes, as few ranks as possible send within their host.
    return sorted((rank, order[(k + shift) % len(order)]) for k, rank in enumerate(order) if len(order) > 1)


def across(hosts: Sequence[Sequence[int]], racks: Sequence[Sequence[int]]) -> list[list[int]]:
    """Hosts in an order in which each is in another rack than the one before, as far as possible.

    Examples
    --------
    >>> from skyphos.probe.pairings import across
    >>> across([[0], [1], [2], [3], [4]], [[0, 1, 2], [3, 4]])
    [[0], [3], [1], [4], [2]]
    """
    turns = range(max(map(len, racks), default=0))
    return [list(hosts[rack[turn]]) for turn in turns for rack in racks if turn < len(rack)]


def ring(hosts: Sequence[Sequence[int]]) -> Pairs:
    """Flows in which every rank sends to the next one; one flow leaves each host.

    Examples
    --------
    >>> from skyphos.probe.pairings import ring
    >>> ring([[0, 2], [1]])
    [(0, 2), (1, 0), (2, 1)]
    """
    order = [rank for host in hosts for rank in host]
    return sorted(zip(order, order[1:] + order[:1], strict=True)) if len(order) > 1 else []


def incast_flows(hosts: Sequence[Sequence[int]]) -> list[Pairs]:
    """Flows to the first rank from 1, 2, 4 … all ranks of other hosts; on a single host from its other ranks.

    Examples
    --------
    >>> from skyphos.probe.pairings import incast_flows
    >>> incast_flows([[0, 1], [2], [3, 4]])
    [[(2, 0)], [(2, 0), (3, 0)], [(2, 0), (3, 0), (4, 0)]]
    >>> incast_flows([[0, 1, 2]])
    [[(1, 0)], [(1, 0), (2, 0)]]
    """
    to = hosts[0][0]
    # One rank of each host, then the second of each, and so on: senders have separate links as long as possible.
    turns = range(max(map(len, hosts)))
    others = [host[turn] for turn in turns for host in hosts[1:] if turn < len(host)] or list(hosts[0][1:])
    counts = [1 << k for k in range(len(others).bit_length()) if 1 << k < len(others)] + [len(others)]
    return [[(rank, to) for rank in others[:count]] for count in counts if others]


def message_sizes(largest: int) -> list[int]:
    """Sizes from 1 byte, by factors of 4, and of 2 near a frame's 128 KB.

    Examples
    --------
    >>> from skyphos.probe.pairings import message_sizes
    >>> message_sizes(1 << 20)
    [1, 4, 16, 64, 256, 1024, 4096, 16384, 32768, 65536, 131072, 262144, 524288, 1048576]
    """
    sizes = [4**k for k in range(8)]
    while sizes[-1] < largest:
        sizes.append(2 * sizes[-1])
    return sizes
