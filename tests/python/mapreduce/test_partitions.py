"""Data cut into partitions, read again, and dealt out to workers."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import lzma
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import netcdf_file

import skyphos as sky
from skyphos.cli import split as split_command
from skyphos.errors import BadInput
from skyphos.mapreduce import MapReduce, Partition, Partitions, assign, split
from skyphos.mapreduce.fetch import plan
from skyphos.mapreduce.loaders import LOADERS, loader_of

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
h5py = pytest.importorskip("h5py")

ROWS: npt.NDArray[np.float64] = np.arange(103 * 3.0).reshape(103, 3)


def text(path: Path) -> str:
    path.write_text("".join(f"line {k} {'x' * (k * 7 % 90)}\n" for k in range(103)), encoding="utf-8")
    return str(path)


def npy(path: Path) -> str:
    np.save(path, ROWS)
    return str(path)


def table(path: Path) -> str:
    parquet.write_table(pa.table({"a": ROWS[:, 0], "b": ROWS[:, 1], "c": ROWS[:, 2]}), path)
    return str(path)


def hdf5(path: Path) -> str:
    with h5py.File(path, "w") as file:
        file["group/points"] = ROWS
        file["other"] = np.ones(3)
    return f"{path}:group/points"


def hdf5_alone(path: Path) -> str:
    with h5py.File(path, "w") as file:
        file["points"] = ROWS
    return str(path)


def netcdf(path: Path) -> str:
    with netcdf_file(path, "w") as file:
        file.createDimension("row", len(ROWS))
        file.createDimension("axis", 3)
        file.createVariable("points", "f8", ("row", "axis"))[:] = ROWS
    return f"{path}:points"


def netcdf4(path: Path) -> str:
    """NetCDF-4 files are HDF5 files."""
    return hdf5(path)


FORMATS: dict[str, tuple[str, Callable[[Path], str]]] = {
    "text": ("book.txt", text),
    "npy": ("x.npy", npy),
    "parquet": ("x.parquet", table),
    "hdf5": ("x.h5", hdf5),
    "hdf5 alone": ("x.hdf5", hdf5_alone),
    "netcdf": ("x.nc", netcdf),
    "netcdf 4": ("x.nc4", netcdf4),
}


def content(loaded: Any) -> Any:
    return np.stack([loaded[name] for name in "abc"], 1) if hasattr(loaded, "column_names") else loaded


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("count", [1, 4, 103])
def test_partitions_are_the_data(tmp_path: Path, name: str, count: int) -> None:
    file, make = FORMATS[name]
    data = make(tmp_path / file)
    made = split(data, tmp_path / "parts", count)
    parts = Partitions.load(tmp_path / "parts" / "partitions.json")
    assert parts == made and len(parts) == count and parts.rows == 103
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == sorted(
        ["partitions.json", *(Path(part.path).name for part in parts)]
    )
    loader = LOADERS[parts.format]
    loaded = [content(loader.load(part.path)) for part in parts]
    for part, held in zip(parts, loaded, strict=True):
        assert loader.rows(part.path) == part.rows and Path(part.path).stat().st_size == part.bytes
        assert name == "text" or len(held) == part.rows
    if name == "text":
        assert b"".join(loaded) == Path(data).read_bytes()
        longest = max(map(len, Path(data).read_bytes().splitlines()))
        assert max(part.bytes for part in parts) <= parts.bytes / count + longest + 1
    else:
        assert (np.concatenate(loaded) == ROWS).all()
        assert max(part.rows for part in parts) - min(part.rows for part in parts) <= 1


def test_a_moved_folder_of_partitions(tmp_path: Path) -> None:
    split(npy(tmp_path / "x.npy"), tmp_path / "parts", 3, hosts=["a", "b"], replicas=2)
    (tmp_path / "parts").rename(tmp_path / "elsewhere")
    parts = Partitions.load(tmp_path / "elsewhere" / "partitions.json")
    assert [part.hosts for part in parts] == [("a", "b"), ("b", "a"), ("a", "b")]
    assert len(np.load(parts.parts[2].path)) == 35


def test_partitions_of_existing_files(tmp_path: Path) -> None:
    paths = [npy(tmp_path / f"{k}.npy") for k in range(2)]
    parts = Partitions.of_files(paths, "npy")
    assert parts.rows == 206 and [part.path for part in parts] == paths
    with pytest.raises(BadInput, match=r"gone\.npy: No such file"):
        Partitions.of_files([*paths, tmp_path / "gone.npy"], "npy")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("no json", "not JSON"),
        ("[]", "not a partition file"),
        ({"kind": "else"}, "not a partition file"),
        ({"version": 9}, "of version 9"),
        ({"parts": 5}, "damaged"),
        ({"parts": [{"path": "a"}]}, "damaged"),
        ({"parts": [{"path": "a", "rows": -1, "bytes": 0, "hosts": []}]}, "-1 rows"),
        ({"parts": [{"path": 3, "rows": 1, "bytes": 0, "hosts": []}]}, "3 is not text"),
        ({"format": None}, "damaged"),
    ],
)
def test_damaged_partition_files(tmp_path: Path, words: Any, said: str) -> None:
    path = tmp_path / "partitions.json"
    whole = {"kind": "skyphos partitions", "version": 1, "format": "npy", "rows": 0, "parts": []}
    path.write_text(words if isinstance(words, str) else json.dumps(whole | words), encoding="utf-8")
    with pytest.raises(BadInput, match=said):
        Partitions.load(path)


def test_errors_of_split(tmp_path: Path) -> None:
    good = npy(tmp_path / "x.npy")
    for arguments, options, said in [
        ((tmp_path / "gone.npy", tmp_path / "p", 2), {}, "No such file"),
        ((good, tmp_path / "p", 104), {}, "103 rows cannot be cut into 104"),
        ((good, tmp_path / "p", 0), {}, "at least one"),
        ((good, tmp_path / "p", 2), {"format": "excel"}, "unknown format 'excel'"),
        ((good, tmp_path / "p", 2), {"hosts": ["a"], "replicas": 2}, "replicas=2 on 1 hosts"),
        ((text(tmp_path / "t.npy"), tmp_path / "p", 2), {}, r"t\.npy"),
        ((text(tmp_path / "t.parquet"), tmp_path / "p", 2), {}, r"t\.parquet"),
        ((text(tmp_path / "t.h5"), tmp_path / "p", 2), {}, r"t\.h5"),
        ((text(tmp_path / "t.nc"), tmp_path / "p", 2), {}, r"t\.nc"),
        ((str(hdf5(tmp_path / "two.h5")).rpartition(":")[0], tmp_path / "p", 2), {}, "name one|not 2|holds"),
        ((good, Path(good) / "below", 2), {}, "below"),
    ]:
        with pytest.raises(BadInput, match=said):
            split(*arguments, **options)
        assert not list((tmp_path / "p").glob("*")) if (tmp_path / "p").exists() else True
    with pytest.raises(BadInput, match="loader of your own"):
        loader_of("excel")


def test_the_command(tmp_path: Path) -> None:
    data = text(tmp_path / "book.txt")
    done = CliRunner().invoke(split_command.command, [data, str(tmp_path / "parts"), "-p", "4", "--hosts", "a, b"])
    assert done.exit_code == 0, done.output
    assert "4 partitions of 103 rows" in done.output
    assert [part.hosts for part in Partitions.load(tmp_path / "parts" / "partitions.json")] == [("a",), ("b",)] * 2


def best(parts: list[list[str]], workers: list[str]) -> int:
    """The largest possible number of local partitions, by trying every assignment."""
    share, most_local = len(parts) // len(workers), 0
    for chosen in itertools.product(range(len(workers)), repeat=len(parts)):
        loads = [chosen.count(worker) for worker in range(len(workers))]
        if max(loads) - min(loads) <= 1 and min(loads) >= share:
            most_local = max(most_local, sum(workers[worker] in parts[part] for part, worker in enumerate(chosen)))
    return most_local


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.lists(st.sampled_from("abcd"), max_size=3), max_size=6),
    workers=st.lists(st.sampled_from("abc"), min_size=1, max_size=3),
)
def test_shares_are_even_and_as_local_as_can_be(parts: list[list[str]], workers: list[str]) -> None:
    chosen = assign(parts, workers)
    loads = [chosen.count(worker) for worker in range(len(workers))]
    assert len(chosen) == len(parts) and max(loads) - min(loads) <= 1
    assert sum(workers[worker] in parts[part] for part, worker in enumerate(chosen)) == best(parts, workers)


def test_many_partitions_are_dealt_out_soon() -> None:
    hosts = [f"n{k}" for k in range(125)]
    parts = [[hosts[k % 125], hosts[(k * 7 + 1) % 125]] for k in range(10_000)]
    chosen = assign(parts, hosts)
    assert np.bincount(chosen).tolist() == [80] * 125
    assert all(hosts[worker] in on for worker, on in zip(chosen, parts, strict=True))


@settings(max_examples=100, deadline=None)
@given(data=st.data(), hosts=st.lists(st.sampled_from("abc"), min_size=1, max_size=6))
def test_partitions_of_other_hosts_are_sent_once(data: st.DataObject, hosts: list[str]) -> None:
    kept = data.draw(st.lists(st.sets(st.sampled_from("abcd"), max_size=2), max_size=12))
    parts = [Partition(k, f"{k}", 1, k % 3, tuple(has)) for k, has in enumerate(kept)]
    chosen = data.draw(st.lists(st.integers(0, len(hosts) - 1), min_size=len(parts), max_size=len(parts)))
    rounds = plan(parts, chosen, hosts)
    for sends in rounds:
        assert len({one.source for one in sends}) == len({one.target for one in sends}) == len(sends) > 0
    sent = {one.part.number: one for sends in rounds for one in sends}
    assert len(sent) == sum(map(len, rounds))
    for part, target in zip(parts, chosen, strict=True):
        can_be_sent = bool(set(part.hosts) & set(hosts))
        assert (part.number in sent) == (can_be_sent and hosts[target] not in part.hosts)
        if part.number in sent:
            one = sent[part.number]
            assert hosts[one.source] in part.hosts and one.target == target


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: bytes(pa.compress(data, codec="zstd", asbytes=True)),
}


@pytest.mark.parametrize("ending", PACKERS)
def test_compressed_text_is_cut_as_text(tmp_path: Path, ending: str) -> None:
    plain, packed = Path(text(tmp_path / "a.txt")), tmp_path / f"a.txt{ending.upper()}"
    packed.write_bytes(PACKERS[ending](plain.read_bytes()))
    expected = split(plain, tmp_path / "plain", 5)
    found = split(packed, tmp_path / "packed", 5)
    assert [part.rows for part in found] == [part.rows for part in expected]
    assert [Path(part.path).read_bytes() for part in found] == [Path(part.path).read_bytes() for part in expected]
    # Partitions.of_files leaves a compressed file as it is, and the loader reads it as text.
    (part,) = Partitions.of_files([packed], "text").parts
    assert (part.rows, part.bytes) == (103, packed.stat().st_size)
    assert loader_of("text").load(part.path) == plain.read_bytes()
    packed.write_bytes(packed.read_bytes()[:-7])
    with pytest.raises(BadInput, match=rf"a\.txt{ending.upper()}: "):
        split(packed, tmp_path / "broken", 2)
    assert not (tmp_path / "broken" / "partitions.json").exists()


def binary_files(path: Path) -> dict[str, bytes]:
    np.savez(path / "a.npz", x=ROWS)
    np.save(path / "b.npy", ROWS)
    return {
        "a.npz": (path / "a.npz").read_bytes(),
        "npy without its ending": (path / "b.npy").read_bytes(),
        "a.zip": b"PK\x03\x04" + bytes(100),
        "a.png": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "a.txt": "line 1\nline 2\n".encode("utf-16"),
        "a.pickle": pickle.dumps({"a": 1}, protocol=5),
        "a.tar": bytes(257) + b"ustar\x00" + bytes(200),
        "a.npy.gz": gzip.compress((path / "b.npy").read_bytes()),
        "a.bin": bytes(range(256)) * 40,
        "a.exe": b"\x7fELF" + bytes(64),
    }


def test_binary_files_are_refused_with_the_name_of_their_format(tmp_path: Path) -> None:
    for name, content in binary_files(tmp_path).items():
        (tmp_path / name).write_bytes(content)
        why = "in UTF-16: save it as UTF-8" if name == "a.txt" else "which has no lines; formats are text, npy"
        with pytest.raises(BadInput, match=rf"{name}: .*{why}"):
            split(tmp_path / name, tmp_path / "parts", 2)
        assert not (tmp_path / "parts").exists()
        if name != "a.bin":  # known by its first bytes, whatever it is called
            for made in (
                lambda name=name: split(tmp_path / name, tmp_path / "parts", 2, format="text"),
                lambda name=name: Partitions.of_files([tmp_path / name], "text"),
            ):
                with pytest.raises(BadInput, match=why.partition(";")[0]):
                    made()
    assert sum(part.bytes for part in split(tmp_path / "a.bin", tmp_path / "parts", 2, format="text")) == 256 * 40
    with pytest.raises(BadInput, match=r"no NumPy array"):
        split(tmp_path / "a.bin", tmp_path / "more", 2, format="npy")


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6), more=st.integers(0, 30))
@settings(deadline=None, max_examples=60)
def test_several_files_are_cut_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], more: int
) -> None:
    folder = tmp_path_factory.mktemp("several")
    count = min(len(sizes) + more, sum(sizes))
    first, files = 0, []
    for k, size in enumerate(sizes):
        np.save(folder / f"{k}.npy", np.arange(first, first + size))
        files.append(folder / f"{k}.npy")
        first += size
    parts = split(files, folder / "parts", count)
    assert len(parts) == count and parts.rows == sum(sizes) and min(part.rows for part in parts) >= 1
    assert np.concatenate([np.load(part.path) for part in parts]).tolist() == list(range(first))
    if len(set(sizes)) == 1:  # shares are then as even as rows let them be
        assert max(part.rows for part in parts) <= -(-sizes[0] // (count // len(sizes)))


def test_several_files_at_the_command_line(tmp_path: Path) -> None:
    for name, lines in (("a.txt", "1\n2\n3\n"), ("b.txt", "4\n5"), ("c.txt.gz", "6\n7\n")):
        data = lines.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    files = [str(tmp_path / name) for name in ("a.txt", "b.txt", "c.txt.gz")]
    done = CliRunner().invoke(split_command.command, [*files, str(tmp_path / "parts"), "-p", "4"])
    assert done.exit_code == 0, done.output
    parts = Partitions.load(tmp_path / "parts" / "partitions.json")
    assert b"".join(Path(part.path).read_bytes() for part in parts) == b"1\n2\n3\n4\n56\n7\n"
    assert (len(parts), parts.rows) == (4, 7)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"replicas": 2}, r"replicas=2 \(--replicas\) needs hosts, and none are named"),
        ({"replicas": 3, "hosts": ["a", "b"]}, "replicas=3 on 2 hosts"),
        ({"replicas": 1.5}, "replicas must be a whole number"),
        ({"partitions": "4"}, "partitions must be a whole number"),
        ({"partitions": 2.5}, "partitions must be a whole number"),
        ({"hosts": "n1,n2"}, "hosts must be a sequence"),
        ({"data": []}, "no file to split"),
        ({"data": ["a.txt", "x.npy"]}, "several formats"),
        ({"data": ["a.txt", "a.txt", "a.txt"], "partitions": 2}, "3 files cannot be cut into 2 partitions"),
        ({"data": ["a.txt", "empty.txt"]}, r"empty\.txt: 0 rows"),
        ({"data": "/dev/stdin"}, "a pipe, which cannot be cut"),
    ],
)
def test_settings_that_make_no_sense(
    tmp_path: Path, options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("1\n2\n3\n4\n")
    (tmp_path / "empty.txt").touch()
    np.save(tmp_path / "x.npy", ROWS)
    with pytest.raises(BadInput, match=said):
        split(**({"data": "a.txt", "folder": "parts", "partitions": 3} | options))
    assert len(split("a.txt", "parts", 2.0)) == 2  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="a sequence of files"):
        Partitions.of_files("a.txt", "text")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"threads": "two"}, "threads must be a whole number"),
        ({"threads": 1.5}, "threads must be a whole number"),
        ({"reducers": "a"}, "reducers must be a whole number"),
        ({"map": None}, "map must be a function"),
        ({"combine": 3}, "combine must be a function"),
        ({"partitions": 7}, "partitions must be a partition file or"),
        ({"schedule": 3}, "schedule"),
        ({"iterations": 2.5}, "iterations must be a whole number"),
        ({"iterations": "many"}, "iterations must be a whole number"),
        ({"iterations": -1}, "iterations must be from 0"),
        ({"until": 5}, "until must be a function"),
    ],
)
def test_settings_of_a_job(options: dict[str, Any], said: str) -> None:
    how = {name: options[name] for name in ("iterations", "until") if name in options}
    job = {"map": lambda data, state: ([1], [1.0]), "partitions": ["a"]} | {
        k: v for k, v in options.items() if k not in how
    }
    with sky.init() as comm, pytest.raises(BadInput, match=said):
        MapReduce(comm, **job).iterate(**({"iterations": 1} | how))
    with sky.init() as comm:
        done = MapReduce(comm, map=lambda data, state: ([1], [1.0]), partitions=["a"], threads=1.0, reducers=2.0)  # type: ignore[arg-type]
        assert done.iterate(iterations=2.0)[1].tolist() == [1.0]  # type: ignore[arg-type]
