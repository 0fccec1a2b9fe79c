"""The profile with which a group starts: its file, the errors in it, and the groups that use it."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import skyphos as sky
from conftest import Processes, on_all
from skyphos.cli.plan import command as plan_command
from skyphos.pages.probe import render
from skyphos.planning import Profile
from skyphos.planning.profile_choice import default_path, fit, read
from skyphos.planning.profile_file import Host, Measured

HERE = os.uname().nodename


# The file.


def test_a_file_is_read_as_it_was_written(probed: Measured, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(probed.to_json())
    again = Measured.load(path)
    assert again.to_json() == probed.to_json() and again.profile == probed.profile
    assert Profile.load(str(path)) == probed.profile


def damaged(probed: Measured, place: list[Any], value: Any) -> str:
    """The file's text with ``value`` at ``place``, or without that part if ``value`` is None."""
    content = json.loads(probed.to_json())
    part = content
    for key in place[:-1]:
        part = part[key]
    if value is None:
        del part[place[-1]]
    else:
        part[place[-1]] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (["profile", "rate"], -1, "rate"),
        (["profile", "latency_s"], None, "lacks latency_s"),
        (["profile", "speed"], 3, "speed"),
        (["profile"], [1], "no part named profile"),
        (["loggp", "g_s"], "fast", "loggp.g_s"),
        (["loggp"], None, "loggp is missing"),
        (["hosts", 0, "ranks"], [0, 1], "ranks 0 to 3"),
        (["hosts", 0], 7, r"hosts\[0\]"),
        (["ranks"], 2.5, "ranks must be a whole number"),
        (["topology", "rate", 1, 2], -4, r"topology.rate\[1\]\[2\]"),
        (["topology", "latency_s"], [[1]], "4 rows"),
        (["topology", "racks"], [[0], [1]], "hosts 0 to 0"),
        (["curve"], [], "curve"),
        (["curve", 2, "size"], 1, "ascending"),
        (["machine", "cores"], True, "machine.cores"),
        (["skyphos_profile"], 2, "format 2"),
        (["ranks"], 1e308, "ranks 0 to"),
        (["ranks"], 10**15, "ranks 0 to"),
        (["seconds"], 10**400, "seconds must be a number"),
        (["topology", "rate", 1, 2], 10**400, r"topology.rate\[1\]\[2\]"),
        (["machine"], json.loads("[" * 60 + "]" * 60), "more than 50 deep"),
    ],
)
def test_damage_is_found_and_named(
    probed: Measured, tmp_path: pathlib.Path, place: list[Any], value: Any, words: str
) -> None:
    path = tmp_path / "p.json"
    path.write_text(damaged(probed, place, value))
    with pytest.raises(sky.BadInput, match=words) as error:
        Measured.load(path)
    assert str(path) in str(error.value)


