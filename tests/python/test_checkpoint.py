"""Checkpoints: the same bits after any interruption, damaged files, groups of other sizes."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import skyphos as sky
from conftest import Processes, on_all
from skyphos.checkpoint import Restored
from skyphos.errors import BadInput, Mismatch
from skyphos.graph import Edges, pagerank

DTYPES = st.one_of(hnp.floating_dtypes(), hnp.integer_dtypes(), hnp.complex_number_dtypes(), hnp.boolean_dtypes())


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(max_size=8), hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_side=4)), max_size=4))
def test_the_same_bits_and_types(state: dict[str, np.ndarray]) -> None:
    with tempfile.TemporaryDirectory() as folder, sky.init() as comm:
        state |= {"file": np.zeros(1), "allow_pickle": np.ones(2)}  # names of NumPy's own
        checkpoint = sky.Checkpoint(folder)
        assert checkpoint.save(comm, 3, state)
        found = checkpoint.restore(comm)
        assert found is not None and found.iteration == 3 and set(found.state) == set(state)
        for name, array in state.items():
            assert found[name].dtype == array.dtype and found[name].shape == array.shape
            assert found[name].tobytes() == array.tobytes()


def package_is_missing(name: str) -> np.dtype[Any]:
    raise ImportError(name)


def package_is_too_old(name: str) -> np.dtype[Any]:
    raise ValueError(name)


@pytest.mark.parametrize("type_named", [package_is_missing, package_is_too_old])
def test_a_type_that_is_not_known_here_is_refused_and_no_earlier_iteration_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_named: Callable[[str], np.dtype[Any]]
) -> None:
    with sky.init() as comm:
        checkpoint = sky.Checkpoint(tmp_path)
        checkpoint.save(comm, 1, {"weights": np.ones(2)})
        checkpoint.save(comm, 2, {"weights": np.ones(2, ml_dtypes.bfloat16)})
        found = checkpoint.restore(comm)
        assert found is not None and found["weights"].dtype == ml_dtypes.bfloat16
        monkeypatch.setattr("skyphos.checkpoint.type_named", type_named)
        with pytest.raises(BadInput, match="has arrays of bfloat16, a type of the package ml_dtypes: install it"):
            checkpoint.restore(comm)


def test_restore_finds_the_last_iteration_that_all_ranks_completed(tmp_path: Path) -> None:
    """One rank died before it wrote iteration 4; a file of iteration 3 is cut short."""

    def save(comm: sky.Comm) -> None:
        checkpoint = sky.Checkpoint(tmp_path)
        for iteration in range(1, 5):
            checkpoint.save(comm, iteration, {"x": np.full(4, comm.rank * 10 + iteration)})

    def restore(comm: sky.Comm) -> tuple[int, list[int]] | None:
        found = sky.Checkpoint(tmp_path).restore(comm)
        return None if found is None else (found.iteration, found["x"].tolist())

    on_all(3, save)
    assert len(list(tmp_path.iterdir())) == 2 * 3, "the two last iterations are kept"
    assert on_all(3, restore) == [(4, [4] * 4), (4, [14] * 4), (4, [24] * 4)]
    (last,) = tmp_path.glob("iteration-4.rank-1-*")
    last.unlink()
    assert on_all(3, restore) == [(3, [3] * 4), (3, [13] * 4), (3, [23] * 4)]
    (third,) = tmp_path.glob("iteration-3.rank-2-*")
    whole = third.read_bytes()
    for damaged in (whole[:-1], whole + b"x", bytes([whole[0] ^ 1]) + whole[1:], b""):
        third.write_bytes(damaged)
        assert on_all(3, restore) == [None] * 3
    third.write_bytes(whole)
    assert on_all(3, restore)[0] == (3, [3] * 4)


def test_folders_of_each_host(tmp_path: Path) -> None:
    def body(comm: sky.Comm) -> int:
        checkpoint = sky.Checkpoint(tmp_path / str(comm.rank), every=5)
        written = [checkpoint.save(comm, k, {"k": np.array(k)}) for k in range(12)]
        assert written == [k % 5 == 0 for k in range(12)]
        found = checkpoint.restore(comm)
        assert found is not None
        return int(found["k"])

    assert on_all(2, body) == [10, 10]


def test_errors_of_save_and_restore_are_raised_on_all_ranks(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="at least 1"):
        sky.Checkpoint(tmp_path, every=0)

    def body(comm: sky.Comm) -> list[str]:
        texts = []
        bad = {"x": np.array([object()])} if comm.rank == 1 else {"x": np.zeros(2)}
        (tmp_path / "file").touch()
        for path, state in ((tmp_path, bad), (tmp_path / "file", {"x": np.zeros(2)})):
            with pytest.raises(BadInput) as raised:
                sky.Checkpoint(path).save(comm, 1, state)
            texts.append(str(raised.value))
        return texts

    for texts in on_all(3, body):
        assert "'x' is not an array of numbers" in texts[0] and "file" in texts[1]
    shutil.rmtree(tmp_path)
    on_all(3, lambda comm: sky.Checkpoint(tmp_path).save(comm, 1, {"x": np.zeros(1)}))

    def other(comm: sky.Comm) -> str:
        with pytest.raises(BadInput) as raised:
            sky.Checkpoint(tmp_path).restore(comm)
        return str(raised.value)

    assert all("group of 3 ranks, this one has 2 ranks" in text for text in on_all(2, other))


def test_restore_from_a_missing_folder_returns_none(tmp_path: Path) -> None:
    assert on_all(2, lambda comm: sky.Checkpoint(tmp_path / "none").restore(comm)) == [None, None]


def raised(size: int, call: Any) -> list[str]:
    """The error of a failing call on each rank; the group is usable afterwards."""

    def body(comm: sky.Comm) -> str:
        with pytest.raises(BadInput) as error:
            call(comm)
        assert comm.allreduce(np.ones(2))[0] == size
        return str(error.value)

    return on_all(size, body)


def test_a_folder_that_one_rank_cannot_read_is_named_on_all(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    bad = {"too long": tmp_path / ("x" * 300), "not a folder": tmp_path / "file", "not a": tmp_path / "file" / "y"}
    for why, path in bad.items():

        def checkpoint(comm: sky.Comm, path: Path = path) -> sky.Checkpoint:
            return sky.Checkpoint(path if comm.rank == 1 else tmp_path)

        for what, call in (
            ("read", lambda comm: checkpoint(comm).restore(comm)),
            ("", lambda comm: checkpoint(comm).save(comm, 1, {"x": np.ones(1)})),
        ):
            for text in raised(3, call):
                assert text.startswith(f"rank 1: {path}: cannot {what}") and why in text, text


def test_iterations_are_whole_numbers(tmp_path: Path) -> None:
    checkpoint = sky.Checkpoint(tmp_path, every=2)
    for bad in (4.5, "4", -2, True, np.True_, None, [4], 10**18):
        for ranks in ((0, 1), (1,)):

            def save(comm: sky.Comm, bad: Any = bad, ranks: tuple[int, ...] = ranks) -> None:
                checkpoint.save(comm, bad if comm.rank in ranks else 4, {"x": np.ones(1)})

            assert all("iteration must be" in text for text in raised(2, save))
        with pytest.raises(BadInput, match="iteration must be"):
            checkpoint.is_due(bad)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    assert on_all(2, lambda comm: checkpoint.save(comm, np.uint8(4), {"x": np.ones(1)})) == [True] * 2  # type: ignore[arg-type]


def test_ranks_that_save_different_iterations_are_named(tmp_path: Path) -> None:
    numbers = (4, 4, 6)
    for text in raised(3, lambda comm: sky.Checkpoint(tmp_path).save(comm, numbers[comm.rank], {"x": np.ones(1)})):
        assert "rank 0 saves iteration 4, rank 2 iteration 6" in text
    assert list(tmp_path.iterdir()) == []


def test_errors_of_ranks_in_other_calls_name_the_checkpoint(tmp_path: Path) -> None:
    def body(comm: sky.Comm) -> str:
        checkpoint = sky.Checkpoint(tmp_path, every=2)
        with pytest.raises(Mismatch) as error:
            # Rank 1 is one iteration behind, so that nothing is due there.
            checkpoint.save(comm, 4 - comm.rank, {"x": np.ones(1)})
            comm.allreduce(np.ones(3))
        return str(error.value)

    assert on_all(2, body)[0].startswith("in Checkpoint.save of iteration 4: ranks disagree")


def test_a_later_iteration_of_a_group_of_another_size_is_an_error(tmp_path: Path) -> None:
    checkpoint = sky.Checkpoint(tmp_path)

    def save(iteration: int) -> Any:
        return lambda comm: checkpoint.save(comm, iteration, {"x": np.ones(1)})

    on_all(3, save(12))
    on_all(4, save(40))
    for text in raised(3, checkpoint.restore):
        assert "iteration 40 saved by a group of 4 ranks, this one has 3 ranks and iteration 12" in text, text
    found = on_all(4, checkpoint.restore)
    assert [restored.iteration for restored in found] == [40] * 4, "older checkpoints of other groups do no harm"


KILLED_WHILE_IT_SAVES = """
import os, signal
sky.Checkpoint(os.environ["FOLDER"]).save(comm, 1, {"x": np.ones(9)})
if comm.rank == 1:
    os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
