"""Readers of graphs: every format, every form of an edge, every cut into shares, and the lines in errors."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import io
import lzma
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import scipy.io
import scipy.sparse
from hypothesis import example, given, settings
from hypothesis import strategies as st

import skyphos as sky
from graph_support import errors_on_ranks, on_ranks, shared
from skyphos.collectives.agreement import together
from skyphos.errors import BadInput
from skyphos.graph import Edges, load, read_edges, text
from skyphos.graph.text import Layout

IDS = st.integers(0, 2**63 - 1) | st.integers(0, 30)
PAIRS = st.lists(st.tuples(IDS, IDS), min_size=1, max_size=40)


def pairs(edges: Edges) -> list[tuple[int, int]]:
    return list(zip(edges.source.tolist(), edges.target.tolist(), strict=True))


def write(folder: Path, name: str, content: str | bytes) -> Path:
    file = folder / name
    data = content.encode() if isinstance(content, str) else content
    file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graphs")


@given(
    edges=PAIRS,
    separator=st.sampled_from([" ", "\t", ",", ", ", "  ", " \t", " , "]),
    end=st.sampled_from(["\n", "\r\n", " \n", "\t\r\n"]),
    noise=st.sampled_from(["", "# a comment\n", "% another, 1 2\n", "\n", "   \r\n"]),
    last_end=st.booleans(),
    name=st.sampled_from(["a.txt", "a.txt.gz", "a.csv", "a"]),
    parts=st.integers(1, 7),
)
@settings(deadline=None, max_examples=150)
def test_formats_of_edge_lists(
    *, folder: Path, edges: list, separator: str, end: str, noise: str, last_end: bool, name: str, parts: int
) -> None:
    content = noise + noise.join(f"{s}{separator}{t}{end}" for s, t in edges)
    file = write(folder, name, content if last_end else content.rstrip())
    assert pairs(read_edges(file)) == edges
    shares = [read_edges(file, part=part, parts=parts) for part in range(parts)]
    assert [pair for share in shares for pair in pairs(share)] == edges


@given(edges=PAIRS, weights=st.lists(st.floats(-1e300, 1e300), min_size=40, max_size=40))
@settings(deadline=None, max_examples=50)
def test_a_third_column_is_the_weight(folder: Path, edges: list, weights: list) -> None:
    file = write(folder, "w.txt", "".join(f"{s} {t} {w!r}\n" for (s, t), w in zip(edges, weights, strict=False)))
    read = read_edges(file)
    assert read.weight is not None
    assert read.weight.tolist() == weights[: len(edges)]
    assert pairs(read) == edges
    assert read_edges(file, weights=False).weight is None


@given(data=st.binary(max_size=200) | st.text("0123456789 \t,\r\n#x.-+", max_size=200).map(str.encode))
@settings(deadline=None, max_examples=300)
@example(b"0\t0\r0 0")
def test_fast_and_slow_parser_agree(data: bytes) -> None:
    layout = Layout(0, b" ", 2)
    try:
        slow = text._parse_slow(data, layout, "f", 0)
    except BadInput:
        slow = None
    for candidate in (data, text._regular(data, layout)):
        fast = text._parse_fast(candidate, layout, threads=False) if b"0x" not in data else None
        if fast is not None:
            assert slow is not None, "the fast parser accepted an invalid edge"
            assert np.array_equal(fast[0], slow[0])
            assert np.array_equal(fast[1], slow[1])


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("a b", "not a vertex id"),
        ("1", "1 columns where 2"),
        ("1 2 3", "3 columns where 2"),
        ("1 2 3 4", "4 columns"),
        ("1,,2", "columns"),
        ("1 -2", "negative"),
        ("9223372036854775808 1", "above 2^63 - 1"),
        ("1 99999999999999999999999999999999999999999999", "above 2^63 - 1"),
        ("1.0 2", "not a vertex id"),
        ("0x1F 2", "not a vertex id"),
        ("NULL 2", "not a vertex id"),
        ("1 2\0", "not a vertex id"),
    ],
)
def test_an_invalid_line_is_reported_on_any_rank(folder: Path, suffix: str, bad: str, why: str) -> None:
    lines = [f"{k} {k + 1}\n" for k in range(300)]
    lines[0] = "# head\n"
    for at in (7, 150, 299):
        file = write(folder, "bad.txt" + suffix, "".join([*lines[:at], bad + "\n", *lines[at:]]))
        for parts in (1, 3, 8):
            found = []
            for part in range(parts):
                try:
                    read_edges(file, part=part, parts=parts)
                except BadInput as error:
                    found.append(str(error))
            assert len(found) == 1
            assert f"{file}, line {at + 1}: not an edge" in found[0]
            assert why in found[0]
            assert "\n" not in found[0]


@pytest.mark.parametrize("weight", ["x", "nan", "inf", "1e999", "", "1_0e"])
def test_a_weight_that_is_no_number_is_named(folder: Path, weight: str) -> None:
    file = write(folder, "weights.csv", f"1,2,0.5\n3,4,{weight}\n")
    with pytest.raises(BadInput, match=r"line 2: not an edge"):
        read_edges(file)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("empty.txt", b"", "no edge"),
        ("comments.txt", b"# only\n\n%this\n", "no edge"),
        ("empty.txt.gz", b"", "no edge"),
        ("empty.csv", b"", "no edge"),
        ("names.csv", b"source\n1\n", "an edge needs two"),
        ("empty.mtx", b"", "MatrixMarket"),
        ("empty.npz", b"", "save_npz"),
        ("no.npz", b"PK\x03\x04", "save_npz"),
    ],
)
def test_files_without_a_graph(folder: Path, name: str, content: bytes, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        read_edges(write(folder, name, content))


@pytest.mark.parametrize("name", ["missing.txt", "missing.txt.gz", "missing.mtx", "missing.npz", "missing.csv"])
def test_missing_files(folder: Path, name: str) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read_edges(folder / name)


def test_directories_and_broken_gzip(folder: Path) -> None:
    with pytest.raises(BadInput, match="directory"):
        read_edges(folder)
    packed = gzip.compress(b"1 2\n" * 10_000)
    (folder / "cut.txt.gz").write_bytes(packed[:-20])
    (folder / "plain.txt.gz").write_bytes(b"1 2\n")
    for name in ("cut.txt.gz", "plain.txt.gz"):
        with pytest.raises(BadInput, match="gzip"):
            read_edges(folder / name)


def test_gzip_of_several_members_is_cut_right(folder: Path) -> None:
    lines = [f"{k} {2 * k}\n".encode() for k in range(5000)]
    file = folder / "members.txt.gz"
    file.write_bytes(b"".join(gzip.compress(b"".join(lines[k : k + 1000])) for k in range(0, 5000, 1000)))
    shares = [read_edges(file, part=part, parts=3) for part in range(3)]
    assert np.concatenate([share.source for share in shares]).tolist() == list(range(5000))


def test_csv_with_names(folder: Path) -> None:
    content = '"time","Weight","to","from"\n9,0.5,2,1\n"8","1.5","4","3"\n'
    read = read_edges(write(folder, "named.csv", content))
    assert pairs(read) == [(1, 2), (3, 4)]
    assert read.weight is not None
    assert read.weight.tolist() == [0.5, 1.5]
    assert pairs(read_edges(write(folder, "named.tsv", "a\tb\n1\t2\n"))) == [(1, 2)]
    with pytest.raises(BadInput, match="line 3: not an edge"):
        read_edges(write(folder, "named.csv", "a,b\n1,2\nx,2\n"))


def test_a_csv_line_that_is_split_by_a_carriage_return_is_reported(folder: Path) -> None:
    file = write(folder, "two.csv", "source,target\n1,2\n4\r,5\n")
    with pytest.raises(BadInput, match=r"line 3: not an edge"):
        read_edges(file)


def test_column_names_are_for_csv_only(folder: Path) -> None:
    with pytest.raises(BadInput, match="line 1: not an edge"):
        read_edges(write(folder, "names.txt", "source target\n1 2\n"))


def test_byte_order_mark(folder: Path) -> None:
    assert pairs(read_edges(write(folder, "bom.txt", b"\xef\xbb\xbf1 2\n3 4\n"))) == [(1, 2), (3, 4)]


def dense(edges: Edges) -> np.ndarray:
    assert edges.shape is not None
    values = np.ones(len(edges)) if edges.weight is None else edges.weight
    return scipy.sparse.coo_array((values, (edges.source, edges.target)), shape=edges.shape).toarray()


@given(
    field=st.sampled_from(["real", "integer", "pattern"]),
    symmetry=st.sampled_from(["general", "symmetric", "skew-symmetric"]),
    seed=st.integers(0, 1000),
    parts=st.integers(1, 4),
    name=st.sampled_from(["m.mtx", "m.mtx.gz"]),
)
@settings(deadline=None, max_examples=60)
def test_matrix_market(*, folder: Path, field: str, symmetry: str, seed: int, parts: int, name: str) -> None:
    random = np.random.default_rng(seed)
    if (field, symmetry) == ("pattern", "skew-symmetric"):
        return
    matrix = random.integers(-3, 4, (9, 9)) * (random.random((9, 9)) < 0.3)
    matrix = matrix.astype(float) if field == "real" else (matrix != 0).astype(int) if field == "pattern" else matrix
    if symmetry != "general":
        matrix = np.tril(matrix, -1)
        matrix = matrix + (matrix.T if symmetry == "symmetric" else -matrix.T)
    buffer = io.BytesIO()
    scipy.io.mmwrite(buffer, scipy.sparse.coo_array(matrix), "by scipy", field, symmetry=symmetry)
    file = write(folder, name, buffer.getvalue())
    shares = [read_edges(file, part=part, parts=parts) for part in range(parts)]
    assert np.array_equal(sum(dense(share) for share in shares), matrix)
    assert {share.base for share in shares} == {1}


@pytest.mark.parametrize("name", ["karate", "west0067", "jagmesh7", "bcsstk13"])
def test_real_matrices(name: str) -> None:
    file = shared(f"mtx/{name}.mtx")
    expected = scipy.io.mmread(file).toarray()
    read = dense(read_edges(file))
    assert np.array_equal(read, expected)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("%%MatrixMarket matrix array real general\n1 1\n1\n", "line 1: .*'array'"),
        ("%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1 1\n", "line 1: .*'complex'"),
        ("%%MatrixMarket matrix coordinate real hermitian\n1 1 0\n", "line 1: .*'hermitian'"),
        ("1 2\n3 4\n", "line 1: not a MatrixMarket file"),
        (
            "%%MatrixMarket matrix coordinate pattern general\n% x\n3 3\n",
            "line 3: not 'rows columns entries'",
        ),
        ("%%MatrixMarket matrix coordinate pattern general\n", "ends before"),
        ("%%MatrixMarket matrix coordinate pattern symmetric\n3 4 0\n", "line 2: a symmetric matrix"),
        ("%%MatrixMarket matrix coordinate pattern general\n3 3 2\n1 1\n", "states 2 entries, but 1"),
        ("%%MatrixMarket matrix coordinate pattern general\n3 3 1\n0 1\n", "line 3: .*below 1"),
        ("%%MatrixMarket matrix coordinate pattern general\n3 2 1\n1 3\n", "line 3: .*above 2"),
        ("%%MatrixMarket matrix coordinate real general\n3 3 1\n1 2\n", "line 3: .*2 columns where 3"),
        ("%%MatrixMarket matrix coordinate integer general\n3 3 1\n1 2 3.5\n", "holds the value 3.5, and says"),
    ],
)
def test_bad_matrix_market(folder: Path, content: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        read_edges(write(folder, "bad.mtx", content))


@pytest.mark.parametrize("parts", [1, 3])
def test_npz(folder: Path, parts: int) -> None:
    matrix = scipy.sparse.random(20, 30, 0.2, format="csr", random_state=1)
    scipy.sparse.save_npz(folder / "m.npz", matrix)
    shares = [read_edges(folder / "m.npz", part=part, parts=parts) for part in range(parts)]
    assert np.array_equal(sum(dense(share) for share in shares), matrix.toarray())


def test_npz_of_complex_numbers(folder: Path) -> None:
    scipy.sparse.save_npz(folder / "c.npz", scipy.sparse.coo_array(np.array([[1j]])))
    with pytest.raises(BadInput, match="real number"):
        read_edges(folder / "c.npz")


@pytest.mark.parametrize(
    ("name", "edges", "weighted"),
    [
        ("wiki-Vote.txt", 103_689, False),
        ("cit-HepTh.txt.gz", 352_807, False),
        ("deezer_RO_edges.csv.gz", 125_826, False),
        ("soc-Slashdot0902.txt.gz", 948_464, False),
    ],
)
def test_real_graphs(name: str, edges: int, weighted: bool) -> None:
    file = shared(f"graphs/{name}")
    read = read_edges(file)
    assert (len(read), read.weight is not None) == (edges, weighted)
    shares = [read_edges(file, part=part, parts=4) for part in range(4)]
    assert np.array_equal(np.concatenate([share.source for share in shares]), read.source)
    assert max(map(len, shares)) < 0.4 * edges


def test_part_out_of_range(folder: Path) -> None:
    with pytest.raises(BadInput, match="part must be"):
        read_edges(folder / "a.txt", part=2, parts=2)


def test_merged_keeps_the_last_weight_or_the_sum() -> None:
    edges = Edges(np.array([3, 1, 3, 3]), np.array([4, 1, 4, 5]), np.array([1.0, 2.0, 4.0, 8.0]))
    merged = edges.merged()
    assert merged.weight is not None
    assert sorted(zip(*pairs_and_weights(merged), strict=True)) == [
        ((1, 1), 2.0),
        ((3, 4), 4.0),
        ((3, 5), 8.0),
    ]
    summed = Edges(edges.source, edges.target, edges.weight, combine="sum").merged()
    assert sorted(zip(*pairs_and_weights(summed), strict=True)) == [
        ((1, 1), 2.0),
        ((3, 4), 5.0),
        ((3, 5), 8.0),
    ]


def pairs_and_weights(edges: Edges) -> tuple[list, list]:
    assert edges.weight is not None
    return pairs(edges), edges.weight.tolist()


def test_merged_with_ids_whose_product_overflows() -> None:
    big = 2**63 - 1
    merged = Edges(np.array([big, 0, big]), np.array([big, big, big])).merged()
    assert sorted(pairs(merged)) == [(0, big), (big, big)]


@pytest.mark.parametrize("method", ["random", "greedy", "row"])
def test_load_gives_each_edge_to_one_rank(folder: Path, method: str) -> None:
    edges = [(k % 7, (k * k) % 11) for k in range(200)]
    file = write(folder, "loaded.txt", "".join(f"{s} {t}\n" for s, t in edges))
    for size in (1, 3, 4):
        shares = on_ranks(size, lambda comm: load(comm, file, partition_by=method))
        assert sorted(pair for share in shares for pair in pairs(share)) == sorted(set(edges))


def test_load_fails_on_all_ranks_with_the_same_error(folder: Path) -> None:
    file = write(folder, "wrong.txt", "1 2\n" * 50 + "1 two\n")
    errors = errors_on_ranks(3, lambda comm: load(comm, file))
    assert {type(error) for error in errors} == {BadInput}
    assert len({str(error) for error in errors}) == 1
    assert "line 51" in str(errors[0])
    short = write(folder, "short.mtx", "%%MatrixMarket matrix coordinate pattern general\n3 3 2\n1 1\n")
    assert all("states 2 entries" in str(error) for error in errors_on_ranks(3, lambda comm: load(comm, short)))


def test_load_undirected(folder: Path) -> None:
    file = write(folder, "both.txt", "1 2\n3 3\n")
    shares = on_ranks(2, lambda comm: load(comm, file, undirected=True))
    assert sorted(pair for share in shares for pair in pairs(share)) == [(1, 2), (2, 1), (3, 3)]


def test_an_error_of_any_class_reaches_all_ranks() -> None:
    def work(comm: sky.Comm) -> None:
        def fail() -> None:
            if comm.rank == 1:
                raise MemoryError("too much")

        together(comm, fail)

    errors = errors_on_ranks(3, work)
    assert {str(error) for error in errors} == {"rank 1: MemoryError: too much"}
    assert not any(isinstance(error, BadInput) for error in errors)


@pytest.mark.parametrize("package", ["fsspec", "pyarrow"])
@pytest.mark.parametrize("name", ["edges.txt", "edges.txt.gz", "edges.mtx", "edges.npz"])
def test_an_address_is_read_as_a_local_file(
    package: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All shares are the same, whether fsspec reads the address or, without fsspec, pyarrow."""
    rng = np.random.default_rng(5)
    source, target = rng.integers(0, 900, 4000), rng.integers(0, 900, 4000)
    file = tmp_path / name
    if name.endswith(".npz"):
        scipy.sparse.save_npz(file, scipy.sparse.coo_array((np.ones(4000), (source, target)), shape=(900, 900)))
    else:
        base = int(name.endswith(".mtx"))
        head = "%%MatrixMarket matrix coordinate pattern general\n900 900 4000\n" if base else "# edges\n"
        lines = head + "".join(f"{a + base} {b + base}\n" for a, b in zip(source, target, strict=True))
        file.write_bytes(gzip.compress(lines.encode()) if name.endswith(".gz") else lines.encode())
    address = file.as_uri()
    if package == "pyarrow":
        find = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda module: None if module == "fsspec" else find(module))
    else:
        fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
        address = f"memory://graphs/{name}"
        fsspec.filesystem("memory").pipe(f"/graphs/{name}", file.read_bytes())
    for part in range(3):
        near, far = (read_edges(place, part=part, parts=3) for place in (file, address))
        assert (near.source == far.source).all() and (near.target == far.target).all()
    with pytest.raises(BadInput, match=r"nothing\.txt: "):
        read_edges(address.rsplit("/", 1)[0] + "/nothing.txt")


