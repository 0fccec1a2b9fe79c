"""The launcher, with real processes: output, exit codes, signals, and that nothing is left behind."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skyphos.errors import BadInput
from skyphos.launch import hosts as launch_hosts
from skyphos.launch import local as launch

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="watches processes as Linux does")

LIMIT_S = 30
Launcher = Callable[..., "subprocess.Popen[bytes]"]

# A rank that prints its process id, and then waits for a signal.
WAIT = """
import os, signal, sys
print("pid", os.getpid(), flush=True)
signal.pause()
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Launcher]:
    """Start ``skyphos run`` on a script given as text; whatever is left is killed after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(script: str, *options: str, arguments: tuple[str, ...] = (), **popen: object) -> subprocess.Popen[bytes]:
        file = tmp_path / "script.py"
        file.write_text(textwrap.dedent(script))
        command = [sys.executable, "-m", "skyphos.cli", "run", *options, str(file), *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        process = subprocess.Popen(command, **(pipes | popen))  # type: ignore[call-overload]
        started.append(process)
        return process  # type: ignore[no-any-return]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def finish(process: subprocess.Popen[bytes]) -> tuple[int, list[str], list[str]]:
    """Wait for the launcher to end; return its exit code and the lines of stdout and stderr, sorted."""
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, sorted(out.decode().splitlines()), sorted(err.decode().splitlines())


def pids(process: subprocess.Popen[bytes], ranks: int) -> list[int]:
    """The pids that the ranks of WAIT print, once all are there."""
    found = []
    while len(found) < ranks:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert line, process.communicate()[1].decode()
        if " pid " in line:
            found.append(int(line.split()[-1]))
    return found


def end_message(rank: int, how: str, host: str = socket.gethostname()) -> str:
    """The line that names the rank because of which all others were ended."""
    hint = " (--keep-going: they go on)" if "killed" in how else ""
    return f"skyphos: rank {rank} on {host} {how}; the others are ended{hint}"


def wait_until_gone(pid: int) -> None:
    """Wait for a process that is not our child to end."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], LIMIT_S)[0], f"process {pid} is still there"
    finally:
        os.close(handle)


def test_lines_are_prefixed_and_arguments_passed(start: Launcher) -> None:
    script = """
        import os, sys
        print("out", os.environ["SKYPHOS_RANK"], sys.argv[1:])
        print("err", file=sys.stderr)
        sys.stdout.write("no end")
    """
    code, out, err = finish(start(script, "-n", "3", arguments=("--n", "a b")))
    assert code == 0
    assert out == sorted(line for r in range(3) for line in (f"[{r}] out {r} ['--n', 'a b']", f"[{r}] no end"))
    assert err == [f"[{r}] err" for r in range(3)]


def test_a_line_longer_than_any_pipe_arrives_whole(start: Launcher) -> None:
    code, out, _ = finish(start("print('x' * 300_000)", "-n", "1"))
    assert code == 0
    assert out[0].replace("[0] ", "") == "x" * 300_000


def test_without_prefix_ranks_write_to_the_launchers_output(start: Launcher) -> None:
    assert finish(start("import os; os.write(1, b'plain\\n')", "-n", "2", "--no-prefix"))[1] == [
        "plain",
        "plain",
    ]


