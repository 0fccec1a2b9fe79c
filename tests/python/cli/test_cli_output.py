"""Files that appear whole or not at all, and the progress that people see."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from skyphos.cli.output import check_writable, table, write_ranks
from skyphos.cli.progress import Progress
from skyphos.errors import BadInput
from skyphos.files.whole_file import replacing


def test_the_command_alone_shows_its_help() -> None:
    command = [sys.executable, "-m", "skyphos.cli"]
    alone = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    asked = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert (alone.returncode, alone.stdout) == (2, "")
    assert alone.stderr == asked.stdout and "\nOptions:\n" in asked.stdout


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(str(file)) as stream:
        stream.write(b"new")
        raise ZeroDivisionError
    assert (file.read_text(), os.listdir(tmp_path)) == ("old", ["a.txt"])
    with replacing(str(file)) as stream:
        stream.write(b"new")
        assert file.read_text() == "old"
    assert (file.read_text(), os.listdir(tmp_path)) == ("new", ["a.txt"])


def test_a_folder_that_went_away(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"), replacing(str(tmp_path / "gone" / "a.csv")):
        pass


@pytest.mark.parametrize("name", ["a.csv", "a.npy", "a.parquet", "A.CSV"])
def test_extreme_numbers_survive(tmp_path: Path, name: str) -> None:
    ids = np.array([0, 2**53 + 1, 2**63 - 1])
    ranks = np.array([5e-324, 1 / 3, 1.0])
    file = tmp_path / name
    with replacing(str(file)) as stream:
        write_ranks(stream, name, ids, ranks)
    if name.lower() == "a.csv":
        rows = [line.split(",") for line in file.read_text().splitlines()[1:]]
        assert [int(row[0]) for row in rows] == ids.tolist()
        assert [float(row[1]) for row in rows] == ranks.tolist()
    assert os.listdir(tmp_path) == [name]


def test_check_writable(tmp_path: Path) -> None:
    check_writable(str(tmp_path / "a.csv"))
    (tmp_path / "folder.csv").mkdir()
    for bad in (tmp_path / "a.txt", tmp_path / "no" / "a.csv", tmp_path / "folder.csv"):
        with pytest.raises(BadInput):
            check_writable(str(bad))


def test_table_lines_up() -> None:
    lines = table(["a", "b"], [["long name", "1"], ["x", "1000"]]).splitlines()
    assert lines[1:] == ["long name     1", "x          1000"]


def test_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for shown in (True, False):
        with Progress(1e-8, visible=shown) as progress:
            progress.show_step("loading")
            progress.show_iteration(1, 0.25)
    assert capsys.readouterr().err == "loading\niteration 1  residual 2.500e-01\n"


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with Progress(1e-8, visible=True) as progress:
        progress.show_step("loading")
        for iteration, residual in enumerate([0.5, 0.1, 0.0], 1):
            progress.show_iteration(iteration, residual)
