"""PageRank against networkx, and its promises about stopping, callbacks and bad settings."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import skyphos as sky
from graph_support import errors_on_ranks, on_ranks, shared, whole
from skyphos.errors import BadInput
from skyphos.graph import DistMatrix, Edges, PageRank, adjacency_matrix, load, pagerank, partition

TIGHT: dict[str, Any] = {"tol": 1e-13, "max_iterations": 2000}
ROW = st.tuples(st.integers(0, 9) | st.just(10**12), st.integers(0, 9), st.just(0.0) | st.floats(1e-3, 5))


def combined(results: list[PageRank]) -> dict[int, float]:
    return whole([(result.vertices[result.owned], result.ranks[result.owned]) for result in results])


def from_networkx(graph: networkx.DiGraph, **options: Any) -> dict[int, float]:
    result: dict[int, float] = networkx.pagerank(graph, **({"tol": 1e-14, "max_iter": 5000} | options))
    return result


def rank_rows(rows: list, size: int, weighted: bool, method: str = "random", **options: Any) -> list[PageRank]:
    source = np.array([row[0] for row in rows], np.int64)
    target = np.array([row[1] for row in rows], np.int64)
    weight = np.array([row[2] for row in rows]) if weighted else None

    def work(comm: sky.Comm) -> PageRank:
        low, high = len(rows) * comm.rank // size, len(rows) * (comm.rank + 1) // size
        share = Edges(source, target, weight).take(slice(low, high))
        return pagerank(comm, partition(comm, share, method), **(TIGHT | options))

    return on_ranks(size, work)


@given(
    rows=st.lists(ROW, min_size=1, max_size=40),
    size=st.integers(1, 4),
    weighted=st.booleans(),
    method=st.sampled_from(["random", "greedy", "row"]),
    damping=st.sampled_from([0.0, 0.5, 0.85, 0.95]),
    seed=st.none() | st.integers(0, 100),
)
@settings(deadline=None, max_examples=80)
def test_matches_networkx(
    *, rows: list, size: int, weighted: bool, method: str, damping: float, seed: int | None
) -> None:
    graph = networkx.DiGraph()
    for source, target, weight in rows:
        graph.add_edge(source, target, weight=weight if weighted else 1.0)
    options: dict[str, Any] = {}
    if seed is not None:
        random = np.random.default_rng(seed)
        chosen = [vertex for vertex in graph if random.random() < 0.5] or [rows[0][0]]
        options["personalization"] = {vertex: 1.0 + random.random() for vertex in chosen} | {99: 5.0}
    expected = from_networkx(graph, alpha=damping, **options)
    results = rank_rows(rows, size, weighted, method, damping=damping, **options)
    found = combined(results)
    assert set(found) == set(expected)
    assert max(abs(found[vertex] - expected[vertex]) for vertex in found) < 1e-9
    assert abs(sum(found.values()) - 1) < 1e-9
    assert {result.count for result in results} == {len(graph)}
    for result in results:  # other ranks have the same values as the owner
        assert all(result.ranks[k] == found[v] for k, v in enumerate(result.vertices.tolist()))


@pytest.mark.parametrize("name", ["wiki-Vote.txt", "cit-HepTh.txt.gz"])
@pytest.mark.parametrize("method", ["random", "row"])
def test_real_graphs_match_networkx(name: str, method: str) -> None:
    file = shared(f"graphs/{name}")
    graph = networkx.DiGraph()
    with gzip.open(file, "rt") if name.endswith(".gz") else open(file) as lines:
        graph.add_edges_from(tuple(map(int, line.split())) for line in lines if not line.startswith("#"))
    expected = from_networkx(graph)
    found = combined(
        on_ranks(4, lambda comm: pagerank(comm, load(comm, file, partition_by=method), degrees=[2, 2], **TIGHT))
    )
    assert set(found) == set(expected)
    assert max(abs(found[vertex] - expected[vertex]) for vertex in found) < 1e-9


def test_stops_with_networkx_when_asked() -> None:
    rows = [(k % 13, (k * k + 1) % 17, 1.0) for k in range(80)]
    graph = networkx.DiGraph([row[:2] for row in rows])
    result = rank_rows(rows, 3, False, tol=1e-6, stop="per_vertex")
    expected = from_networkx(graph, tol=1e-6)
    found = combined(result)
    # Stopped in the same iteration: equal far below the tolerance.
    assert max(abs(found[vertex] - expected[vertex]) for vertex in found) < 1e-14


def test_every_row_of_a_matrix_is_a_vertex(tmp_path: Path) -> None:
    matrix = scipy.sparse.coo_array(([1.0, 2.0, 0.5], ([0, 4, 4], [4, 0, 2])), shape=(7, 7))
    scipy.sparse.save_npz(tmp_path / "m.npz", matrix)
    expected = from_networkx(networkx.from_scipy_sparse_array(matrix, create_using=networkx.DiGraph))
    found = combined(on_ranks(3, lambda comm: pagerank(comm, load(comm, tmp_path / "m.npz"), **TIGHT)))
    assert set(found) == set(range(7))
    assert max(abs(found[vertex] - expected[vertex]) for vertex in found) < 1e-9


def test_an_edge_of_weight_zero_adds_a_vertex_but_no_out_degree() -> None:
    rows = [(0, 1, 0.0), (1, 2, 1.0)]
    graph = networkx.DiGraph()
    graph.add_weighted_edges_from(rows)
    expected, found = from_networkx(graph), combined(rank_rows(rows, 2, True))
    assert all(abs(found[vertex] - expected[vertex]) < 1e-9 for vertex in expected)


def test_callback_gets_every_iteration_once_and_result_is_of_the_last() -> None:
    rows = [(k % 5, (3 * k + 1) % 7, 1.0) for k in range(20)]
    heard: list[tuple[int, float]] = []

    def work(comm: sky.Comm) -> PageRank:
        source, target = (np.array([row[k] for row in rows]) for k in (0, 1))
        mine = Edges(source, target).take(slice(comm.rank, None, 2))
        callback = (lambda k, r: heard.append((k, r))) if comm.rank == 0 else None
        return pagerank(comm, partition(comm, mine), tol=1e-9, callback=callback)

    result = on_ranks(2, work)[0]
    assert [k for k, _ in heard] == list(range(1, result.iterations + 1))
    assert [r for _, r in heard] == result.residuals
    assert result.converged
    assert result.residuals[-1] < 1e-9 <= result.residuals[-2]
    # The last residual is the sum of the changes that the last iteration made.
    fewer = combined(rank_rows(rows, 2, False, tol=0.0, max_iterations=result.iterations - 1))
    same = combined(rank_rows(rows, 2, False, tol=0.0, max_iterations=result.iterations))
    assert sum(abs(same[v] - fewer[v]) for v in same) == pytest.approx(result.residuals[-1], rel=1e-6)


def test_results_say_whether_they_converged() -> None:
    results = rank_rows([(0, 1, 1.0), (1, 2, 1.0), (2, 1, 1.0)], 2, False, tol=1e-12, max_iterations=3)
    assert [(r.converged, r.iterations) for r in results] == [(False, 3)] * 2


def test_time_is_accounted_for() -> None:
    for result in rank_rows([(0, 1, 1.0), (1, 0, 1.0), (2, 1, 1.0)], 2, False):
        split = result.seconds
        parts = (split.configure, split.compute, split.wait, split.transfer, split.merge)
        assert all(part >= 0 for part in parts)
        assert split.compute + split.wait + split.transfer + split.merge == pytest.approx(split.iterations)


EDGE = Edges(np.array([0]), np.array([1]))


@pytest.mark.parametrize(
    ("graph", "options", "why"),
    [
        (EDGE, {"damping": 1.0}, "damping"),
        (EDGE, {"damping": -0.1}, "damping"),
        (EDGE, {"damping": float("nan")}, "damping"),
        (EDGE, {"tol": -1.0}, "tol"),
        (EDGE, {"tol": float("nan")}, "tol"),
        (EDGE, {"max_iterations": 0}, "max_iterations"),
        (EDGE, {"stop": "soon"}, "stop"),
        (EDGE, {"personalization": {5: 1.0}}, "personalization"),
        (EDGE, {"personalization": {0: -1.0}}, "personalization"),
        (EDGE, {"degrees": [3]}, "degrees|multiply|product"),
        (Edges(np.array([0]), np.array([1]), np.array([-2.0])), {}, "weight -2"),
        (Edges(np.empty(0, np.int64), np.empty(0, np.int64)), {}, "no vertex"),
        (Edges(np.array([0]), np.array([1]), None, (2, 3)), {}, "square"),
    ],
)
def test_bad_settings_are_an_error_on_all_ranks(graph: Edges, options: dict, why: str) -> None:
    for error in errors_on_ranks(2, lambda comm: pagerank(comm, graph, **options)):
        assert isinstance(error, BadInput)
        assert re.search(why, str(error))


def test_a_bad_weight_on_one_rank_is_an_error_on_all() -> None:
    def work(comm: sky.Comm) -> None:
        pagerank(comm, Edges(np.array([0]), np.array([1]), np.array([-1.0 if comm.rank else 1.0])))

    assert all("weight -1" in str(error) for error in errors_on_ranks(2, work))


def test_a_matrix_can_be_given() -> None:
    def work(comm: sky.Comm) -> PageRank:
        return pagerank(comm, adjacency_matrix(comm, EDGE if comm.rank == 0 else EDGE.take(slice(0, 0))), **TIGHT)

    found = combined(on_ranks(2, work))
    expected = from_networkx(networkx.DiGraph([(0, 1)]))
    assert all(abs(found[vertex] - expected[vertex]) < 1e-9 for vertex in expected)
    errors = errors_on_ranks(2, lambda comm: pagerank(comm, DistMatrix(comm, [0], [1])))
    assert all("slots=2" in str(error) for error in errors)


@given(
    exponents=st.lists(st.integers(-323, 308), min_size=3, max_size=12),
    size=st.integers(1, 3),
    data=st.data(),
)
@settings(deadline=None, max_examples=60)
def test_weights_and_personalisation_of_any_size_give_ranks_that_sum_to_1(
    exponents: list, size: int, data: st.DataObject
) -> None:
    vertices = st.integers(0, 4)
    rows = [(data.draw(vertices), data.draw(vertices), float(f"1.5e{e}")) for e in exponents]
    weights = st.one_of(st.none(), st.just(1e308), st.just(5e-324), st.floats(0, 1e308))
    given = {vertex: weight for vertex in range(6) if (weight := data.draw(weights)) is not None}
    in_graph = {vertex for row in rows for vertex in row[:2]}
    options: dict[str, Any] = {}
    if any(weight > 0 for vertex, weight in given.items() if vertex in in_graph):
        options["personalization"] = given
    found = combined(rank_rows(rows, size, True, max_iterations=50, tol=1e-10, **options))
    assert abs(sum(found.values()) - 1) < 1e-9
    assert all(0 <= rank <= 1 + 1e-12 for rank in found.values())


def test_only_the_ratio_of_weights_counts() -> None:
    rows = [(0, 1, 1.0), (0, 2, 3.0), (1, 0, 1.0), (2, 1, 2.0)]
    expected = combined(rank_rows(rows, 2, True))
    for factor in (1e307, 1e-323, 5e-310):
        found = combined(rank_rows([(s, t, w * factor) for s, t, w in rows], 2, True))
        ratio = 1e-9 if factor != 1e-323 else 0.2  # numbers as small as that have few significant bits
        assert all(abs(found[vertex] - expected[vertex]) < ratio for vertex in expected)
    half = combined(rank_rows(rows, 2, True, personalization={0: 1e308, 1: 1e308}))
    even = combined(rank_rows(rows, 2, True, personalization={0: 1, 1: 1}))
    assert all(abs(half[vertex] - even[vertex]) < 1e-12 for vertex in even)


@pytest.mark.parametrize("weight", [np.inf, -np.inf, np.nan, -1.0])
def test_an_invalid_weight_is_named_with_its_edge(weight: float) -> None:
    def of_edges(comm: sky.Comm) -> None:
        pagerank(comm, Edges([0, 3], [1, 5], [1.0, weight if comm.rank else 1.0], base=1))

    def of_matrix(comm: sky.Comm) -> None:
        rows, columns = ([1], [0]) if comm.rank == 0 else ([0, 0], [1, 3])
        pagerank(comm, DistMatrix(comm, rows, columns, [1.0, weight][: len(rows)], slots=2))

    for error in errors_on_ranks(2, of_edges):
        assert isinstance(error, BadInput) and re.search("edge 4 -> 6 has weight", str(error))
    for error in errors_on_ranks(2, of_matrix):
        assert isinstance(error, BadInput) and re.search("from 3 to 0: PageRank needs", str(error))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"max_iterations": 2.5}, "max_iterations must be a whole number, not 2.5"),
        ({"max_iterations": "3"}, "max_iterations must be a whole number"),
        ({"max_iterations": True}, "max_iterations must be a whole number"),
        ({"damping": "0.5"}, "damping must be a number"),
        ({"damping": float("inf")}, "damping"),
        ({"tol": None}, "tol must be a number"),
        ({"stop": None}, "stop must be"),
        ({"personalization": [1.0]}, "personalization must map"),
        ({"personalization": {"a": 1.0}}, "personalization: a vertex must be a whole number, not 'a'"),
        ({"personalization": {0.5: 1.0}}, "a vertex must be a whole number"),
        ({"personalization": {0: float("nan")}}, "vertex 0 has weight nan"),
        ({"personalization": {0: float("inf")}}, "vertex 0 has weight inf"),
        ({"personalization": {0: "x"}}, "vertex 0 has weight 'x'"),
        ({"personalization": {0: 1, "0": 2}}, "vertex 0 is given twice"),
        ({"personalization": {2**64: 1}}, "must be from"),
        ({"callback": 5}, "callback must be a function"),
        ({"checkpoint": 5}, "checkpoint's path is the name of a folder, not 5"),
        ({"degrees": "2"}, "degrees"),
    ],
)
def test_settings_that_are_not_understood(options: dict, why: str) -> None:
    for error in errors_on_ranks(2, lambda comm: pagerank(comm, EDGE, **options)):
        assert isinstance(error, BadInput) and re.search(why, str(error)), error


def test_settings_of_equivalent_types_are_accepted() -> None:
    rows = [(0, 1, 1.0), (1, 2, 1.0), (2, 0, 1.0), (0, 2, 1.0)]
    expected = combined(rank_rows(rows, 2, False, max_iterations=4, tol=0, personalization={1: 1.0}))
    for options in ({"max_iterations": 4.0}, {"max_iterations": np.int32(4)}, {"damping": np.float32(0.85)}):
        given = {"max_iterations": 4, "tol": 0, "personalization": {"1": 1}} | options
        found = combined(rank_rows(rows, 2, False, **given))
        assert all(abs(found[vertex] - expected[vertex]) < 1e-6 for vertex in expected)
    for graph, told in ((None, "a graph is Edges, "), ("edges.txt", "load(comm, 'edges.txt')"), (5, "a graph is")):
        for error in errors_on_ranks(2, lambda comm, graph=graph: pagerank(comm, graph)):  # type: ignore[arg-type]
            assert isinstance(error, BadInput) and told in str(error)
