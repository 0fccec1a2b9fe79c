"""``skyphos probe``: its measurements, its file, the use of the file, and errors."""

from __future__ import annotations

import json
import math
import os
import pathlib
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import skyphos as sky
from conftest import Processes, on_all
from skyphos.planning import Profile
from skyphos.planning.loggp import fit_line, half_rate_bytes, incast_share
from skyphos.planning.profile_choice import default_path
from skyphos.planning.profile_file import Host, Measured
from skyphos.planning.topology import cluster, racks
from skyphos.probe import probe
from skyphos.probe.pairings import incast_flows, neighbours, pair_rounds, tournament
from skyphos.probe.summary import summary

HERE = os.uname().nodename


def cli(*arguments: str, **settings: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "skyphos.cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings)


def finish(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, (out, err)
    return out, err


# What is measured.


def test_the_command_measures_writes_and_draws(tmp_path: pathlib.Path) -> None:
    path, page = tmp_path / "here.json", tmp_path / "here.html"
    out, err = finish(cli("probe", "-n", "3", "--seconds", "1", "--output", str(path), "--chart", str(page)))
    assert "LogGP" in out and str(path) in out and "message sizes" in err
    assert sorted(os.listdir(tmp_path)) == ["here.html", "here.json"]  # and nothing temporary
    found = Measured.load(path)
    assert (found.ranks, found.transport, [host.name for host in found.hosts]) == (3, "tcp", [HERE])
    assert found.topology.racks == [[0]]
    # Plausible, whatever else the machine does: large messages take longer, and no network is faster than memory.
    times = {point.size: point.seconds for point in found.curve}
    assert times[max(times)] > times[1] > 0
    assert all(point.low_s <= point.seconds <= point.high_s for point in found.curve)
    assert 1 < found.half_rate_bytes < max(times)
    pairs = ~np.eye(3, dtype=bool)
    default = Profile.network(1e9)
    assert found.profile.call_s > 0 and found.profile.message_s == 0, "ranks of one host pass no link"
    assert 0 < found.profile.set_join_s < 1e-6 and found.profile.set_join_s != default.set_join_s
    assert 0 < found.profile.gather_s + found.profile.row_byte_s < 1e-6
    assert (found.topology.latency_s[pairs] > 0).all() and (found.topology.rate[pairs] > 1e6).all()
    assert np.isnan(found.topology.latency_s.diagonal()).all()
    assert [senders for senders, _ in found.incast] == [1, 2]
    assert 1e6 < found.profile.rate < 1e12 and 0 < found.profile.cores <= 1
    assert all(number >= 0 and math.isfinite(number) for number in vars(found.profile).values())
    text = page.read_text()
    assert text.startswith("<!doctype html>") and "http://" not in text and "Kylix" in text


def test_the_command_joins_ranks_that_a_launcher_started(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "p.json"
    probing = ["run", "-n", "2", "--no-prefix", "skyphos", "probe", "--output", str(path)]
    out, _ = finish(cli(*probing, "--seconds", "2", "--json"))
    assert out == path.read_text() and Measured.from_text(out, "stdout").ranks == 2
    place = {"SKYPHOS_RANK": "0", "SKYPHOS_WORLD_SIZE": "2", "SKYPHOS_RENDEZVOUS": "127.0.0.1:1"}
    for more, word in ((["-n", "3"], "leave -n out"), (["--hostfile", "h"], "leave it out")):
        _, err = finish(cli("probe", "--output", str(path), *more, env=os.environ | place), 2)
        assert word in err


def test_hosts_of_a_file(tmp_path: pathlib.Path) -> None:
    hosts, path = tmp_path / "hosts", tmp_path / "p.json"
    hosts.write_text("localhost slots=2\n")
    finish(cli("probe", "--hostfile", str(hosts), "--seconds", "2", "--output", str(path)))
    assert Measured.load(path).ranks == 2


def test_the_default_path_is_in_the_users_configuration(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "deep" / "config"))
    finish(cli("probe", "-n", "2", "--seconds", "2"))
    assert Measured.load(default_path()).ranks == 2
    assert default_path().startswith(str(tmp_path))


# Errors.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "1"], "1 is not in the range"),
        (["-n", "2", "--output", "/nowhere/p.json"], "no folder /nowhere"),
        (["-n", "2", "--output", "p.txt"], "must end in .json"),
        (["-n", "2", "--output", "p.json", "--chart", "p.png"], "must end in .html"),
        (["-n", "2", "--output", "p.json", "--seconds", "0.1"], "0.1 is not in the range"),
        (["--hostfile", "no-such-hosts", "--output", "p.json"], "no-such-hosts: No such file"),
    ],
)
def test_settings_that_cannot_be_used(tmp_path: pathlib.Path, arguments: list[str], words: str) -> None:
    _, err = finish(cli("probe", *arguments, cwd=tmp_path), 2)
    assert words in err and os.listdir(tmp_path) == []


