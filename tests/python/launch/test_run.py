"""``skyphos run``: position and spelling of options, closed streams, and child processes of ranks."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 60
SKYPHOS = [sys.executable, "-m", "skyphos.cli"]
WHO = "import os, sys; print(os.environ['SKYPHOS_RANK'], os.environ['SKYPHOS_WORLD_SIZE'], sys.argv[1:], flush=True)"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "who.py").write_text(WHO)
    (tmp_path / "module_who.py").write_text(WHO)

    def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        command = [*SKYPHOS, "run", *arguments]
        env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
        given: dict = {"stdin": subprocess.DEVNULL, "cwd": tmp_path, "env": env} | options
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, **given)

    return run


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


@pytest.mark.parametrize(
    "spelling",
    [
        ["-n", "2"],
        ["-n2"],
        ["-np", "2"],
        ["-np=2"],
        ["--np", "2"],
        ["--np=2"],
        ["--nproc", "2"],
        ["--nproc-per-node", "2"],
        ["--nproc_per_node=2"],
    ],
)
def test_spellings_of_the_number_of_ranks(run: Run, spelling: list[str]) -> None:
    assert said(run(*spelling, "who.py")) == ["[0] 0 2 []", "[1] 1 2 []"]


def test_two_options_for_the_number_of_ranks_are_refused(run: Run) -> None:
    done = run("-n", "2", "--nproc-per-node", "2", "who.py")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "give one of them" in done.stderr


@pytest.mark.parametrize("spelling", ["--hostfile", "-hostfile", "--machinefile"])
@pytest.mark.parametrize("line", ["localhost:2", "localhost slots=2 max_slots=4", "\ufefflocalhost slots=2"])
def test_host_files_of_other_launchers(run: Run, tmp_path: Path, spelling: str, line: str) -> None:
    (tmp_path / "hosts").write_text(f"{line}\r\n", encoding="utf-8")
    assert said(run(spelling, "hosts", "who.py")) == ["[0] 0 2 []", "[1] 1 2 []"]
    assert len(said(run(spelling, "hosts", "--nproc-per-node", "3", "who.py"))) == 3


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        (["who.py", "-n", "4"], "skyphos run -n 4 who.py"),
        (["who.py", "a", "-np", "4", "b"], "skyphos run -np 4 who.py a b"),
        (["who.py", "--nproc=4"], "skyphos run --nproc=4 who.py"),
        (["-n", "2", "who.py", "--grace", "3"], "skyphos run -n 2 --grace 3 who.py"),
        (["-m", "module_who", "-n", "4"], "skyphos run -n 4 -m module_who"),
        (["who.py", "--no-prefix"], "skyphos run --no-prefix who.py"),
        (["who.py", "--hostfile", "hosts"], "skyphos run --hostfile hosts who.py"),
        (["echo", "-n", "4"], "skyphos run -n 4 echo"),
    ],
)
def test_an_option_of_ours_behind_the_target_is_refused(run: Run, arguments: list[str], right: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"`{right}`" in done.stderr and " -- " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-n", "1", "who.py", "--", "-n", "4"], "['-n', '4']"),
        (["-n", "1", "--", "who.py", "-n", "4"], "['-n', '4']"),
        (["-n", "1", "who.py", "a", "--", "-n", "4"], "['a', '--', '-n', '4']"),
        (["-n", "1", "who.py", "--", "--", "x"], "['--', 'x']"),
        (["-n", "1", "who.py", "--epochs", "3", "-v"], "['--epochs', '3', '-v']"),
        (["-n", "1", "who.py", "--help"], "['--help']"),
        (["-n", "1", "who.py", "-5", "-", "-nx"], "['-5', '-', '-nx']"),
        (["-n", "1", "-m", "module_who", "--", "-m"], "['-m']"),
        (["-n", "1", sys.executable, "who.py", "-n", "4"], "['-n', '4']"),
    ],
)
def test_arguments_are_passed_to_the_target(run: Run, arguments: list[str], expected: str) -> None:
    assert said(run(*arguments)) == [f"[0] 0 1 {expected}"]


def test_an_unknown_option(run: Run) -> None:
    done = run("--nporc", "2", "who.py")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "No such option '--nporc'" in done.stderr


def test_variables_that_are_set_or_handed_on(run: Run) -> None:
    done = run("-n", "1", "-x", "MINE=a=b", "-x", "EMPTY=", "-x", "PATH", "--no-prefix", "env")
    assert {"MINE=a=b", "EMPTY="} < set(done.stdout.splitlines()) and done.returncode == 0
    for given, words in [("NOT_SET_HERE", "-x NOT_SET_HERE=VALUE sets it"), ("=b", "NAME, or NAME=VALUE")]:
        done = run("-n", "1", "-x", given, "env")
        assert (done.returncode, done.stdout) == (2, "") and words in done.stderr


@pytest.mark.parametrize(
    ("end", "how", "status"),
    [
        ("sys.exit(3)", "ended with status 3", 3),
        ("sys.exit('no input')", "ended with status 1", 1),
        ("os._exit(5)", "ended with status 5", 5),
        ("os.kill(os.getpid(), 9)", "was killed by SIGKILL", 137),
        ("raise KeyError(7)", "ended with status 1 (KeyError: 7)", 1),
    ],
)
def test_the_rank_that_caused_the_end_is_named(run: Run, tmp_path: Path, end: str, how: str, status: int) -> None:
    """The last line names rank 1, whatever the other ranks report, and whichever rank ends first."""
    (tmp_path / "end.py").write_text(
        f"import os, sys, skyphos as sky\ncomm = sky.init(timeout=30)\nif comm.rank == 1: {end}\ncomm.barrier()\n"
    )
    done = run("-n", "3", "end.py")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("skyphos: rank 1 on ") and f"{how}; the others are ended" in last, done.stderr
    assert done.returncode == status


def test_contradictory_numbers_of_ranks_are_refused(run: Run) -> None:
    done = run("-n", "2", "-np", "3", "who.py")
    assert done.returncode == 2 and "2 and 3 were given: say one of them" in done.stderr
    assert len(said(run("-n", "2", "--nproc", "2", "who.py"))) == 2


def test_ctrl_c_is_a_line_of_each_rank(tmp_path: Path) -> None:
    """After Ctrl-C, each rank prints one line instead of a traceback: the lines of two tracebacks would be mixed."""
    (tmp_path / "wait.py").write_text(
        "import skyphos as sky\ncomm = sky.init(timeout=60)\nprint('waits', flush=True)\ncomm.recv(1 - comm.rank)\n"
    )
    command = [*SKYPHOS, "run", "-n", "2", "wait.py"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, start_new_session=True, **pipes) as started:
        assert started.stdout is not None
        assert sorted(started.stdout.readline() for _ in range(2)) == ["[0] waits\n", "[1] waits\n"]
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=LIMIT_S)
    assert started.returncode == 130
    assert re.fullmatch(r"(\[[01]\] KeyboardInterrupt: .*wait\.py, line [34]\n){2}", said), said


SUM = """
import numpy as np, skyphos as sky
with sky.init(timeout=15) as comm: print(comm.allreduce(np.ones(1)), flush=True)
"""


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("options", [["-n", "2"], ["-n", "2", "--no-prefix"], ["--hostfile", "hosts"]])
def test_closed_streams(tmp_path: Path, closed: tuple[int, ...], options: list[str]) -> None:
    (tmp_path / "sum.py").write_text(SUM)
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    shell = f'exec "$@" {" ".join(f"{number}>&-" for number in closed)}'
    command = ["sh", "-c", shell, "sh", *SKYPHOS, "run", *options, "sum.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("[2.]") == (0 if 1 in closed else 2)


@pytest.mark.parametrize("closed", [0, 1, 2])
@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["--version"],
        ["plan", "--ranks", "2", "--size", "100", "--density", "0.1"],
        ["pagerank", "-n", "2", "graph.txt", "--out", "out.csv"],
        ["split", "graph.txt", "parts", "-p", "2"],
        ["simulate", "--help"],
    ],
)
def test_closed_streams_of_other_commands(tmp_path: Path, command: list[str], closed: int) -> None:
    (tmp_path / "graph.txt").write_text("1 2\n2 1\n")
    argv = ["sh", "-c", f'exec "$@" {closed}>&-', "sh", *SKYPHOS, *command]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr and (closed == 1) == (done.stdout == "")
    if command[0] == "pagerank":
        assert (tmp_path / "out.csv").read_text() == "vertex,rank\n1,0.5\n2,0.5\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("command", [["--help"], ["plan", "--ranks", "2", "--size", "100", "--density", "0.1"]])
def test_output_that_cannot_be_written(command: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*SKYPHOS, *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "skyphos: standard output: No space left on device\n")


def test_an_error_has_its_status_even_if_stderr_is_closed(tmp_path: Path) -> None:
    argv = ["sh", "-c", 'exec "$@" 2>&-', "sh", *SKYPHOS, "pagerank", "missing.txt"]
    assert subprocess.run(argv, cwd=tmp_path, check=False, timeout=LIMIT_S).returncode == 2


LEAVES = """
import os, subprocess, sys, time
import skyphos as sky
comm = sky.init(timeout=30)
ready, says = os.pipe()
ignores = f"trap '' INT TERM HUP; sleep 300 & echo > /proc/self/fd/{{says}}; exec sleep 300"
child = subprocess.Popen(["sh", "-c", ignores], start_new_session={session}, pass_fds=[says])
os.read(ready, 1)  # it ignores signals now
print("child", child.pid, flush=True)
comm.barrier()
if {fails} and comm.rank == 1:
    sys.exit(3)