def test_an_address_with_an_unknown_scheme() -> None:
    with pytest.raises(BadInput, match=r"nowhere://at/all\.txt: .*nowhere"):
        read_edges("nowhere://at/all.txt")


PACKERS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda data: lzma.compress(data, format=lzma.FORMAT_ALONE),
    "zst": lambda data: pyarrow.compress(data, codec="zstd", asbytes=True),
}
LINES = "".join(f"{k} {k + 1}\n" for k in range(3000)).encode()


@pytest.mark.parametrize("ending", PACKERS)
def test_compressed_files_in_shares(folder: Path, ending: str) -> None:
    packed = PACKERS[ending](LINES[:9000] if ending == "lzma" else LINES)
    if ending != "lzma":
        packed = PACKERS[ending](LINES[:5000]) + PACKERS[ending](LINES[5000:])  # two members, as of pigz or pbzip2
    expected = pairs(read_edges(write(folder, "plain.txt", LINES[:9000] if ending == "lzma" else LINES)))
    for name in (f"a.txt.{ending}", f"A.TXT.{ending.upper()}", "no-ending"):
        if name == "no-ending" and ending == "lzma":
            continue  # the format is known only by the name
        file = folder / name
        file.write_bytes(packed)
        for parts in (1, 4):
            shares = [read_edges(file, part=part, parts=parts) for part in range(parts)]
            assert [pair for share in shares for pair in pairs(share)] == expected
    broken = folder / f"broken.txt.{ending}"
    broken.write_bytes(packed[:-9])
    with pytest.raises(BadInput, match=rf"broken\.txt\.{ending}: "):
        read_edges(broken)


