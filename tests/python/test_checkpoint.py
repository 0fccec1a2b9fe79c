"""Checkpoints: the same bits after any end, damaged files, groups of other sizes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import skyphos as sky
from conftest import on_all
from skyphos.errors import BadInput
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


def test_the_last_iteration_that_all_have_whole(tmp_path: Path) -> None:
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


def test_what_cannot_be_saved_or_restored_says_so_on_all(tmp_path: Path) -> None:
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
        assert "'x' is no array of numbers" in texts[0] and "file" in texts[1]
    shutil.rmtree(tmp_path)
    on_all(3, lambda comm: sky.Checkpoint(tmp_path).save(comm, 1, {"x": np.zeros(1)}))

    def other(comm: sky.Comm) -> str:
        with pytest.raises(BadInput) as raised:
            sky.Checkpoint(tmp_path).restore(comm)
        return str(raised.value)

    assert all("group of 3 ranks, this one has 2" in text for text in on_all(2, other))


def test_nothing_there(tmp_path: Path) -> None:
    assert on_all(2, lambda comm: sky.Checkpoint(tmp_path / "none").restore(comm)) == [None, None]


def ranked(folder: Path | None, iterations: int, comm: sky.Comm, **options: Any) -> Any:
    """A random graph's PageRank, iteration for iteration."""
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


def test_pagerank_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = on_all(3, lambda comm: ranked(None, 30, comm))
    on_all(3, lambda comm: ranked(tmp_path, 14, comm))  # ends, saved after 8 and 12
    again = on_all(3, lambda comm: ranked(tmp_path, 30, comm))
    for (_, ranks, residuals), (heard, same, those) in zip(whole, again, strict=True):
        assert heard == list(range(12, 31)), "iteration 12's change is heard of in the next"
        assert same == ranks and those == residuals
    with pytest.raises(BadInput, match="another graph"):
        on_all(3, lambda comm: ranked(tmp_path, 30, comm, damping=0.5))