def test_environment_of_ranks(start: Launcher) -> None:
    script = """
        import os
        from skyphos.launch import discover
        found = discover()
        assert len(found.token) == 32 and found.launcher == "skyphos"
        assert (found.listen_fd is not None) == (found.rank == 0)
        local = found.local_rank == found.rank
        print(found.world_size, local, found.local_size, os.environ["OMP_NUM_THREADS"])
    """
    environ = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"} | {"SKYPHOS_LISTEN_FD": "99"}
    code, out, err = finish(start(script, "-n", "2", env=environ))
    threads = max(1, launch.cores() // 2)
    assert (code, err) == (0, [])
    assert out == [f"[{r}] 2 True 2 {threads}" for r in range(2)]


def test_rank_0_reads_stdin_and_the_others_nothing(start: Launcher) -> None:
    process = start("import sys; print(repr(sys.stdin.read()))", "-n", "2", stdin=subprocess.PIPE)
    out, _ = process.communicate(b"hello", timeout=LIMIT_S)
    assert sorted(out.splitlines()) == [b"[0] 'hello'", b"[1] ''"]


def test_modules_and_programs(start: Launcher) -> None:
    run = [sys.executable, "-m", "skyphos.cli", "run", "-n", "2"]
    module = subprocess.run([*run, "-m", "this"], capture_output=True, timeout=LIMIT_S, check=True)
    assert module.stdout.count(b"Beautiful is better than ugly.") == 2
    program = subprocess.run([*run, "sh", "-c", "echo $SKYPHOS_RANK"], capture_output=True, timeout=LIMIT_S, check=True)
    assert sorted(program.stdout.splitlines()) == [b"[0] 0", b"[1] 1"]


@pytest.mark.parametrize("target", ["missing.py", "no-such-program", "/"])
def test_missing_targets_are_one_line_and_code_2(target: str) -> None:
    run = [sys.executable, "-m", "skyphos.cli", "run", "-n", "2", target]
    done = subprocess.run(run, capture_output=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 1
    assert target.encode() in done.stderr


def test_one_failure_ends_all_and_gives_the_code(start: Launcher) -> None:
    script = """
        import os, signal, sys
        if os.environ["SKYPHOS_RANK"] == "1":
            sys.exit(3)
        signal.signal(signal.SIGTERM, lambda *_: (print("ended"), sys.exit(9)))
        while True:
            signal.pause()
    """
    code, out, err = finish(start(script, "-n", "3"))
    assert code == 3
    assert set(out) <= {"[0] ended", "[2] ended"}
    assert err == [end_message(1, "ended with status 3")]


def test_the_failure_of_a_single_rank_prints_nothing(start: Launcher) -> None:
    assert finish(start("raise SystemExit(3)", "-n", "1")) == (3, [], [])


def test_a_rank_that_ends_well_does_not_end_the_others(start: Launcher) -> None:
    script = """
        import os, sys
        if os.environ["SKYPHOS_RANK"] == "1":
            sys.exit(0)
        sys.stdin.read()
        print("done")
    """
    process = start(script, "-n", "2", stdin=subprocess.PIPE)
    out, _ = process.communicate(b"", timeout=LIMIT_S)
    assert (process.returncode, out) == (0, b"[0] done\n")


def test_a_killed_rank_gives_128_plus_the_signal(start: Launcher) -> None:
    process = start(WAIT, "-n", "3")
    ranks = pids(process, 3)
    os.kill(ranks[1], signal.SIGKILL)
    code, _, err = finish(process)
    assert code == 128 + signal.SIGKILL
    assert len(err) == 1 and err[0] in [end_message(rank, "was killed by SIGKILL") for rank in range(3)]
    for rank in ranks:
        wait_until_gone(rank)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ending_signals_reach_every_rank(start: Launcher, number: signal.Signals) -> None:
    process = start(WAIT, "-n", "3")
    ranks = pids(process, 3)
    process.send_signal(number)
    code, _, err = finish(process)
    assert code == 128 + number and not [line for line in err if line.startswith("skyphos:")], err
    for rank in ranks:
        wait_until_gone(rank)


def test_other_signals_are_passed_on(start: Launcher) -> None:
    script = """
        import os, signal
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        print("pid", os.getpid(), flush=True)
        signal.sigwait([signal.SIGUSR1])
        print("got it")
    """
    process = start(script, "-n", "2")
    pids(process, 2)
    process.send_signal(signal.SIGUSR1)
    code, out, _ = finish(process)
    assert (code, out) == (0, ["[0] got it", "[1] got it"])


def test_ranks_do_not_outlive_a_killed_launcher(start: Launcher) -> None:
    process = start(WAIT, "-n", "3")
    ranks = pids(process, 3)
    process.kill()
    for rank in ranks:
        wait_until_gone(rank)


STUBBORN = """
import os, signal, sys
if os.environ["SKYPHOS_RANK"] == "1" and len(sys.argv) > 1:
    sys.exit(4)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("pid", os.getpid(), flush=True)
while True:
    signal.pause()
"""


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(start: Launcher) -> None:
    assert finish(start(STUBBORN, "-n", "2", "--grace", "0.3", arguments=("fail",)))[0] == 4


def test_a_second_signal_does_not_wait_for_the_grace(start: Launcher) -> None:
    process = start(STUBBORN, "-n", "2", "--grace", "1000")
    pids(process, 2)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] in (128 + signal.SIGINT, 128 + signal.SIGTERM)


def test_a_reader_that_closes_the_pipe_ends_the_group(start: Launcher) -> None:
    process = start("while True: print('more')", "-n", "2")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGPIPE


def test_the_token_is_on_no_command_line(start: Launcher) -> None:
    script = """
        import os
        token = os.environ["SKYPHOS_TOKEN"].encode()
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    assert token not in open(f"/proc/{entry}/cmdline", "rb").read()
                except OSError:
                    pass
    """
    assert finish(start(script, "-n", "2"))[0] == 0


# Host files. "ssh" is a stand-in that runs the command here, as sshd would: by a shell, without our
# environment.


@pytest.fixture
def fake_ssh(tmp_path: Path) -> str:
    file = tmp_path / "ssh"
    path = os.pathsep.join(sys.path)
    file.write_text(f'#!/bin/sh\nshift\nexec env -i PATH="$PATH" PYTHONPATH="{path}" sh -c "$1"\n')
    file.chmod(0o755)
    return str(file)


def hosts_file(tmp_path: Path, text: str) -> str:
    file = tmp_path / "hosts"
    file.write_text(text)
    return str(file)


def host_options(tmp_path: Path, fake_ssh: str, text: str = "one slots=2\ntwo slots=2\n") -> list[str]:
    return ["--hostfile", hosts_file(tmp_path, text), "--ssh", fake_ssh]


def test_hosts_share_one_group(start: Launcher, tmp_path: Path, fake_ssh: str) -> None:
    script = """
        import os, sys
        from skyphos.launch import discover
        found = discover()
        place = found.rank, found.world_size, found.local_rank, found.local_size, found.listen_fd is not None
        host = found.rendezvous.split(":")[0]
        sent = (os.environ.get(name) for name in ("MINE", "SET", "SKYPHOS_TLS_KEY", "OTHER"))
        print(*place, host, len(found.token), *sent, sys.argv[1])
    """
    options = host_options(tmp_path, fake_ssh)
    environ = os.environ | {"MINE": "yes", "SKYPHOS_TLS_KEY": "key", "OTHER": "no"}
    options += ["-n", "3", "-x", "MINE", "-x", "SET=a=b"]
    code, out, err = finish(start(script, *options, arguments=("$HOME; 'x'",), env=environ))
    assert (code, err) == (0, [])
    assert out == [
        "[0] 0 3 0 2 True one 32 yes a=b key None $HOME; 'x'",
        "[1] 1 3 1 2 False one 32 yes a=b key None $HOME; 'x'",
        "[2] 2 3 0 1 False one 32 yes a=b key None $HOME; 'x'",
    ]


def test_localhost_needs_no_ssh(start: Launcher, tmp_path: Path) -> None:
    script = "from skyphos.launch.bootstrap import discover; print(discover().rendezvous.split(':')[0])"
    options = host_options(tmp_path, "no-such-ssh", "localhost slots=2\n")
    assert finish(start(script, *options))[:2] == (0, ["[0] 127.0.0.1", "[1] 127.0.0.1"])


def test_a_failure_on_one_host_ends_the_others(start: Launcher, tmp_path: Path, fake_ssh: str) -> None:
    script = """
        import os, signal, sys
        if os.environ["SKYPHOS_RANK"] == "3":
            sys.exit(7)
        signal.pause()
    """
    code, _, err = finish(start(script, *host_options(tmp_path, fake_ssh)))
    assert (code, err) == (7, [end_message(3, "ended with status 7", "two")])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_other_hosts(start: Launcher, tmp_path: Path, fake_ssh: str, number: signal.Signals) -> None:
    process = start(WAIT, *host_options(tmp_path, fake_ssh))
    ranks = pids(process, 4)
    process.send_signal(number)
    assert finish(process)[0] == 128 + number
    for rank in ranks:
        wait_until_gone(rank)


def test_ranks_on_other_hosts_do_not_outlive_the_launcher(start: Launcher, tmp_path: Path, fake_ssh: str) -> None:
    process = start(WAIT, *host_options(tmp_path, fake_ssh))
    ranks = pids(process, 4)
    process.kill()
    for rank in ranks:
        wait_until_gone(rank)


def test_a_failing_ssh_gives_its_status_and_its_messages(start: Launcher, tmp_path: Path) -> None:
    ssh = tmp_path / "refuses"
    ssh.write_text("#!/bin/sh\necho 'no route to one' >&2\nexit 255\n")
    ssh.chmod(0o755)
    code, out, err = finish(start(WAIT, *host_options(tmp_path, str(ssh))))
    assert (code, out, err) == (255, [], ["no route to one"])


# Process 3 of 4 is killed in the middle of calls; the others go on with its sibling, or without it.
REPLICATED = """
import os, signal
import numpy as np, skyphos as sky
with sky.init(timeout=30, replication=2, share_hosts=True) as comm:
    for call in range(20):
        if call == 10 and (comm.rank, comm.replica) == (1, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        total = comm.allreduce(np.ones(3))[0]
print("total", total)
"""
SHRINK = """
import os, signal
import numpy as np, skyphos as sky
comm, call = sky.init(timeout=30), 0
while comm.size == 4:
    if call == 10 and comm.rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        comm.allreduce(np.ones(3))
        call += 1
    except sky.PeerLost:
        comm = comm.shrink()
total = comm.allreduce(np.ones(3))[0]
comm.close()
print("total", total)
"""


@pytest.mark.parametrize("hosts", [False, True])
@pytest.mark.parametrize(("script", "total"), [(REPLICATED, 2.0), (SHRINK, 3.0)])
def test_keep_going_without_a_killed_rank(
    start: Launcher, tmp_path: Path, script: str, total: float, hosts: bool
) -> None:
    # Both names are this host, each with an agent of its own.
    file = ["--hostfile", hosts_file(tmp_path, "localhost slots=2\n127.0.0.1 slots=2\n")]
    code, out, err = finish(start(script, "--keep-going", *(file if hosts else ["-n", "4"])))
    where = "127.0.0.1" if hosts else socket.gethostname()
    assert err == [f"skyphos: rank 3 on {where} was killed by SIGKILL; the others go on"]
    assert (code, out) == (0, [f"[{rank}] total {total}" for rank in range(3)])


def test_a_group_that_loses_all_replicas_of_a_rank_fails(start: Launcher) -> None:
    code, out, err = finish(
        start(REPLICATED.replace("(comm.rank, comm.replica) == (1, 1)", "comm.rank"), "-n4", "--keep-going")
    )
    assert (code, out) == (1, [])
    how = {rank: [line for line in err if line.startswith(f"skyphos: rank {rank} on ")] for rank in range(4)}
    assert all(len(lines) == 1 for lines in how.values()), err
    for rank in range(4):
        assert ("was killed by SIGKILL" if rank % 2 else "ended with status 1") in how[rank][0]


@pytest.mark.parametrize("hosts", [False, True])
@pytest.mark.parametrize(
    ("ends", "code"),
    [
        (("kill -KILL $$", "exit 0"), 0),
        (("exit 137", "exit 0"), 0),
        (("exit 0", "exit 3"), 3),
        (("exit 200", "kill -KILL $$"), 200),
        (("kill -TERM $$", "kill -TERM $$"), 143),
    ],
)
def test_exit_status_with_keep_going(tmp_path: Path, ends: tuple[str, str], code: int, hosts: bool) -> None:
    file = ["--hostfile", hosts_file(tmp_path, "localhost slots=2\n")]
    run = [sys.executable, "-m", "skyphos.cli", "run", "--keep-going", *(file if hosts else ["-n", "2"])]
    shell = f"if [ $SKYPHOS_RANK = 0 ]; then {ends[0]}; else {ends[1]}; fi"
    done = subprocess.run([*run, "sh", "-c", shell], capture_output=True, timeout=LIMIT_S, check=False)
    assert done.returncode == code, done.stderr
    assert done.stderr.count(b"skyphos: rank") == sum(end != "exit 0" for end in ends), done.stderr


def test_output_without_a_line_end_is_not_mixed_with_other_ranks(start: Launcher, tmp_path: Path) -> None:
    options = ["--hostfile", hosts_file(tmp_path, "localhost slots=2\n"), "--no-prefix", "--keep-going"]
    code, out, err = finish(
        start("import os, signal; os.write(1, b'x'); os.kill(os.getpid(), signal.SIGKILL)", *options)
    )
    assert (code, out) == (137, ["xx"]) and len(err) == 2


def test_a_host_that_is_lost_does_not_end_the_others(start: Launcher, tmp_path: Path, fake_ssh: str) -> None:
    script = """
        import os, signal
        rank = os.environ["SKYPHOS_RANK"]
        if rank == "2":
            os.kill(os.getppid(), signal.SIGKILL)  # the agent, with which its ranks end
        if rank in "23":
            signal.pause()
        print("done")
    """
    code, out, err = finish(start(script, "--keep-going", *host_options(tmp_path, fake_ssh)))
    assert (code, out) == (0, ["[0] done", "[1] done"])
    assert len(err) == 1 and "skyphos: ranks 2, 3 on two: lost; the connection was killed by SIGKILL" in err[0]


def test_a_host_that_cannot_start_its_ranks_ends_the_group(start: Launcher, tmp_path: Path, fake_ssh: str) -> None:
    ssh = tmp_path / "half"
    ssh.write_text(f'#!/bin/sh\n[ "$1" = two ] && exit 255\nexec {fake_ssh} "$@"\n')
    ssh.chmod(0o755)
    code, out, err = finish(start(WAIT, "--keep-going", *host_options(tmp_path, str(ssh))))
    assert code == 255, (code, out, err)
    assert err == ["skyphos: ranks 2, 3 on two: lost; the connection ended with status 255; the others are ended"]


@pytest.mark.parametrize(
    ("text", "line"),
    [("a slots=0", 1), ("\n\nb slots", 3), ("a b", 1), ("a slots=2 x", 1), ("-oProxyCommand=x", 1)],
)
def test_bad_host_files_name_the_line(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(BadInput, match=f"line {line}"):
        launch_hosts.parse_hostfile(hosts_file(tmp_path, text))


def test_host_files_without_hosts(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="names no host"):
        launch_hosts.parse_hostfile(hosts_file(tmp_path, "# nobody\n"))
    with pytest.raises(BadInput, match="No such file"):
        launch_hosts.parse_hostfile(str(tmp_path / "missing"))


def test_placing_ranks() -> None:
    assert launch_hosts.place_ranks([("a", 2), ("b", 3)], None) == [("a", 0, 2), ("b", 2, 3)]
    assert launch_hosts.place_ranks([("a", 2), ("b", 3)], 2) == [("a", 0, 2)]
    for n in (0, 6):
        with pytest.raises(BadInput, match="slots for 1 to 5"):
            launch_hosts.place_ranks([("a", 2), ("b", 3)], n)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"n": "2"}, "n must be a whole number"),
        ({"n": 1.5}, "n must be a whole number"),
        ({"n": 0}, "at least one rank"),
        ({"n": 1, "grace_s": "long"}, "grace_s must be a number"),
        ({"n": 1, "grace_s": float("nan")}, "grace_s must be a number"),
        ({"n": 1, "grace_s": -1}, "grace_s must be at least 0"),
        ({"n": 1, "env": {"A": 1}}, "must be text"),
        ({"n": 1, "command": [sys.executable, "a\0b"]}, "must be text"),
    ],
)
def test_arguments_of_run_local(options: dict, why: str) -> None:
    given = {"command": [sys.executable, "-c", "pass"]} | options
    with pytest.raises(BadInput, match=why):
        launch.run_local(given.pop("command"), given.pop("n"), **given)
    assert launch.run_local([sys.executable, "-c", "pass"], 1.0, grace_s=1) == 0  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="n must be a whole number"):
        launch_hosts.place_ranks([("a", 4)], "2")  # type: ignore[arg-type]
    assert launch_hosts.place_ranks([("a", 4)], 2.0) == [("a", 0, 2)]  # type: ignore[arg-type]