def test_a_killed_rank_is_named(processes: Processes) -> None:
    code = (
        "import os\nfrom skyphos.probe import probe\n"
        "say(os.getpid())\n"
        "steps = []\n"
        "def report(step, share):\n"
        "    steps.append(step)\n"
        "    if len(steps) == 2: say('measures')\n"
        "try: probe(comm, seconds=60, report=report)\n"
        "except sky.PeerLost as e: say('lost', e.rank)\n"
    )
    ranks = processes.start(3, code)
    for rank in ranks:
        assert rank.stdout is not None
        rank.stdout.readline()
        assert rank.stdout.readline() == "measures\n"
    os.kill(ranks[1].pid, signal.SIGKILL)
    for rank in (ranks[0], ranks[2]):
        out, err = rank.communicate(timeout=30)
        assert out.strip() == "lost 1", err


def test_the_command_names_a_killed_rank_and_advises_to_probe_again(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "p.json"
    process = cli("probe", "-n", "3", "--seconds", "60", "--output", str(path), start_new_session=True)
    assert process.stderr is not None
    for words in iter(process.stderr.readline, "message sizes\n"):
        assert words  # an empty line: the command has ended
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True
    )
    os.kill(int(children.stdout.split()[1]), signal.SIGKILL)
    _, err = finish(process, 128 + signal.SIGKILL)
    assert "rank 1" in err and "probe again" in err, err
    assert os.listdir(tmp_path) == []


