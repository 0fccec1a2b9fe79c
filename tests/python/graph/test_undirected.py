"""Undirected graphs against networkx: text in either direction, twice, with loops; and matrices of any symmetry."""

from __future__ import annotations

from pathlib import Path

import networkx
import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_support import on_ranks
from skyphos.graph import Edges, load, pagerank

ROWS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(1, 9)), min_size=1, max_size=30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("undirected")


def entries(shares: list[Edges]) -> dict[tuple[int, int], float]:
    """Every entry, each on one rank."""
    found: dict[tuple[int, int], float] = {}
    for share in shares:
        weights = np.ones(len(share)) if share.weight is None else share.weight
        for source, target, weight in zip(share.source.tolist(), share.target.tolist(), weights.tolist(), strict=True):
            assert (source, target) not in found, "an edge is on two ranks, or twice on one"
            found[source, target] = weight
    return found


def expected(graph: networkx.Graph, weight: str | None = "weight") -> dict[tuple[int, int], float]:
    found = {}
    for source, target, data in graph.edges(data=True):
        found[source, target] = found[target, source] = float(data["weight"]) if weight else 1.0
    return found


def assert_agrees(file: Path, graph: networkx.Graph, size: int, method: str, *, weights: bool = True) -> None:
    """Check the entries and ranks that ``file`` gives against those of ``graph`` in networkx."""

    def work(comm: object) -> tuple:
        edges = load(comm, file, undirected=True, partition_by=method, weights=weights)  # type: ignore[arg-type]
        result = pagerank(comm, edges, tol=1e-13, max_iterations=3000)  # type: ignore[arg-type]
        ranks = dict(zip(result.vertices[result.owned].tolist(), result.ranks[result.owned].tolist(), strict=True))
        return edges, ranks

    done = on_ranks(size, work)
    assert entries([edges for edges, _ in done]) == expected(graph, "weight" if weights else None)
    ranks = {vertex: rank for _, some in done for vertex, rank in some.items()}
    theirs = networkx.pagerank(graph, tol=1e-14, max_iter=5000, weight="weight" if weights else None)
    assert set(ranks) == set(theirs)
    assert max(abs(ranks[vertex] - theirs[vertex]) for vertex in theirs) < 1e-9


@given(rows=ROWS, size=st.integers(1, 4), method=st.sampled_from(["random", "greedy", "row"]), weighted=st.booleans())
@settings(deadline=None, max_examples=60)
def test_edge_lists(*, folder: Path, rows: list, size: int, method: str, weighted: bool) -> None:
    file = folder / "u.txt"
    file.write_text("".join(f"{a} {b} {w}\n" if weighted else f"{a} {b}\n" for a, b, w in rows))
    graph = networkx.Graph()
    graph.add_weighted_edges_from([(a, b, w if weighted else 1) for a, b, w in rows])
    assert_agrees(file, graph, size, method)


@given(
    field=st.sampled_from(["real", "integer", "pattern"]),
    symmetry=st.sampled_from(["general", "symmetric"]),
    seed=st.integers(0, 10_000),
    size=st.integers(1, 4),
    method=st.sampled_from(["random", "greedy", "row"]),
    weights=st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_matrices(*, folder: Path, field: str, symmetry: str, seed: int, size: int, method: str, weights: bool) -> None:
    random = np.random.default_rng(seed)
    matrix = random.integers(1, 9, (6, 6)) * (random.random((6, 6)) < 0.4)
    if symmetry == "symmetric":
        matrix = np.tril(matrix) + np.tril(matrix, -1).T
    matrix = (matrix != 0).astype(int) if field == "pattern" else matrix.astype(float) if field == "real" else matrix
    file = folder / "u.mtx"
    scipy.io.mmwrite(file, scipy.sparse.coo_array(matrix), field=field, symmetry=symmetry)
    read = scipy.io.mmread(file, spmatrix=False)
    graph = networkx.from_scipy_sparse_array(read)
    base = load_base(file)
    assert base == 1
    assert_agrees(file, graph, size, method, weights=weights)


def load_base(file: Path) -> int:
    return on_ranks(1, lambda comm: load(comm, file).base)[0]


@pytest.mark.parametrize("size", [1, 3])
def test_a_skew_symmetric_matrix_without_its_values(folder: Path, size: int) -> None:
    file = folder / "skew.mtx"
    file.write_text("%%MatrixMarket matrix coordinate real skew-symmetric\n3 3 2\n2 1 5\n3 2 -1\n")
    graph = networkx.Graph([(0, 1), (1, 2)])
    assert_agrees(file, graph, size, "random", weights=False)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_entries_of_one_edge_add_up_and_the_direction_listed_last_counts(folder: Path, size: int) -> None:
    file = folder / "twice.mtx"
    text = "%%MatrixMarket matrix coordinate real general\n3 3 5\n1 2 1\n2 1 9\n1 2 2\n3 1 4\n3 1 4\n"
    file.write_text(text)
    found = entries(on_ranks(size, lambda comm: load(comm, file, undirected=True)))
    assert found == {(0, 1): 3.0, (1, 0): 3.0, (0, 2): 8.0, (2, 0): 8.0}


@pytest.mark.parametrize("size", [2, 4])
def test_counted_duplicates_on_some_ranks_only(folder: Path, size: int) -> None:
    """Merging duplicates of a pattern gives weights; ranks without duplicates must send weights too."""
    file = folder / "pattern.mtx"
    text = "".join(f"{k} {k + 1}\n" for k in range(1, 30)) + "1 2\n" * 3
    file.write_text(f"%%MatrixMarket matrix coordinate pattern general\n30 30 32\n{text}")
    for method in ("random", "greedy", "row"):
        for undirected in (False, True):
            shares = on_ranks(size, lambda comm, m=method, u=undirected: load(comm, file, partition_by=m, undirected=u))
            assert entries(shares)[0, 1] == 4.0