def test_a_package_that_is_missing_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.version_info >= (3, 14):
        pytest.skip("Python has Zstandard itself")
    (folder / "z.txt.zst").write_bytes(PACKERS["zst"](LINES))
    monkeypatch.setattr("skyphos.files.compression._has", lambda package: False)
    with pytest.raises(BadInput, match=r"z\.txt\.zst: reading Zstandard needs a package: pip install zstandard"):
        read_edges(folder / "z.txt.zst")


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("name", ["l.mtx", "l.txt", "l.csv"])
def test_byte_order_marks_indented_comments_and_line_ends(folder: Path, name: str, end: bytes, mark: bytes) -> None:
    matrix = [b"%%MatrixMarket matrix coordinate real general", b"  % sizes", b"900 900 600"] if name == "l.mtx" else []
    lines = [*matrix, b"  % a comment", *(b"%d %d 0.5" % (k, k + 1) for k in range(1, 601))]
    file = folder / name
    file.write_bytes(mark + end.join(lines) + end)
    base = int(name == "l.mtx")
    for parts in (1, 5):
        shares = [read_edges(file, part=part, parts=parts) for part in range(parts)]
        found = [pair for share in shares for pair in pairs(share)]
        assert found == [(k - base, k + 1 - base) for k in range(1, 601)]
        assert all(share.weight is not None and (share.weight == 0.5).all() for share in shares)
    bad = end.join([*lines, b"7 x 1"])
    file.write_bytes(mark + bad)
    with pytest.raises(BadInput, match=f"line {len(lines) + 1}: not an edge: '7 x 1'"):
        for part in range(3):
            read_edges(file, part=part, parts=3)