def test_a_rank_missing_at_the_start_is_named(tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = {"SKYPHOS_RANK": "0", "SKYPHOS_WORLD_SIZE": "2", "SKYPHOS_RENDEZVOUS": f"127.0.0.1:{port}"}
    _, err = finish(cli("probe", "--timeout", "2", "--output", str(tmp_path / "p.json"), env=os.environ | place), 1)
    assert "rank 1" in err and "probe again" in err


def test_a_group_of_one_has_nothing_to_measure() -> None:
    with sky.init() as comm, pytest.raises(sky.BadInput, match="at least two"):
        probe(comm)

    def with_invalid_seconds(comm: sky.Comm) -> None:
        with pytest.raises(sky.BadInput, match="to 3600 seconds"):
            probe(comm, seconds=math.nan)

    on_all(2, with_invalid_seconds)


# Fits, clusters and schedules.


@pytest.mark.parametrize("players", [2, 3, 8, 13])
def test_everyone_meets_everyone_once(players: int) -> None:
    rounds = tournament(range(players))
    assert all(len({rank for pair in pairs for rank in pair}) == 2 * len(pairs) for pairs in rounds)
    met = sorted(pair for pairs in rounds for pair in pairs)
    assert met == [(a, b) for a in range(players) for b in range(a + 1, players)]


def test_large_groups_are_sampled() -> None:
    hosts = [list(range(8 * k, 8 * k + 8)) for k in range(12)]
    rounds = pair_rounds(hosts)
    assert len(rounds) < 40
    assert all(len({rank for pair in pairs for rank in pair}) == 2 * len(pairs) for pairs in rounds)
    met = {pair for pairs in rounds for pair in pairs}
    assert all((8 * a, 8 * b) in met for a in range(12) for b in range(a + 1, 12))  # a pair for every two hosts
    assert all((8 * k, 8 * k + 1) in met for k in range(12))  # and pairs within a host


def test_flows_leave_the_host() -> None:
    hosts = [[0, 1, 2], [3, 4, 5]]
    host_of = {rank: k for k, host in enumerate(hosts) for rank in host}
    assert all(host_of[a] != host_of[b] for a, b in neighbours(hosts))
    assert [len(flows) for flows in incast_flows(hosts)] == [1, 2, 3]
    assert all(host_of[a] == 1 for a, _ in incast_flows(hosts)[-1])


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_racks_are_found_where_there_are_some(noise: float) -> None:
    rng = np.random.default_rng(1)
    rack = np.array([0, 1, 0, 1, 2, 2, 0, 1])
    latency = np.where(rack[:, None] == rack, 20e-6, 60e-6) * rng.uniform(1, 1 + noise, (8, 8))
    hosts = [[k] for k in range(8)]
    flat = np.full((8, 8), 20e-6) * rng.uniform(1, 1 + noise, (8, 8))
    assert racks(hosts, latency, np.ones((8, 8))) == [[0, 2, 6], [1, 3, 7], [4, 5]]
    assert racks(hosts, flat, np.ones((8, 8))) == [list(range(8))]
    # A link that racks share is slow rather than long.
    assert racks(hosts, flat, 1e3 / latency) == [[0, 2, 6], [1, 3, 7], [4, 5]]
    # One pair of hosts that are near each other by chance is no rack.
    flat[1, 2] = flat[2, 1] = 5e-6
    assert racks(hosts, flat, np.ones((8, 8))) == [list(range(8))]


def test_clusters_with_unknown_distances() -> None:
    assert cluster(np.full((3, 3), np.nan)) == [[0], [1], [2]]
    assert cluster(np.zeros((1, 1))) == [[0]]
    assert cluster(np.zeros((4, 4))) == [[0, 1, 2, 3]]


def test_a_host_with_distant_ranks_is_reported(probed: Measured) -> None:
    latency = np.full((4, 4), 2e-5)
    latency[0, 1] = latency[1, 0] = 9e-5
    hosts = [Host("a", "1", (0, 1)), Host("b", "2", (2, 3))]
    measured = replace(probed, hosts=hosts, topology=replace(probed.topology, racks=[[0, 1]], latency_s=latency))
    assert "a: its ranks are farther" in summary(measured) and "b: its ranks" not in summary(measured)


def test_fits() -> None:
    sizes = [2.0**k for k in range(23)]
    times = [50e-6 + s / 1e9 for s in sizes]
    assert half_rate_bytes(sizes, times) == pytest.approx(50e-6 * 1e9, rel=0.05)
    # A shaper's bucket lets some sizes pass faster than a stream.
    assert half_rate_bytes(sizes, times, stream_rate=1e8) < 6e3
    start, slope = fit_line(sizes, times)
    assert (start, slope) == (pytest.approx(50e-6), pytest.approx(1e-9))
    assert fit_line([1, 2, 3], [3.0, 2.0, 1.0])[1] == 0 and fit_line([1, 2, 3], [0.5, 2.0, 3.5])[0] == 0
    assert incast_share([1], [5.0]) == 0 and incast_share([1, 2], [5.0, 6.0]) == 0


def test_rounds_that_differ_are_an_interval(probed: Measured) -> None:
    alike = replace(probed, half_rate_bytes=100e3, half_rate_low_bytes=95e3, half_rate_high_bytes=110e3)
    assert "half of the best rate  at messages of 100 kB\n" in summary(alike)
    differ = replace(alike, half_rate_low_bytes=12e3)
    assert "half of the best rate  at messages of 12.0 kB to 110 kB, as rounds differ\n" in summary(differ)
    assert probed.half_rate_low_bytes <= probed.half_rate_bytes <= probed.half_rate_high_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
@pytest.mark.parametrize(("shared", "said"), [("1", "over shared memory"), ("0", "over tcp")])
def test_the_transport_is_reported(tmp_path: pathlib.Path, shared: str, said: str) -> None:
    env = os.environ | {"SKYPHOS_SHARED_MEMORY": shared}
    out, _ = finish(cli("probe", "-np", "2", "--seconds", "0.5", "--output", str(tmp_path / "p.json"), env=env))
    assert f"2 on 1 host, {said}\n" in out
    assert Measured.load(tmp_path / "p.json").shared_memory == (said != "over tcp")


def test_profiles_of_earlier_versions_are_read(probed: Measured, tmp_path: pathlib.Path) -> None:
    content = json.loads(probed.to_json())
    for name in ("half_rate_low_bytes", "half_rate_high_bytes", "shared_memory"):
        del content[name]
    (tmp_path / "old.json").write_text(json.dumps(content))
    read = Measured.load(tmp_path / "old.json")
    assert read.half_rate_low_bytes == read.half_rate_high_bytes == probed.half_rate_bytes and not read.shared_memory
    content["shared_memory"] = "yes"
    (tmp_path / "old.json").write_text(json.dumps(content))
    with pytest.raises(sky.BadInput, match="shared_memory must be true or false"):
        Measured.load(tmp_path / "old.json")
