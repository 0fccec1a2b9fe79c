"""Topologies from arguments, files or measurements, and groups that use them."""

from __future__ import annotations

import os
import pathlib
import re
from dataclasses import replace

import pytest

import skyphos as sky
from conftest import Processes, on_all
from skyphos.planning.profile_choice import host_and_address
from skyphos.planning.profile_file import Host, Measured

HERE = [("n1", "10.0.0.1"), ("n2", "10.0.0.2"), ("n1", "10.0.0.1"), ("n3", "10.0.0.3")]


def test_from_lists_of_names() -> None:
    topology = sky.Topology.of(["a", "b", "a", "c"], racks=["x", "y", "x", "y"])
    assert (topology.hosts, topology.racks) == ([[0, 2], [1], [3]], [[0], [1, 2]])
    assert topology.numbers() == ([0, 1, 0, 2], [0, 1, 0, 1])
    assert topology.size == 4 and repr(topology) == "Topology(4 ranks on 3 hosts in 2 racks)"
    assert sky.Topology.of(["a", "b"]).racks == [[0, 1]]
    for hosts, racks, words in (
        (["a", "a"], ["x", "y"], "host a is in more than one rack: x, y"),
        (["a", "b"], ["x"], "2 hosts and 1 racks"),
        ([], None, "at least one rank"),
    ):
        with pytest.raises(sky.BadInput, match=words):
            sky.Topology.of(hosts, racks)
    with pytest.raises(sky.BadInput, match="ranks 0 to 1 once"):
        sky.Topology([[0], [2]], [[0, 1]]).numbers()
    with pytest.raises(sky.BadInput, match="hosts 0 to 1 once"):
        sky.Topology([[0], [1]], [[0]]).numbers()


def test_from_a_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "racks"
    path.write_text("# our hosts\nn1 left\n10.0.0.2 right  # by address\n\nn3 left\nn9 far\n")
    topology = sky.Topology.load(path, HERE)
    assert topology.numbers() == ([0, 1, 0, 2], [0, 1, 0, 0])
    for text, words in (
        ("n1 left\nn2 right\n", "rank 3 runs on n3"),
        ("n1\n", "racks:1: a line must be a host and its rack"),
        ("n1 left\nn1 right\n", "racks:2: n1 is in rack left already"),
        ("n1 left\nn2 right\nn3 left\n10.0.0.2 left\n", r"n2 \(10.0.0.2\), which is in rack right and in rack left"),
        ("{}", "racks"),
    ):
        path.write_text(text)
        with pytest.raises(sky.BadInput, match=words):
            sky.Topology.load(path, HERE)
    with pytest.raises(sky.BadInput, match="nowhere"):
        sky.Topology.load(tmp_path / "nowhere", HERE)


def test_racks_by_a_pattern_of_host_names() -> None:
    hosts = [(f"r{rack}n{node}.site", f"10.{rack}.{node}.1") for node in range(2) for rack in (1, 12)] * 2
    for pattern in (r"^r(\d+)n", r"^r\d+", re.compile(r"(r)(\d+)")):
        found = sky.Topology.by_names(pattern, hosts)
        assert found.numbers() == ([0, 1, 2, 3] * 2, [0, 1, 0, 1] * 2)
    with pytest.raises(sky.BadInput, match=r"does not match that of rank 2's host, r1n1\.site \(10\.1\.1\.1\)"):
        sky.Topology.by_names(r"n0|r12", hosts)
    with pytest.raises(sky.BadInput, match="is not a regular expression"):
        sky.Topology.by_names("(", hosts)


def test_names_of_this_host(processes: Processes) -> None:
    here = os.uname().nodename
    one = "Topology(2 ranks on 1 host in 1 rack)"
    for rack in (here, "."):
        outs = processes.lines(2, "say(comm.topology)\n", SKYPHOS_TOPOLOGY={0: f"names:{rack}"})
        assert outs == [(f"{one}\n", "")] * 2
    outs = processes.lines(2, "say(comm.topology)\n", options=f"topology=__import__('re').compile({here!r})")
    assert outs == [(f"{one}\n", "")] * 2
    for _, err in processes.lines(2, "say(comm.topology)\n", SKYPHOS_TOPOLOGY={0: "names:nowhere"}):
        assert "BadInput" in err and "does not match that of rank 0's host" in err