time.sleep(60)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], list[int]]]]:
    """Start a group, each of whose ranks starts a child that ignores SIGINT, SIGTERM and SIGHUP.

    Return the launcher and the children's process numbers.
    """
    started: list[subprocess.Popen[str]] = []

    def job(*, fails: bool, session: bool, hosts: bool) -> tuple[subprocess.Popen[str], list[int]]:
        (tmp_path / "job.py").write_text(textwrap.dedent(LEAVES.format(session=session, fails=fails)))
        (tmp_path / "hosts").write_text("localhost slots=2\n")
        which = ["--hostfile", "hosts"] if hosts else ["-n", "2"]
        command = [*SKYPHOS, "run", *which, "--grace", "0.5", "job.py"]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        started.append(process)
        assert process.stdout is not None
        found = [int(process.stdout.readline().split()[-1]) for _ in range(2)]
        return process, found

    yield job
    for process in started:
        process.kill()
        process.communicate()


def gone(pids: list[int]) -> bool:
    """True if processes have ended; zombies count as ended."""
    for pid in pids:
        try:
            if Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                return False
        except FileNotFoundError:
            pass
    return True


def sleepers() -> list[int]:
    """Processes that the children started, recognised by their command line, ``sleep 300``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                is_ours = (entry / "cmdline").read_bytes() == b"sleep\x00300\x00"
                if is_ours and not gone([int(entry.name)]):
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                pass
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="found by /proc")
@pytest.mark.parametrize("hosts", [False, True])
@pytest.mark.parametrize("session", [False, True])
@pytest.mark.parametrize("how", ["fails", signal.SIGINT, signal.SIGTERM])
def test_child_processes_of_ranks_end_with_them(job: Callable, how: object, session: bool, hosts: bool) -> None:
    process, children = job(fails=how == "fails", session=session, hosts=hosts)
    if how != "fails":
        process.send_signal(how)
    start = time.monotonic()
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == (3 if how == "fails" else 128 + int(how))  # type: ignore[call-overload]
    assert gone(children) and not sleepers()
    assert time.monotonic() - start < 20


def test_a_program_that_ended_well_may_leave_a_daemon(tmp_path: Path) -> None:
    (tmp_path / "daemon.py").write_text(
        "import subprocess\n"
        "p = subprocess.Popen(['sleep', '299'], start_new_session=True, stdout=-3, stderr=-3)\n"
        "print('child', p.pid, flush=True)\n"
    )
    command = [*SKYPHOS, "run", "-n", "1", "daemon.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    child = int(done.stdout.split()[-1])
    assert not gone([child])
    os.kill(child, signal.SIGKILL)


def test_descriptors_of_a_shell_reach_rank_0(tmp_path: Path) -> None:
    (tmp_path / "read.py").write_text(
        "import os, sys; print(os.environ['SKYPHOS_RANK'] == '0' and open(sys.argv[1]).read().strip())"
    )
    command = ["bash", "-c", f"{sys.executable} -m skyphos.cli run -n 2 read.py <(echo hello)"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert sorted(done.stdout.split()) == ["False", "[0]", "[1]", "hello"]


@pytest.mark.parametrize("address", ["[::1]:{}", "localhost:{}"])
@pytest.mark.parametrize("variables", ["SKYPHOS", "MASTER", "MASTER[]"])
def test_rendezvous_over_ipv6(address: str, variables: str) -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
            port = listener.getsockname()[1]
    except OSError:
        pytest.skip("this host has no IPv6")
    place = address.format(port)
    host = place.rpartition(":")[0]
    if variables == "SKYPHOS":
        env = {"SKYPHOS_WORLD_SIZE": "2", "SKYPHOS_RENDEZVOUS": place}
    else:
        master = host if "[]" in variables else host.strip("[]")
        env = {"WORLD_SIZE": "2", "MASTER_ADDR": master, "MASTER_PORT": str(port)}
    rank = "SKYPHOS_RANK" if variables == "SKYPHOS" else "RANK"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SUM], env=os.environ | env | {rank: str(k)}, stdout=subprocess.PIPE, text=True
        )
        for k in range(2)
    ]
    assert [process.communicate(timeout=LIMIT_S)[0] for process in ranks] == ["[2.]\n"] * 2