try:
    sky.Checkpoint(os.environ["FOLDER"]).save(comm, 2, {"x": np.ones(9)})
except sky.PeerLost:
    say("lost")
"""


@pytest.mark.parametrize("call", ["save", "restore"])
def test_unfinished_files_of_a_killed_process_are_removed(processes: Processes, tmp_path: Path, call: str) -> None:
    folder = {rank: str(tmp_path) for rank in range(2)}
    assert processes.lines(2, KILLED_WHILE_IT_SAVES, FOLDER=folder)[0][0] == "lost\n"
    (leftover,) = tmp_path.glob(".*")
    assert leftover.name.startswith(".iteration-2.rank-1-of-2.replica-0.")
    sibling = tmp_path / ".iteration-2.rank-1-of-2.replica-1.12345678"  # the sibling may still be writing it
    sibling.touch()

    def body(comm: sky.Comm) -> Any:
        checkpoint = sky.Checkpoint(tmp_path)
        return checkpoint.save(comm, 3, {"x": np.ones(9)}) if call == "save" else checkpoint.restore(comm)

    on_all(2, body)
    assert list(tmp_path.glob(".*")) == [sibling]


def test_the_home_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sky.Checkpoint("~/a").path == tmp_path / "a"
    with pytest.raises(BadInput, match="~no-such-user"):
        sky.Checkpoint("~no-such-user/a")


def test_names_of_arrays(tmp_path: Path) -> None:
    assert repr(Restored(3, {"b": np.ones(1), 3: np.ones(1), None: np.ones(1)})) == "Restored(iteration=3, 3, None, b)"  # type: ignore[dict-item]
    for bad in (3, None, (1, 2)):
        for text in raised(2, lambda comm, bad=bad: sky.Checkpoint(tmp_path).save(comm, 1, {bad: np.ones(1)})):
            assert f"{bad!r} names an array and is not a str" in text
    for text in raised(2, lambda comm: sky.Checkpoint(tmp_path).save(comm, 1, {"x": [[1], [1, 2]]})):
        assert "'x' is not an array of numbers" in text


REPLICA_WITHOUT_FILES = """
import os
process = comm.rank + comm.size * comm.replica
checkpoint = sky.Checkpoint(os.environ["FOLDER"])
if process == 3:
    say("there")
    sys.stdin.readline()