def test_from_a_probe(probed: Measured, tmp_path: pathlib.Path) -> None:
    hosts = [Host(name, f"10.0.0.{k}", (k,)) for k, name in enumerate(["n1", "n2", "n3", "n4"])]
    path = tmp_path / "profile.json"
    racks = replace(probed.topology, racks=[[0, 2], [1, 3]])
    path.write_text(replace(probed, hosts=hosts, topology=racks).to_json())
    assert sky.Topology.load(path, HERE).numbers() == ([0, 1, 0, 2], [0, 1, 0, 0])


def test_a_group_starts_with_the_topology_of_rank_0(tmp_path: pathlib.Path, processes: Processes) -> None:
    path = tmp_path / "racks"
    here = os.uname().nodename
    path.write_text(f"{here} only\n")
    code = (
        "x = sky.SparseVector(np.arange(comm.rank, 3000, 3), np.ones(1000, np.float32), 3000)\n"
        "y = comm.allreduce(x, algorithm='butterfly', degrees=[3])\n"
        "say(comm.topology, float(y.to_dense().sum()), comm.dup().topology)\n"
    )
    one = "Topology(3 ranks on 1 host in 1 rack)"
    assert processes.lines(3, code, SKYPHOS_TOPOLOGY={0: str(path)}) == [(f"{one} 3000.0 {one}\n", "")] * 3
    path.write_text("elsewhere only\n")
    for _, err in processes.lines(3, code, SKYPHOS_TOPOLOGY={0: str(path)}):
        assert "BadInput" in err and str(path) in err and "rank 0 runs on" in err
    outs = processes.lines(2, "say(comm.topology)\n", SKYPHOS_TOPOLOGY={0: "none", 1: str(path)})
    assert outs == [("Topology(2 ranks on 1 host in 1 rack)\n", "")] * 2


def test_racks_come_from_a_profile_of_these_hosts(
    probed: Measured, tmp_path: pathlib.Path, processes: Processes
) -> None:
    name, _ = host_and_address("")
    path = tmp_path / "profile.json"
    hosts = [Host(name, "127.0.0.1", (0, 1)), Host("other", "127.0.0.2", (2, 3))]
    apart = replace(probed, hosts=hosts, topology=replace(probed.topology, racks=[[0], [1]]))
    path.write_text(apart.to_json())
    out = processes.lines(2, "say(comm.topology)\n", SKYPHOS_PROFILE={0: str(path)})
    assert [words for words, _ in out] == ["Topology(2 ranks on 1 host in 1 rack)\n"] * 2


def test_as_an_argument(processes: Processes) -> None:
    code = (
        "import socket\n"
        "port = comm.allgather(np.array([socket.create_server(('127.0.0.1', 0)).getsockname()[1]]))[0, 0]\n"
        "rank = comm.rank\ncomm.close()\n"
        "where = dict(rank=rank, world_size=4, rendezvous=f'127.0.0.1:{port}')\n"
        "if TOO_FEW:\n"
        "    sky.init(**where, topology=sky.Topology.of(['a', 'b']))\n"
        "comm = sky.init(**where, topology=sky.Topology.of(['a', 'b', 'a', 'b'], ['x', 'y', 'x', 'y']))\n"
        "x = sky.SparseVector(np.arange(rank, 4000, 4), np.ones(1000, np.float32), 4000)\n"
        "y = comm.allreduce(x, algorithm='butterfly', degrees=[2, 2])\n"
        "say(comm.topology.hosts, comm.topology.racks, float(y.to_dense().sum()))\n"
    )
    good = processes.lines(4, code.replace("TOO_FEW", "False"))
    assert good == [("[[0, 2], [1, 3]] [[0], [1]] 4000.0\n", "")] * 4
    for _, err in processes.lines(4, code.replace("TOO_FEW", "True")):
        assert "the topology has 2 ranks, but this group has 4" in err
    assert [topology.size for topology in on_all(2, lambda comm: comm.topology)] == [2, 2]
