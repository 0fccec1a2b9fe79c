"""Columns of an edge list: well-known names in any order, names that the user gives, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_support import errors_on_ranks, on_ranks
from skyphos.errors import BadInput
from skyphos.graph import Edges, load, read_edges
from skyphos.graph.columns import Columns

#: Column names as programs write them: source, target, weight, and the other columns.
HEADS = [
    ("source", "target", "weight", ["id", "key"]),  # NetworkX
    ("Source", "Target", "Weight", ["Type", "Id", "Label", "timeset"]),  # Gephi
    ("from", "to", "weight", ["name"]),  # igraph
    ("src", "dst", "w", ["relationship"]),  # GraphFrames, cuGraph
    (":START_ID(Person)", ":END_ID(Person)", "weight:float", [":TYPE"]),  # Neo4j's import
    ("_start", "_end", "weight", ["_type"]),  # its apoc.export
    ("FromNodeId", "ToNodeId", "value", []),  # SNAP
    ("node_1", "node_2", "strength", []),
    ("source_id", "target_id", "count", ["id", "time"]),
    ("u", "v", "w", []),
    ("row", "col", "val", []),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("columns")


def write(folder: Path, text: str, name: str = "e.csv") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def rows(edges: Edges) -> list[tuple[int, int, float | None]]:
    weights = [None] * len(edges) if edges.weight is None else edges.weight.tolist()
    return list(zip(edges.source.tolist(), edges.target.tolist(), weights, strict=True))


@given(
    head=st.sampled_from(HEADS),
    weighted=st.booleans(),
    separator=st.sampled_from([",", ";", "|", "\t"]),
    quoted=st.booleans(),
    upper=st.booleans(),
    mark=st.booleans(),
    data=st.data(),
)
@settings(deadline=None, max_examples=150)
def test_known_names_in_any_order(
    *,
    folder: Path,
    head: tuple,
    weighted: bool,
    separator: str,
    quoted: bool,
    upper: bool,
    mark: bool,
    data: st.DataObject,
) -> None:
    source, target, weight, others = head
    roles = {source: ["1", "3"], target: ["2", "4"]} | ({weight: ["0.5", "2"]} if weighted else {})
    roles |= {name: ["7", "x"] for name in others}
    names = data.draw(st.permutations(list(roles)))
    lines = [[name.upper() if upper else name for name in names]] + [[roles[name][k] for name in names] for k in (0, 1)]
    cells = [[f'"{cell}"' if quoted else cell for cell in line] for line in lines]
    text = ("\ufeff" if mark else "") + "".join(separator.join(line) + "\n" for line in cells)
    found = read_edges(write(folder, text))
    assert rows(found) == [(1, 2, 0.5 if weighted else None), (3, 4, 2.0 if weighted else None)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id,source_id,target_id\n100,1,2\n", [(1, 2, None)]),
        ("time,source,destination\n1600,1,2\n", [(1, 2, None)]),
        ("target,source\n2,1\n", [(1, 2, None)]),
        (",source,target\n0,1,2\n", [(1, 2, None)]),  # a pandas index
        ("a,b\n1,2\n", [(1, 2, None)]),
        ("b,a\n2,1\n", [(1, 2, None)]),
        ("user2,user1,time\n2,1,9\n", [(1, 2, None)]),
        ("Source Node,Target Node\n1,2\n", [(1, 2, None)]),
        ("Target id\tSource id\tEdge weight\n2\t1\t0.5\n", [(1, 2, 0.5)]),
        ('"1","2"\n"3","4"\n', [(1, 2, None), (3, 4, None)]),
        ("1;2;0.5\n", [(1, 2, 0.5)]),
    ],
)
def test_columns_are_found_by_name(folder: Path, text: str, expected: list) -> None:
    assert rows(read_edges(write(folder, text))) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,b,c\n1,2,3\n", r"line 1: which column is source.*'a', 'b', 'c'.*--columns source="),
        ("weight,other\n1,2\n", "which column is source"),
        ("node,score\n1,2\n", "which column is source.*'node', 'score'.*--columns source="),
        ("id,name\n1,2\n", "which column is source"),
        ("child,parent\n1,2\n", "which column is source"),
        ("source,target,mass of it\n1,2,3\n", "is 'mass of it' the weight"),
        ("friend,source\n1,2\n", "which column is source"),
        ("source,target,source_id,target_id\n1,2,3,4\n", "which column is source"),
        ("source,target,score\n1,2,3\n", r"is 'score' the weight\?.*--columns source=.*--unweighted"),
        ("source,target,cost,distance\n1,2,3,4\n", "is 'cost' or 'distance' the weight"),
        ("1.0,2\n3,4\n", "line 1: not an edge: .*'1.0' is not a vertex id"),
        ("1,x\n3,4\n", "line 1: not an edge"),
        ("source,target\n", "line 1: names columns, but no line follows: the file holds no edge"),
        ("source,target\n# nothing\n\n", "holds no edge"),
        ("source,target\n1.0,2\n", "line 2: not an edge"),
        ("source;target;weight\n1;2;0,5\n", "line 2: .*weight '0,5' is not a finite number"),
    ],
)
def test_ambiguous_columns_are_refused(folder: Path, text: str, why: str) -> None:
    file = write(folder, text)
    with pytest.raises(BadInput, match=why):
        read_edges(file)
    for error in errors_on_ranks(3, lambda comm: load(comm, file)):
        assert isinstance(error, BadInput)


def test_weights_that_are_not_wanted_need_no_name(folder: Path) -> None:
    file = write(folder, "source,target,score\n1,2,3\n")
    assert rows(read_edges(file, weights=False)) == [(1, 2, None)]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("source=b,target=a", (2, 1, None)),
        ("source=B, target=c, weight=a", (2, 3, 1.0)),
        ({"source": "c", "target": "b", "weight": "a"}, (3, 2, 1.0)),
        ({"source": 1, "target": 3}, (1, 3, None)),
        ("source=3,target=2,weight=1", (3, 2, 1.0)),
    ],
)
def test_columns_that_are_named(folder: Path, columns: str | dict, expected: tuple) -> None:
    for name in ("n.csv", "n.txt"):
        if name == "n.txt" and "1" in str(columns):
            continue  # in .txt the first line holds names only if a column is asked for by name
        file = write(folder, "a,b,c\n1,2,3\n", name)
        assert rows(read_edges(file, columns=columns)) == [expected]
        shares = on_ranks(2, lambda comm, file=file: load(comm, file, columns=columns))
        assert [row for share in shares for row in rows(share)] == [expected]
    assert rows(read_edges(write(folder, "1 2 0.5 1600\n", "n.txt"), columns="source=2,target=1,weight=3")) == [
        (2, 1, 0.5)
    ]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ("a,b", "not role=column"),
        ("source=a", "source and target once"),
        ("source=a,source=b,target=c", "source and target once"),
        ("source=a,target=a", "not one twice"),
        ("source=a,target=x", "no column 'x' among the columns 'a', 'b', 'c'"),
        ("source=a,target=9", "no column '9'"),
        ("source=a,target=b,colour=c", "roles are"),
        (["a", "b"], "must be text or a mapping"),
    ],
)
def test_invalid_column_settings(folder: Path, columns: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        read_edges(write(folder, "a,b,c\n1,2,3\n"), columns=columns)


def test_columns_of_files_without_columns(folder: Path) -> None:
    matrix = write(folder, "%%MatrixMarket matrix coordinate pattern general\n2 2 1\n1 2\n", "m.mtx")
    with pytest.raises(BadInput, match="leave it out"):
        read_edges(matrix, columns="source=1,target=2")
    with pytest.raises(BadInput, match="numbers from 1"):
        read_edges(write(folder, "1 2\n", "n.txt"), columns="source=a,target=b")
    assert Columns.of(None) is None
