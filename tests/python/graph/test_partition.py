"""Partitions: no edge is lost, copies of an edge are on one rank, shares are balanced, and each method's rule holds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_support import errors_on_ranks, on_ranks, shared
from skyphos.collectives.agreement import reduce_number
from skyphos.errors import BadInput
from skyphos.graph import PARTITIONS, Edges, partition, read_edges, rmat
from skyphos.graph.exchange import gather_table, move
from skyphos.graph.partition import greedy_owners, random_owners

SMALL = st.integers(0, 12) | st.sampled_from([2**40, 2**63 - 1])


def share(edges: Edges, part: int, parts: int) -> Edges:
    return edges.take(slice(len(edges) * part // parts, len(edges) * (part + 1) // parts))


def rows(edges: Edges) -> list[tuple[int, int]]:
    return list(zip(edges.source.tolist(), edges.target.tolist(), strict=True))


def copies(edges: Edges, owners: np.ndarray) -> float:
    """The mean number of parts on which a vertex has edges."""
    ends = np.concatenate([edges.source, edges.target])
    both = np.concatenate([owners, owners])
    return len(np.unique(np.column_stack([ends, both]), axis=0)) / len(np.unique(ends))


@given(
    edges=st.lists(st.tuples(SMALL, SMALL, st.floats(0, 9)), max_size=60),
    size=st.integers(1, 5),
    method=st.sampled_from(PARTITIONS),
    weighted=st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_every_edge_arrives_once_with_its_last_weight(edges: list, size: int, method: str, weighted: bool) -> None:
    source = np.array([e[0] for e in edges], np.int64)
    target = np.array([e[1] for e in edges], np.int64)
    everything = Edges(source, target, np.array([e[2] for e in edges], np.float64) if weighted else None)
    shares = on_ranks(size, lambda comm: partition(comm, share(everything, comm.rank, size), method))
    found = [row for part in shares for row in rows(part)]
    last = {(s, t): w for s, t, w in edges}
    assert sorted(found) == sorted(last)
    if weighted:
        weights = [w for part in shares for w in part.weight.tolist()]
        assert dict(zip(found, weights, strict=True)) == last


def test_random_partition_does_not_depend_on_the_shares() -> None:
    edges = rmat(8, 8, seed=3)
    shuffled = edges.take(np.random.default_rng(0).permutation(len(edges)))
    a = on_ranks(3, lambda comm: partition(comm, share(edges, comm.rank, 3), "random", seed=5))
    b = on_ranks(3, lambda comm: partition(comm, share(shuffled, comm.rank, 3), "random", seed=5))
    assert [sorted(rows(part)) for part in a] == [sorted(rows(part)) for part in b]
    c = on_ranks(3, lambda comm: partition(comm, share(edges, comm.rank, 3), "random", seed=6))
    assert [sorted(rows(part)) for part in a] != [sorted(rows(part)) for part in c]


@pytest.mark.parametrize("parts", [2, 3, 7, 64])
def test_random_is_even(parts: int) -> None:
    edges = rmat(10, 16, seed=1).merged()
    counts = np.bincount(random_owners(edges, parts), minlength=parts)
    mean = len(edges) / parts
    assert np.all(np.abs(counts - mean) < 6 * np.sqrt(mean))


def test_greedy_follows_the_four_cases() -> None:
    def place(*edges: tuple[int, int], parts: int = 3) -> list[int]:
        return greedy_owners(Edges(np.array([e[0] for e in edges]), np.array([e[1] for e in edges])), parts).tolist()

    far = tuple((100 + k, 200 + k) for k in range(30))  # so that no part is full
    assert place((0, 1), (2, 3), (4, 5), (6, 7))[:4] == [0, 1, 2, 0]  # case 4: the least loaded
    assert place((0, 1), (1, 2), *far)[:2] == [0, 0]  # case 3: where vertex 1 is
    assert place((0, 1), (1, 2), (0, 2), *far)[:3] == [0, 0, 0]  # case 1: where both are
    # Case 2: 0 is on part 0, 9 on part 1 with more edges to come, so the edge goes to part 1.
    assert place((0, 1), (9, 8), (0, 9), (9, 7), (9, 6), *far)[:3] == [0, 1, 1]
    assert place((0, 1), (9, 8), (0, 9), (0, 7), (0, 6), *far)[:3] == [0, 1, 0]


def test_greedy_is_even_and_cuts_fewer_vertices_than_random() -> None:
    edges = read_edges(shared("graphs/wiki-Vote.txt"))
    for parts in (4, 16):
        greedy, by_chance = greedy_owners(edges, parts), random_owners(edges, parts)
        assert np.bincount(greedy, minlength=parts).max() <= 1.03 * len(edges) / parts
        assert copies(edges, greedy) < 0.75 * copies(edges, by_chance)


@pytest.mark.parametrize("method", ["greedy", "row"])
def test_distributed_cuts_are_even_and_better_than_random(method: str) -> None:
    edges = read_edges(shared("graphs/wiki-Vote.txt"))

    def cut(rule: str) -> tuple[float, float]:
        shares = on_ranks(4, lambda comm: partition(comm, share(edges, comm.rank, 4), rule))
        whole = Edges(*(np.concatenate([getattr(s, name) for s in shares]) for name in ("source", "target")))
        sizes = [len(s) for s in shares]
        return copies(whole, np.repeat(np.arange(4), sizes)), max(sizes) * 4 / len(edges)

    (better, even), (worse, _) = cut(method), cut("random")
    assert better < worse
    assert even < 1.1


def test_row_keeps_every_row_on_one_rank() -> None:
    edges = rmat(8, 8, seed=2)
    shares = on_ranks(4, lambda comm: partition(comm, share(edges, comm.rank, 4), "row"))
    targets = [set(part.target.tolist()) for part in shares]
    assert sum(map(len, targets)) == len(set().union(*targets))
    nonempty = [t for t in targets if t]
    assert all(max(a) < min(b) for a, b in itertools.pairwise(nonempty))


def test_row_with_one_hub() -> None:
    edges = Edges(np.arange(1000), np.zeros(1000, np.int64))
    shares = on_ranks(3, lambda comm: partition(comm, share(edges, comm.rank, 3), "row"))
    assert sorted(map(len, shares)) == [0, 0, 1000]


def test_unknown_partition() -> None:
    errors = errors_on_ranks(2, lambda comm: partition(comm, rmat(3, 1), "columns"))
    assert all(isinstance(error, BadInput) and "columns" in str(error) for error in errors)


@given(
    size=st.integers(1, 5),
    counts=st.lists(st.integers(0, 20), min_size=5, max_size=5),
    width=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=40)
def test_move_keeps_the_order_of_senders_and_rows(size: int, counts: list[int], width: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    sent = [random.integers(-(2**63), 2**63 - 1, (counts[r], width)) for r in range(size)]
    owners = [random.integers(0, size, counts[r]) for r in range(size)]
    got = on_ranks(size, lambda comm: move(comm, sent[comm.rank], owners[comm.rank]))
    for rank in range(size):
        expected = np.concatenate([sent[r][owners[r] == rank] for r in range(size)])
        assert np.array_equal(got[rank], expected)


def test_small_collectives() -> None:
    assert on_ranks(3, lambda comm: reduce_number(comm, comm.rank + 1, "prod")) == [6, 6, 6]
    tables = on_ranks(3, lambda comm: gather_table(comm, np.array([comm.rank, 7.5])))
    assert all(table.tolist() == [[0, 7.5], [1, 7.5], [2, 7.5]] for table in tables)