def test_a_file_that_ends_early(probed: Measured, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "p.json"
    text = probed.to_json()
    for end in (0, 1, len(text) // 2, len(text) - 3):
        path.write_text(text[:end])
        with pytest.raises(sky.BadInput, match="line"):
            Measured.load(path)
    with pytest.raises(sky.BadInput, match="No such file"):
        Measured.load(tmp_path / "none.json")


def test_the_plan_command_reads_a_measured_file(probed: Measured, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(probed.to_json())
    result = CliRunner().invoke(
        plan_command, ["--ranks", "8", "--size", "1e6", "--density", "0.01", "--profile", str(path)]
    )
    assert result.exit_code == 0 and "butterfly" in result.output
    path.write_text(damaged(probed, ["profile", "rate"], -1))
    broken = CliRunner().invoke(
        plan_command, ["--ranks", "8", "--size", "1e6", "--density", "0.01", "--profile", str(path)]
    )
    assert isinstance(broken.exception, sky.BadInput)


@pytest.mark.parametrize("ranks", [2, 5, 80])
def test_the_page_of_any_group(probed: Measured, ranks: int) -> None:
    rng = np.random.default_rng(3)
    matrix = rng.uniform(1e-5, 1e-4, (ranks, ranks))
    matrix[rng.random((ranks, ranks)) < 0.2] = np.nan
    hosts = [Host("node<&>", f"10.0.0.{k}", tuple(range(k, ranks, 2))) for k in range(2)]
    topology = replace(probed.topology, racks=[[0], [1]], latency_s=matrix, rate=1 / matrix)
    page = render(replace(probed, ranks=ranks, hosts=hosts, topology=topology))
    assert "node<" not in page and "nan" not in page.lower().replace("nanosecond", "")


# The groups that use it.


SAY = "p = comm.profile\nsay(None if p is None else (p.latency_s, p.rate, p.cores))\n"


def test_rank_0s_profile_is_everyones(probed: Measured, tmp_path: pathlib.Path, processes: Processes) -> None:
    """The files that other ranks see, if any, have no effect."""
    mine, theirs, broken = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "c.json"
    one = replace(probed, hosts=[Host(HERE, "127.0.0.1", (0, 1, 2, 3))])
    mine.write_text(one.to_json())
    theirs.write_text(replace(one, profile=replace(one.profile, latency_s=0.5)).to_json())
    broken.write_text("{")
    places = {0: str(mine), 1: str(theirs), 2: str(broken)}
    code = SAY + (
        "half = comm.split(comm.rank % 2)\nsay(half.profile == p, comm.dup().profile == p)\n"
        "x = sky.SparseVector(np.arange(30_000) * 7, np.ones(30_000, np.float32), 1_000_000)\n"
        "y, how = comm.allreduce(x, explain=True)\nsay(how.algorithm, y.nnz, half.allreduce(x).nnz)\n"
    )
    outs = processes.lines(4, code, SKYPHOS_PROFILE=places)
    assert len({out for out, _ in outs}) == 1, outs
    p = one.profile
    assert outs[0][0].splitlines()[:2] == [str((p.latency_s, p.rate, p.cores)), "True True"], outs
    assert all(not err for _, err in outs)


def test_a_profile_of_other_hosts_warns_once(probed: Measured, tmp_path: pathlib.Path, processes: Processes) -> None:
    path = tmp_path / "p.json"
    path.write_text(replace(probed, hosts=[Host("elsewhere", "10.0.0.1", (0, 1, 2, 3))]).to_json())
    everywhere = {rank: str(path) for rank in range(2)}
    outs = processes.lines(2, SAY, SKYPHOS_PROFILE=everywhere)
    assert outs[0][0] == outs[1][0] != "None\n"
    assert "elsewhere" in outs[0][1] and HERE in outs[0][1] and "4 ranks a host" in outs[0][1]
    assert outs[0][1].count("Warning") == 1 and not outs[1][1]
    # If warnings are errors, no rank may wait for another.
    outs = processes.lines(2, SAY, SKYPHOS_PROFILE=everywhere, PYTHONWARNINGS={0: "error"})
    assert "UserWarning" in outs[0][1] and "cannot take its profile" in outs[1][1]


def test_the_warning_is_at_the_line_that_called(probed: Measured, tmp_path: pathlib.Path) -> None:
    """A profile of other hosts and a damaged default profile warn at the script's line that calls ``sky.init``."""
    script, path = tmp_path / "script.py", tmp_path / "p.json"
    begin = "def begin():\n    return sky.init()  # here\n"
    script.write_text(f"import skyphos as sky\n\n\n{begin}\n\nif __name__ == '__main__':\n    begin()\n")
    path.write_text(replace(probed, hosts=[Host("elsewhere", "10.0.0.1", (0, 1, 2, 3))]).to_json())
    own = tmp_path / "skyphos" / "profile.json"
    own.parent.mkdir()
    own.write_text("{")
    for setting, words in (({"SKYPHOS_PROFILE": str(path)}, "another group"), ({}, "not used: ")):
        done = subprocess.run(
            [sys.executable, "-m", "skyphos.cli", "run", "-n", "2", "--no-prefix", str(script)],
            env=os.environ | {"XDG_CONFIG_HOME": str(tmp_path)} | setting,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert f"{script}:5: UserWarning: " in done.stderr and words in done.stderr, done.stderr
        assert "return sky.init()  # here" in done.stderr


def test_a_group_of_one_checks_its_settings(
    probed: Measured, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = str(tmp_path / "nofile.json")
    for settings, words in (
        ({"profile": absent}, "nofile.json: No such file"),
        ({"profile": 5}, "profile must be a path"),
        ({"topology": 5}, "topology must be a path"),
        ({"topology": sky.Topology.of(["a", "b"])}, "the topology has 2 ranks, but this group has 1"),
        ({"heartbeat": 0.5}, "heartbeat"),
        ({"congestion_control": "none such"}, "congestion_control"),
    ):
        with pytest.raises(sky.BadInput, match=words):
            sky.init(**settings)  # type: ignore[arg-type]
    for name, value in (("SKYPHOS_ADAPT", "x"), ("SKYPHOS_PROFILE", absent), ("SKYPHOS_TOPOLOGY", absent)):
        with monkeypatch.context() as context:
            context.setenv(name, value)
            with pytest.raises(sky.BadInput, match=r"nofile\.json|SKYPHOS_ADAPT"):
                sky.init()
    mine = Profile.network(1e6)
    with sky.init(profile=mine, adapt=False, topology=sky.Topology.of(["a"]), heartbeat=3.0) as comm:
        assert (comm.profile, comm.adapts, comm.topology.size) == (mine, False, 1)
        assert comm.allreduce(np.ones(2)).tolist() == [1.0, 1.0]
    with sky.init() as comm:
        assert comm.profile is None and comm.adapts


def test_a_damaged_profile_fails_all_ranks(tmp_path: pathlib.Path, processes: Processes) -> None:
    path = tmp_path / "p.json"
    path.write_text('{"skyphos_profile": 1, "profile": {}}')
    for _, err in processes.lines(3, SAY, SKYPHOS_PROFILE={rank: str(path) for rank in range(3)}):
        assert "BadInput" in err and str(path) in err and "latency_s" in err
    # Files of ranks other than 0 do not count.
    for out, err in processes.lines(2, SAY, SKYPHOS_PROFILE={1: str(path)}):
        assert (out, err) == ("None\n", "")


def test_the_users_own_profile_is_for_these_hosts(
    probed: Measured, tmp_path: pathlib.Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    own = pathlib.Path(default_path())
    own.parent.mkdir()
    for name, taken in ((HERE, True), ("elsewhere", False)):
        own.write_text(replace(probed, hosts=[Host(name, "127.0.0.1", (0, 1, 2, 3))]).to_json())
        for out, err in processes.lines(2, SAY):
            assert ((out != "None\n"), err) == (taken, "")
    for text in ("{", "[" * 100_000, damaged(probed, ["ranks"], 1e308), damaged(probed, ["hosts"], []), "\0"):
        own.write_text(text)
        outs = processes.lines(2, SAY)
        assert [out for out, _ in outs] == ["None\n"] * 2 and "not used" in outs[0][1]
    own.write_text(replace(probed, hosts=[Host(HERE, "127.0.0.1", (0, 1, 2, 3))]).to_json())
    assert all(out == "None\n" for out, _ in processes.lines(2, SAY, SKYPHOS_PROFILE={0: "none"}))


def test_a_profile_as_an_argument(processes: Processes) -> None:
    code = (
        "from skyphos.planning import Profile\nimport socket\n"
        "port = comm.allgather(np.array([socket.create_server(('127.0.0.1', 0)).getsockname()[1]]))[0, 0]\n"
        "rank = comm.rank\ncomm.close()\n"
        "mine = Profile.network(1e6) if rank == 0 else Profile.network(2e6)\n"
        "comm = sky.init(rank=rank, world_size=2, rendezvous=f'127.0.0.1:{port}', profile=mine)\n"
        "say(comm.profile.rate, comm.dup().profile.rate)\n"
    )
    assert processes.lines(2, code) == [("1000000.0 1000000.0\n", "")] * 2
    with pytest.raises(sky.BadInput, match="path or a"):
        read(7)  # type: ignore[arg-type]
    assert on_all(2, lambda comm: comm.profile) == [None, None]


def test_a_profile_is_adapted_to_another_group(probed: Measured) -> None:
    measured = replace(probed, hosts=[Host("a", "1", (0, 1)), Host("b", "2", (2, 3))])
    same = fit(measured, [("a", "9"), ("a", "9"), ("b", "8"), ("b", "8")], 4)
    assert same.differences == () and same.profile == measured.profile  # addresses may change
    fewer = fit(measured, [("a", "1"), ("b", "2")], 4)
    assert "2 ranks a host" in fewer.differences[0] and fewer.profile.cores == 1.0
    assert (
        measured.profile.rate <= fewer.profile.rate <= 2 * measured.profile.rate
        or fewer.profile.rate <= 1 / measured.loggp.G_s
    )
    other = fit(measured, [("a", "1"), ("a", "1"), ("c", "3"), ("c", "3")], 1)
    assert "a, b" in other.differences[0] and "a, c" in other.differences[0]
    assert (other.profile.rate, other.profile.encode_s) == (measured.profile.rate, measured.profile.encode_s)
    one = fit(measured, [("a", "1")] * 4, 2)
    assert one.profile.rate == Profile.one_host(4, 2).rate and one.profile.encode_s == measured.profile.encode_s


def test_rank_0_decides_whether_auto_learns_from_calls(processes: Processes) -> None:
    code = (
        "x = sky.SparseVector(np.arange(30_000) * 7, np.ones(30_000, np.float32), 1_000_000)\n"
        "hows = [comm.allreduce(x, explain=True)[1] for _ in range(40)]\n"
        "say(comm.adapts, any(how.tried for how in hows), len({how.predicted for how in hows}) == 1)\n"
    )
    for adapt, want in (({}, "True True False"), ({1: "0", 2: "0"}, "True True False"), ({0: "0"}, "False False True")):
        outs = processes.lines(3, code, SKYPHOS_ADAPT=adapt)
        assert outs == [(want + "\n", "")] * 3, outs
    for _, err in processes.lines(2, code, SKYPHOS_ADAPT={0: "maybe"}):
        assert "BadInput" in err and "SKYPHOS_ADAPT" in err and "maybe" in err
