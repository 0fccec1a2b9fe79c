"""Files through links, FIFOs, devices and descriptors; their modes and owners; and folders that take no new names."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from skyphos.cli.output import check_writable
from skyphos.errors import BadInput
from skyphos.files.whole_file import is_special, replacing

NEEDS_ORDINARY_USER = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")


def write(path: Path | str, content: bytes = b"new") -> None:
    with replacing(str(path)) as file:
        file.write(content)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("before", [None, b"old"])
@pytest.mark.parametrize("relative", [True, False])
def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path, before: bytes | None, relative: bool) -> None:
    (tmp_path / "far").mkdir()
    target, middle, link = tmp_path / "far" / "target.csv", tmp_path / "middle.csv", tmp_path / "link.csv"
    if before is not None:
        target.write_bytes(before)
        target.chmod(0o664)
    middle.symlink_to("far/target.csv" if relative else target)
    link.symlink_to("middle.csv" if relative else middle)
    check_writable(str(link))
    write(link)
    assert link.is_symlink() and middle.is_symlink() and not target.is_symlink()
    assert target.read_bytes() == b"new"
    assert before is None or target.stat().st_mode & 0o777 == 0o664
    assert names(tmp_path) == ["far", "link.csv", "middle.csv"] and names(tmp_path / "far") == ["target.csv"]


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a.csv").symlink_to("b.csv")
    (tmp_path / "b.csv").symlink_to("a.csv")
    with pytest.raises(BadInput, match=r"a\.csv: Too many levels"):
        write(tmp_path / "a.csv")


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666, 0o664])
def test_the_mode_stays(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b"old")
    file.chmod(mode)
    write(file)
    assert (file.read_bytes(), file.stat().st_mode & 0o7777) == (b"new", mode)


def test_a_new_file_has_the_mode_that_the_user_wants(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "a.csv")
    finally:
        os.umask(before)
    assert (tmp_path / "a.csv").stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_the_owner_stays(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b"old")
    os.chown(file, 12345, 23456)
    write(file)
    assert (file.stat().st_uid, file.stat().st_gid, file.read_bytes()) == (12345, 23456, b"new")


def test_a_fifo_stays_one(tmp_path: Path) -> None:
    fifo, link, received = tmp_path / "pipe", tmp_path / "link.csv", []
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    for place in (fifo, link):
        reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()))
        reader.start()
        check_writable(str(place))
        write(place, b"x" * 200_000)
        reader.join(30)
    assert [len(data) for data in received] == [200_000] * 2
    assert is_special(str(fifo)) and names(tmp_path) == ["link.csv", "pipe"]


def test_after_an_error_a_fifo_got_nothing(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe.csv"
    os.mkfifo(fifo)
    with pytest.raises(ZeroDivisionError), replacing(str(fifo)) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert names(tmp_path) == ["pipe.csv"]


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_stdout_by_name(tmp_path: Path, name: str) -> None:
    """To a pipe and to a file, in order with printed output; the file is not truncated."""
    code = f"""
from skyphos.files.whole_file import replacing
print("before")
with replacing({name!r}) as file: file.write(b"result\\n")
print("after")
"""
    expected = "before\nresult\nafter\n"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == expected
    with open(tmp_path / "out", "w") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == expected and names(tmp_path) == ["out"]


def test_a_device(tmp_path: Path) -> None:
    write("/dev/null")
    assert is_special("/dev/null") and os.path.exists("/dev/null")
    (tmp_path / "full.csv").symlink_to("/dev/full")
    with pytest.raises(BadInput, match=r"full\.csv: No space left"):
        write(tmp_path / "full.csv")


@NEEDS_ORDINARY_USER
def test_a_file_in_a_folder_that_takes_no_names(tmp_path: Path) -> None:
    file = tmp_path / "closed" / "a.csv"
    file.parent.mkdir()
    file.write_bytes(b"a longer old one")
    file.parent.chmod(0o555)
    try:
        check_writable(str(file))
        write(file)
        assert file.read_bytes() == b"new"
        with pytest.raises(BadInput, match="cannot be written"):
            check_writable(str(file.parent / "b.csv"))
    finally:
        file.parent.chmod(0o755)


@NEEDS_ORDINARY_USER
def test_a_file_that_may_not_be_written_is_left(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b"old")
    file.chmod(0o444)
    with pytest.raises(BadInput, match="cannot be written"):
        check_writable(str(file))
    with pytest.raises(BadInput, match="Permission denied"):
        write(file)
    assert file.read_bytes() == b"old"


def test_names_that_are_no_utf_8(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/raw\xff.csv")
    write(name)
    assert os.listdir(os.fsencode(tmp_path)) == [b"raw\xff.csv"]
    with pytest.raises(BadInput):
        write(name + "/below.csv")
