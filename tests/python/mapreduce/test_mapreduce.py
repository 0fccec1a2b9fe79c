"""Map-reduce jobs: word count and k-means against plain Python, failures, resuming, and lost ranks."""

from __future__ import annotations

import collections
import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skyphos as sky
from conftest import Processes, on_all
from mapreduce_support import (
    JOB,
    POINTS,
    WORDS,
    book,
    counted,
    means,
    nearest,
    on_hosts,
    ones_of,
    plain_k_means,
    with_points,
    words_of,
)
from skyphos.errors import BadInput
from skyphos.mapreduce import Iteration, MapReduce, Partitions, split

pytest.importorskip("scipy")


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("kind", ["count", "sum", "function", "merged", "combined"])
def test_word_count(tmp_path: Path, size: int, kind: str) -> None:
    path = book(tmp_path, 7)
    options: dict[str, dict[str, Any]] = {
        "count": {"map": words_of, "reduce": "count"},
        "sum": {"map": ones_of, "reduce": "sum"},
        "function": {"map": ones_of, "reduce": lambda word, ones: sum(ones), "reducers": 8},
        "merged": {"map": ones_of, "reduce": lambda word, sums: sums[0], "merge": "sum", "threads": 3},
        "combined": {"map": ones_of, "reduce": lambda word, ones: len(ones), "combine": lambda *both: both},
    }

    def body(comm: sky.Comm) -> Any:
        job = MapReduce(comm, partitions=path, **options[kind])
        result = job.run()
        (iteration,) = job.iterations
        assert iteration.tasks in (7 // size, 7 // size + 1) and iteration.seconds["map"] > 0
        assert f"{iteration.tasks} tasks" in str(iteration)
        return result

    results = on_all(size, body)
    assert counted(results[:1] if kind == "combined" else results) == collections.Counter(WORDS)
    assert kind != "combined" or all(result == results[0] for result in results)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_k_means(tmp_path: Path, size: int) -> None:
    np.save(tmp_path / "points.npy", POINTS)
    parts = split(tmp_path / "points.npy", tmp_path / "parts", 8)

    def body(comm: sky.Comm) -> Any:
        job = MapReduce(comm, map=nearest, reduce="sum", combine=means, partitions=parts)
        centres = job.iterate(POINTS[:4] if comm.rank == 0 else None, iterations=5)
        assert [iteration.number for iteration in job.iterations] == [1, 2, 3, 4, 5]
        # Files are read once.
        assert job.iterations[0].read_bytes > 0 and all(iteration.read_bytes == 0 for iteration in job.iterations[1:])
        converged = job.iterate(POINTS[:4], iterations=100, until=lambda a, b: bool(np.allclose(a, b)))
        assert len(job.iterations) < 60
        return centres, converged

    results = on_all(size, body)
    for centres, converged in results:
        assert np.allclose(centres, plain_k_means(5)) and centres.tobytes() == results[0][0].tobytes()
        assert np.allclose(converged, plain_k_means(60))


def test_bits_do_not_depend_on_threads(tmp_path: Path) -> None:
    np.save(tmp_path / "points.npy", POINTS)
    parts = split(tmp_path / "points.npy", tmp_path / "parts", 8)

    def body(comm: sky.Comm) -> list[bytes]:
        def centres(threads: int) -> bytes:
            job = MapReduce(comm, map=nearest, reduce="sum", combine=means, partitions=parts, threads=threads)
            return bytes(job.iterate(POINTS[:4], iterations=3).tobytes())

        return [centres(threads) for threads in (1, 4, 4, 4)]

    for bits in on_all(2, body):
        assert len(set(bits)) == 1


def test_own_data_of_each_rank() -> None:
    def body(comm: sky.Comm) -> Any:
        mine = [np.arange(10) + 10 * (comm.rank + comm.size * k) for k in range(comm.rank)]
        return MapReduce(comm, map=lambda x, state: (x % 3, x), reduce="max", partitions=mine).run()

    got = counted([(keys.tolist(), values) for keys, values in on_all(3, body)])
    assert got == {0: 57, 1: 58, 2: 59}


def _raises(*_: Any) -> Any:
    raise KeyError("not this one")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"map": _raises}, r"rank \d: map of partition \d \(.*part-0000\d.txt\) raised KeyError(.|\n)*in _raises"),
        ({"map": lambda text, state: 5}, "returns \\(keys, values\\)"),
        ({"map": lambda text, state: [5]}, "yields tuples"),
        ({"map": lambda text, state: (["a"], [1, 2])}, r"map of partition \d .*shape \(2,\) for 1 keys"),
        ({"reduce": _raises}, r"reduce raised KeyError on key 'w\d+'(.|\n)*in _raises"),
        ({"combine": _raises}, "rank 0: combine raised KeyError(.|\n)*in _raises"),
        ({"reduce": "quick"}, "unknown combine operation 'quick'"),
        ({"merge": "sum"}, "merge= needs a function as reduce"),
        ({"reducers": 0}, "at least one"),
        ({"on_loss": "cry"}, "on_loss='cry'"),
        ({"loader": 5}, "loader=5: one of text, .*or an object with load"),
        ({"partitions": "gone.json"}, "gone.json: No such file"),
    ],
)
def test_errors_of_jobs_are_raised_on_all_ranks(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = book(tmp_path, 4)

    def body(comm: sky.Comm) -> None:
        with pytest.raises(BadInput, match=said):
            MapReduce(comm, **({"map": ones_of, "reduce": "sum", "partitions": path} | changes)).run()
        # The group is still usable.
        assert comm.allreduce(np.ones(1))[0] == comm.size

    on_all(3, body)


def test_a_partition_that_is_gone(tmp_path: Path) -> None:
    path = book(tmp_path, 4)
    Path(Partitions.load(path).parts[2].path).unlink()

    def body(comm: sky.Comm) -> None:
        with pytest.raises(BadInput, match=r"map of partition 2 .*part-00002\.txt: No such file"):
            MapReduce(comm, map=words_of, reduce="count", partitions=path).run()

    on_all(2, body)


@pytest.mark.parametrize("collective", ["shuffle", "allreduce"])
def test_all_are_killed_and_resume_to_the_same_bits(collective: str, processes: Processes, tmp_path: Path) -> None:
    with_points(tmp_path)
    common = {"FOLDER": dict.fromkeys(range(3), str(tmp_path)), "COLLECTIVE": dict.fromkeys(range(3), collective)}
    undisturbed = [out for out, _ in processes.lines(3, JOB, **common)]
    kept = common | {"CHECKPOINT": dict.fromkeys(range(3), "1")}
    together = {"DIES_AT": dict.fromkeys(range(3), "4"), "DIE_TOGETHER": dict.fromkeys(range(3), "3")}
    killed = processes.lines(3, JOB, **kept, **together)
    assert [out for out, _ in killed] == [""] * 3, killed
    resumed = processes.lines(3, JOB, **kept)
    for (out, err), want in zip(resumed, undisturbed, strict=True):
        assert out.split()[0] == want.split()[0], err
        assert "[4]" in out  # it resumed after the third iteration


@pytest.mark.parametrize("collective", ["shuffle", "allreduce"])
def test_a_rank_is_killed_and_the_others_take_its_partitions(
    collective: str, processes: Processes, tmp_path: Path
) -> None:
    with_points(tmp_path)
    common = {"FOLDER": dict.fromkeys(range(3), str(tmp_path)), "COLLECTIVE": dict.fromkeys(range(3), collective)}
    for victim in (0, 2):  # the rank that runs combine, and another
        lines = processes.lines(3, JOB, **common, DIES_AT={victim: "3"})
        assert lines.pop(victim)[0] == ""
        for out, err in lines:
            centres = np.frombuffer(bytes.fromhex(out.split()[0]))
            assert np.allclose(centres.reshape(4, 2), plain_k_means(6)), err
            assert out.split()[-1] == "2"


@pytest.mark.parametrize("collective", ["shuffle", "allreduce"])
def test_survivors_of_a_loss_save_and_resume(collective: str, processes: Processes, tmp_path: Path) -> None:
    with_points(tmp_path)
    common = {
        name: dict.fromkeys(range(3), value)
        for name, value in {"FOLDER": str(tmp_path), "COLLECTIVE": collective, "CHECKPOINT": "1"}.items()
    }
    lines = processes.lines(3, JOB, **common, DIES_AT={0: "3"})
    assert lines.pop(0)[0] == ""
    # The checkpoints hold all six iterations, so a group of the survivors' size resumes with nothing left to do.
    for (out, err), (again, wrong) in zip(lines, processes.lines(2, JOB, **common), strict=True):
        assert out.split()[-1] == "2", err
        assert again.split() == [out.split()[0], "[]", "2"], wrong


def test_partitions_of_a_lost_host_come_from_the_other_host_that_has_them(processes: Processes, tmp_path: Path) -> None:
    np.save(tmp_path / "points.npy", POINTS)
    split(tmp_path / "points.npy", tmp_path / "parts", 8, hosts=["a", "b"], replicas=2)
    # The third host has the list, and none of the files.
    other = tmp_path / "other"
    (other / "parts").mkdir(parents=True)
    for name in ("points.npy", "parts/partitions.json"):
        shutil.copy(tmp_path / name, other / name)
    folders = {rank: str(other if rank == 2 else tmp_path) for rank in range(3)}
    lines = processes.lines(3, JOB, FOLDER=folders, HOST=dict(enumerate("abc")), DIES_AT={0: "3"})
    assert lines.pop(0)[0] == ""
    for out, err in lines:
        centres = np.frombuffer(bytes.fromhex(out.split()[0]))
        assert np.allclose(centres.reshape(4, 2), plain_k_means(6)), err
        assert out.split()[-1] == "2"


EXAMPLES = Path(__file__).parents[3] / "examples"


def run(*words: str) -> str:
    """What a command prints."""
    command = [sys.executable, "-m", "skyphos.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_examples(tmp_path: Path) -> None:
    book(tmp_path, 8)
    counts = run("run", "-n", "2", str(EXAMPLES / "word_count.py"), str(tmp_path / "parts" / "partitions.json"))
    (word, count), *_ = collections.Counter(WORDS).most_common(1)
    assert f"{count:8,} " in counts.splitlines()[0] and f" {word}\n" in counts
    centres = run("run", "-n", "2", str(EXAMPLES / "kmeans.py"))
    assert centres.count("\n") == 10 and "iteration" in centres


def test_multidimensional_scaling() -> None:
    found = run("run", "-n", "2", str(EXAMPLES / "mds.py"))
    # The points from which the distances were computed are one solution; there may be better ones by chance.
    random = np.random.default_rng(0)
    points = random.uniform(size=(500, 2))
    true = np.linalg.norm(points[:, None] - points, axis=2)
    given = true * random.normal(1, 0.01, (500, 500))
    stress = (((given + given.T) / 2 - true) ** 2).sum() / 2
    assert 0 < float(found.split("stress ")[1].split(";")[0]) < 1.01 * stress


def test_checkpoints_of_another_job(tmp_path: Path) -> None:
    def body(comm: sky.Comm) -> None:
        mine = [np.arange(3)]
        options: dict[str, Any] = {"partitions": mine, "checkpoint": tmp_path, "combine": lambda k, v: int(v.sum())}
        job = MapReduce(comm, map=lambda x, s: (x, x), reduce="sum", **options)
        assert job.iterate(iterations=2) == 3 * comm.size
        with pytest.raises(BadInput, match=r"of another job: (.|\n)*; sum; (.|\n)*This one is: (.|\n)*; max; "):
            MapReduce(comm, map=lambda x, s: (x, x), reduce="max", **options).iterate(iterations=3)
        # A truncated checkpoint is ignored, and the one before it is used.
        comm.barrier()
        if comm.rank == 0:
            for newest in tmp_path.glob("iteration-2.*"):
                newest.write_bytes(newest.read_bytes()[:-5])
        comm.barrier()
        assert job.iterate(iterations=3) == 3 * comm.size
        assert [iteration.number for iteration in job.iterations] == [1, 2, 2, 3]

    on_all(2, body)


def test_a_report(tmp_path: Path) -> None:
    path = book(tmp_path, 6)

    def body(comm: sky.Comm) -> None:
        job = MapReduce(comm, map=ones_of, reduce=lambda word, ones: sum(ones), reducers=8, partitions=path)
        job.report(tmp_path / "nothing.html")
        for _ in range(3):
            job.run()
        assert {"map", "shuffle", "reduce", "moving"} <= {stage for stage, *_ in job.iterations[0].spans}
        job.report(tmp_path / "report.html")
        with pytest.raises(BadInput, match=r"gone/report\.html: No such file"):
            job.report(tmp_path / "gone" / "report.html")

    on_all(3, body)
    assert "Map-reduce" in (tmp_path / "nothing.html").read_text()
    page = (tmp_path / "report.html").read_text()
    for said in ("rank 2", "<dd>3</dd>", "<dd>18</dd>", "transfer of the next keys", "Iteration 3"):
        assert said in page
    assert "<script" not in page and "http://" not in page


def test_times_of_stages_may_overlap() -> None:
    iteration = Iteration(3)
    with iteration.time("map"), iteration.time("reduce"):
        pass
    assert iteration.seconds["map"] >= iteration.seconds["reduce"] >= 0
    assert str(iteration).startswith("iteration 3: 0.000 s: map 0.000, reduce 0.000")


class Watched:
    """A loader that records which files it reads."""

    suffix = ".npy"

    def __init__(self) -> None:
        self.read: list[str] = []

    def rows(self, path: str) -> int:
        raise NotImplementedError

    def load(self, path: str) -> Any:
        self.read.append(path)
        return np.load(path)

    cut: Any = None


def test_partitions_of_other_hosts_come_over_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "points.npy", POINTS)
    made = split(tmp_path / "points.npy", tmp_path / "parts", 8)
    # All partitions are on one of three hosts; each rank maps an even share of them.
    parts = Partitions(made.format, [dataclasses.replace(part, hosts=("b",)) for part in made])

    def body(comm: sky.Comm) -> Any:
        loader = Watched()
        job = MapReduce(
            comm, map=nearest, reduce="sum", combine=means, partitions=parts, loader=loader, on_loss="raise"
        )
        centres = job.iterate(POINTS[:4], iterations=3)
        return centres, loader.read, [iteration.remote_bytes for iteration in job.iterations], len(job._tasks.mine)

    results = on_hosts(["a", "b", "b", "c"], monkeypatch, body)
    kept = {part.path: part.bytes for part in parts}
    for rank, (centres, read, remote, mine) in enumerate(results):
        assert np.allclose(centres, plain_k_means(3)) and mine == len(read) == 2
        # Ranks of other hosts never open the files.
        assert (set(read) <= set(kept)) == (rank in (1, 2))
        assert remote[1:] == [0, 0] and (remote[0] > 0) == (rank not in (1, 2))
    assert sum(remote[0] for _, _, remote, _ in results) == 4 * next(iter(kept.values()))


def test_a_loader_that_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "points.npy", POINTS)
    made = split(tmp_path / "points.npy", tmp_path / "parts", 4)

    class Broken(Watched):
        def load(self, path: str) -> Any:
            raise KeyError("no such column")

    def body(comm: sky.Comm) -> None:
        for hosts in ((), ("b",)):  # each rank reads the file itself, or rank 1 on host b sends it to the others
            parts = Partitions(made.format, [dataclasses.replace(part, hosts=hosts) for part in made])
            with pytest.raises(BadInput, match=r"rank \d: (map|the loader)(.|\n)*artition \d (.|\n)*in load"):
                MapReduce(comm, map=nearest, partitions=parts, loader=Broken(), combine=means).run(POINTS[:4])
            comm.barrier()

    on_hosts(["a", "b", "c"], monkeypatch, body)


@pytest.mark.parametrize("trouble", ["gone", "damaged", "nobody"])
def test_partitions_of_other_hosts_that_cannot_be_read(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "points.npy", POINTS)
    made = split(tmp_path / "points.npy", tmp_path / "parts", 4)
    host = "z" if trouble == "nobody" else "b"
    parts = Partitions(made.format, [dataclasses.replace(part, hosts=(host,)) for part in made])
    for part in parts:
        if trouble == "damaged":
            Path(part.path).write_bytes(b"\x93NUMPY and nothing else")
        else:
            Path(part.path).unlink()
    words = {
        "gone": "the partition file says that this host",
        "damaged": r"partition.*\.npy.*rank 1 sent the file",
        "nobody": "no rank runs there",
    }[trouble]

    def body(comm: sky.Comm) -> None:
        with pytest.raises(BadInput, match=words):
            MapReduce(comm, map=nearest, reduce="sum", combine=means, partitions=parts).run(POINTS[:4])
        comm.barrier()

    on_hosts(["a", "b", "c"], monkeypatch, body)