try:
    found = checkpoint.restore(comm)
    say(None if found is None else found.iteration)
except sky.BadInput as error:
    say(error)
sys.stdin.readline()
"""


def test_a_replica_without_its_siblings_files_raises(processes: Processes, tmp_path: Path) -> None:
    """The replica without files calls last, so the other replica of its rank has already restored from its own."""
    on_all(2, lambda comm: sky.Checkpoint(tmp_path).save(comm, 7, {"x": np.ones(9)}))
    folder = {rank: str(tmp_path if rank < 3 else tmp_path / "own") for rank in range(4)}
    group = processes.start(4, REPLICA_WITHOUT_FILES, options="replication=2, share_hosts=True", FOLDER=folder)

    def line(process: Any) -> str:
        return str(process.stdout.readline().strip())

    assert line(group[3]) == "there"
    assert [line(process) for process in group[:3]] == ["7"] * 3
    group[3].stdin.write("go\n")
    group[3].stdin.flush()
    said = line(group[3])
    assert re.search("rank 1, replica 1: .*own: not the checkpoints that another replica", said), said


def random_pagerank(folder: Path | None, iterations: int, comm: sky.Comm, **options: Any) -> Any:
    """Rank a random graph; return the iterations that the callback got, the PageRanks' bytes, and the residuals."""
    draw = np.random.default_rng(comm.rank)
    edges = Edges(draw.integers(0, 300, 2000), draw.integers(0, 300, 2000))
    checkpoint = None if folder is None else sky.Checkpoint(folder, every=4)
    heard: list[int] = []
    result = pagerank(
        comm,
        edges,
        tol=0.0,
        max_iterations=iterations,
        checkpoint=checkpoint,
        callback=lambda iteration, _: heard.append(iteration),
        **options,
    )
    return heard, result.ranks.tobytes(), result.residuals


def test_pagerank_resumes_with_the_same_bits(tmp_path: Path) -> None:
    undisturbed = on_all(3, lambda comm: random_pagerank(None, 30, comm))
    on_all(3, lambda comm: random_pagerank(tmp_path, 14, comm))  # ends after iteration 14, saved after 8 and 12
    resumed = on_all(3, lambda comm: random_pagerank(tmp_path, 30, comm))
    for (_, ranks, residuals), (heard, resumed_ranks, resumed_residuals) in zip(undisturbed, resumed, strict=True):
        assert heard == list(range(12, 31)), "the residual of iteration 12 is known in iteration 13"
        assert resumed_ranks == ranks and resumed_residuals == residuals
    with pytest.raises(BadInput, match="another graph"):
        on_all(3, lambda comm: random_pagerank(tmp_path, 30, comm, damping=0.5))