def test_a_matrix_market_banner_determines_the_format(folder: Path) -> None:
    """In a list of edges the banner would be a comment, and the line of sizes an edge."""
    text = "%%MatrixMarket matrix coordinate pattern general\n3 3 1\n1 2\n"
    for name in ("m.txt", "m", "m.csv", "m.txt.gz"):
        assert pairs(read_edges(write(folder, name, text))) == [(0, 1)]


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.zip", b"PK\x03\x04....", "a zip archive"),
        ("a.npy", b"\x93NUMPY\x01\x00", r"a NumPy array \(\.npy\)"),
        ("a.parquet", b"PAR1...", "a Parquet file"),
        ("a.h5", b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
        ("a.png", b"\x89PNG\r\n\x1a\n", "a PNG picture"),
        ("a.csv", "1,2\n".encode("utf-16"), "UTF-16"),
        ("a.tar", bytes(257) + b"ustar\x00" + bytes(300), "a tar archive"),
        ("a.lz4", b"\x04\x22\x4d\x18..", "LZ4"),
        ("a.pickle", b"\x80\x04\x95\x00", "a pickle"),
    ],
)
def test_other_kinds_of_files_are_named(folder: Path, name: str, content: bytes, what: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(BadInput, match=rf"{name}: .*{what}"):
        read_edges(folder / name)


def test_an_array_of_one_dimension_is_no_graph(folder: Path) -> None:
    scipy.sparse.save_npz(folder / "one.npz", scipy.sparse.coo_array(np.array([1.0, 0, 2])))
    with pytest.raises(BadInput, match=r"one\.npz: an array of 1 dimension"):
        read_edges(folder / "one.npz")


@pytest.mark.parametrize("bad", ["1_000 2", "1 1_000", "1 2 1_0", "１ 2", "1 2 1_0.5"])
def test_digits_that_only_python_accepts_are_refused(folder: Path, bad: str) -> None:
    weighted = bad.count(" ") == 2
    good = "1 2 3\n" if weighted else "1 2\n"
    for content, line in ((f"{bad}\n", 1), (f"{good}{bad}\n", 2)):
        with pytest.raises(BadInput, match=f"line {line}: not an edge"):
            read_edges(write(folder, "under.txt", content))


def test_a_fifo_is_read_once_by_rank_0(tmp_path: Path) -> None:
    for content, expected in (
        (b"1 2\n2 7\n", [(1, 2), (2, 7)]),
        (gzip.compress(b"source,target\n1,2\n"), [(1, 2)]),
        (b"%%MatrixMarket matrix coordinate pattern general\n3 3 1\n1 2\n", [(0, 1)]),
    ):
        fifo = tmp_path / "pipe"
        os.mkfifo(fifo)
        writer = threading.Thread(target=fifo.write_bytes, args=(content,))
        writer.start()
        shares = on_ranks(3, lambda comm, fifo=fifo: load(comm, fifo))
        writer.join()
        assert sorted(pair for share in shares for pair in pairs(share)) == expected
        fifo.unlink()


def test_a_fifo_names_its_bad_line(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(b"1 2\n2 x\n",))
    writer.start()
    errors = errors_on_ranks(2, lambda comm: load(comm, fifo))
    writer.join()
    assert {str(error) for error in errors} == {f"{fifo}, line 2: not an edge: '2 x': 'x' is not a vertex id"}
    with pytest.raises(BadInput, match="once, not in shares"):
        read_edges(fifo, part=0, parts=2)


def test_stdin(tmp_path: Path) -> None:
    code = "from skyphos.graph import read_edges; print(read_edges('-').target.tolist())"
    done = subprocess.run([sys.executable, "-c", code], input="1 2\n2 3\n", capture_output=True, text=True, check=True)
    assert done.stdout == "[2, 3]\n"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"partition_by": "columns"}, "partition_by must be one of random"),
        ({"partition_by": 3}, "partition_by must be one of random"),
        ({"weights": "no"}, "weights must be True or False"),
        ({"undirected": "yes"}, "undirected must be True or False"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"columns": 3}, "columns must be text or a mapping"),
    ],
)
def test_settings_that_are_not_understood(folder: Path, options: dict, why: str) -> None:
    file = write(folder, "ok.txt", "1 2\n")
    for error in errors_on_ranks(2, lambda comm: load(comm, file, **options)):
        assert isinstance(error, BadInput) and why in str(error)
    with pytest.raises(BadInput, match="path must be the name of a file"):
        read_edges(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "target", "weight", "why"),
    [
        ([0], ["a"], None, "target must be ids"),
        ([0], [1, 2], None, "one length"),
        ([0.5], [1], None, "whole numbers"),
        ([[0]], [[1]], None, "one dimension"),
        (np.ma.array([0, 1], mask=[1, 0]), [0, 1], None, "masked"),
        ([0], [1], ["x"], "weight must be numbers"),
        ([0], [1], np.ma.array([1.0], mask=[1]), "masked"),
        (np.array([2**63], np.uint64), [1], None, "above 2\\^63 - 1"),
    ],
)
def test_invalid_edges(source: object, target: object, weight: object, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        Edges(source, target, weight)  # type: ignore[arg-type]


def test_edges_of_lists_and_whole_floats() -> None:
    edges = Edges([0, 1], np.array([1.0, 2.0]), [1, 2])  # type: ignore[arg-type]
    assert (edges.source.dtype, edges.target.dtype, edges.weight.dtype) == (np.int64, np.int64, np.float64)  # type: ignore[union-attr]
    assert pairs(edges) == [(0, 1), (1, 2)]
