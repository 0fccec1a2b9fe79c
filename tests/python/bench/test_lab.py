"""The lab: its floor and its oracle by plain arithmetic, its scenarios, and a tiny cluster with real processes."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"
sys.path.insert(0, str(BENCH))
pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli", reason="Python 3.10 does not read TOML")

from lab import data, floor, flows, link, oracle, scenario, summary  # noqa: E402
from lab.cluster import Cluster, unavailable  # noqa: E402
from lab.contenders import CONTENDERS, make  # noqa: E402

LIMIT_S = 120
needs_cluster = pytest.mark.skipif(unavailable() is not None, reason=f"no cluster here: {unavailable()}")


@pytest.mark.parametrize(("n", "k"), [(10, 0), (10, 3), (10, 10), (1000, 7), (1 << 24, 5), (1 << 50, 3)])
def test_log2_choose_against_exact_integers(n: int, k: int) -> None:
    assert float(floor.log2_choose(n, k)) == pytest.approx(math.log2(math.comb(n, k)), rel=1e-9, abs=1e-6)


def test_a_set_never_takes_more_than_its_bits_or_the_dense_vector() -> None:
    rng = np.random.default_rng(1)
    spread = np.sort(rng.choice(1 << 16, 500, replace=False))
    assert floor.index_bits(spread, 1 << 16) == pytest.approx(math.log2(math.comb(1 << 16, 500)))
    crowded = np.arange(500)
    assert floor.index_bits(crowded, 1 << 16) < 0.3 * math.log2(math.comb(1 << 16, 500))
    assert floor.set_bytes(np.arange(1000), 1000, 4) == 4000
    assert floor.set_bytes(np.arange(0), 1000, 4) == 0


@pytest.mark.parametrize("n", [1, 15, 16, 17, 1000, 65_537])
def test_index_bits_of_any_range(n: int) -> None:
    for count in {0, 1, n // 2, n}:
        bits = floor.index_bits(np.arange(count), n)
        assert 0 <= bits <= math.log2(math.comb(n, count)) + 1e-6


def test_schedules_of_equal_and_of_disjoint_sets() -> None:
    """Equal sets: doubling pays for one set a round. Disjoint sets: no schedule receives less than all values."""
    n, same = 1 << 20, np.arange(0, 1 << 20, 1 << 10)
    one = floor.set_bytes(same, n, 8)
    equal = floor.received_bytes([same] * 8, n, 8)
    assert equal["allgather"] == pytest.approx(7 * one)
    assert equal["doubling"] == pytest.approx(3 * one)
    assert equal["scatter_allgather"] == pytest.approx(2 * 7 / 8 * one)
    assert equal["dense"] == pytest.approx(2 * 7 / 8 * n * 8)
    disjoint = floor.received_bytes([same + rank for rank in range(8)], n, 8)
    assert min(disjoint.values()) >= 7 * len(same) * 8
    # Doubling among six ranks takes three rounds, which receive the sets of 1, 2 and 2 ranks.
    assert floor.received_bytes([same] * 6, n, 8)["doubling"] == pytest.approx(3 * one)


def test_the_floor_of_the_main_scenario() -> None:
    """131,072 uniform entries of 2^24 on 8 ranks at 250 Mbit/s: 155 ms directly from every rank, 148 by doubling."""
    wanted = scenario.load("little_overlap")
    sets = [held.sparse()[0] for held in data.make(wanted)]
    bound = summary.limits(wanted, floor.received_bytes(sets, wanted.n, 4))
    assert bound.floor_by == "doubling"
    assert bound.floor_s == pytest.approx(0.1485, rel=0.005)
    assert bound.schedules_s["allgather"] == pytest.approx(0.1552, rel=0.005)
    assert bound.dense_s == pytest.approx(3.929, rel=0.001)


def test_link_arithmetic() -> None:
    assert link.rate_bits("250mbit") == 250e6
    assert link.size_bytes("128k") == 131_072
    assert link.seconds(1448, 1514 * 8) == pytest.approx(1)
    with pytest.raises(ValueError, match="rate"):
        link.rate_bits("fast")


@pytest.mark.parametrize("op", ["sum", "min", "max"])
@pytest.mark.parametrize("kind", [{"kind": "uniform", "nnz": 40}, {"kind": "zipf", "draws": 90}, {"kind": "dense"}])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_the_oracle_knows_right_from_wrong(op: str, kind: dict[str, object], dtype: str) -> None:
    wanted = replace(scenario.load("smoke"), n=200, op=op, data=kind, dtype=dtype)
    inputs = data.make(wanted)
    absent = oracle.identity(op, dtype)
    right = oracle.solve(inputs, op, dtype)
    dense = {"sum": np.add, "min": np.minimum, "max": np.maximum}[op].reduce([d.dense(absent) for d in inputs])
    union = np.unique(np.concatenate([held.sparse()[0] for held in inputs]))
    assert right.fault(dense) is None
    assert right.fault((union, dense[union])) is None
    assert right.fault((union[1:], dense[union][1:]), whole=False) is None
    assert "indices, not" in str(right.fault((union[1:], dense[union][1:])))
    dense[union[3]] += 1
    assert "1 values are wrong" in str(right.fault(dense))
    assert "1 values are wrong" in str(right.fault((union, dense[union])))
    assert "in order" in str(right.fault((union[::-1], dense[union][::-1])))


def test_a_value_where_no_rank_put_one_is_wrong() -> None:
    right = oracle.solve(
        data.make(replace(scenario.load("smoke"), n=1000, data={"kind": "uniform", "nnz": 9})), "sum", "float64"
    )
    dense = np.zeros(1000)
    dense[right.indices] = right.values
    outside = next(i for i in range(1000) if i not in right.indices)
    dense[outside] = 1
    assert "no rank put in" in str(right.fault(dense))
    assert right.indices is not None
    moved = np.sort(np.append(right.indices[1:], outside))
    assert "no rank put in" in str(right.fault((moved, right.values)))


def test_a_recorded_trace(tmp_path: Path) -> None:
    recorded = {}
    for rank in range(3):
        recorded |= {f"indices_{rank}": np.array([5, 1, 5]), f"values_{rank}": np.array([1.0, 2.0, 3.0])}
    np.savez(tmp_path / "trace.npz", **recorded)
    wanted = replace(scenario.load("smoke"), n=9, folder=tmp_path, data={"kind": "trace", "file": "trace.npz"})
    made = data.make(wanted)
    assert [held.sparse()[0].tolist() for held in made] == [[1, 5]] * 3
    assert made[0].values.tolist() == [2.0, 4.0]
    with pytest.raises(scenario.BadScenario, match="do not fit"):
        data.make(replace(wanted, n=5))


def test_the_recorded_gradients() -> None:
    """The committed trace fits its scenario, and is the top-k by bucket of its own settings."""
    wanted = scenario.load("gradients")
    with np.load(scenario.FOLDER / wanted.data["file"]) as found:
        held = {name: found[name] for name in found.files}
    assert held["n"] == wanted.n
    assert held["workers"] == wanted.hosts == sum(name.startswith("indices_") for name in held)
    assert held["loss_last"] < held["loss_first"]
    for rank, made in enumerate(data.make(wanted)):
        indices, values = held[f"indices_{rank}"], held[f"values_{rank}"]
        assert (indices.dtype, values.dtype, indices.shape) == (np.int32, np.float32, values.shape)
        assert np.array_equal(made.sparse()[0], indices)  # ascending, without repeats, below n
        assert np.array_equal(made.values, values)
        assert np.isfinite(values).all() and (values != 0).all()
        assert np.bincount(indices // held["bucket"]).max() == held["k"]


@pytest.mark.parametrize("name", [path.stem for path in scenario.FOLDER.glob("*.toml")])
def test_every_scenario_of_ours_can_be_read(name: str) -> None:
    wanted = scenario.load(name)
    assert set(wanted.contenders) <= set(CONTENDERS)
    for contender in wanted.contenders:
        assert wanted.op in make(contender).ops


def test_errors_of_scenarios(tmp_path: Path) -> None:
    with pytest.raises(scenario.BadScenario, match="ours are"):
        scenario.load("nothing")
    file = tmp_path / "a.toml"
    file.write_text("hosts = 2\nspeed = 3\n")
    with pytest.raises(scenario.BadScenario, match="speed"):
        scenario.load(str(file))
    with pytest.raises(scenario.BadScenario, match="first is dropped"):
        scenario.load("smoke", iterations=1)


def test_an_interval_contains_its_percentile() -> None:
    found = summary.estimate([1.0, 2.0, 3.0, 4.0, 5.0], 50)
    assert found.low is not None and found.high is not None
    assert 1 <= found.low <= found.value == 3 <= found.high <= 5
    assert summary.estimate([1.0], 90) == summary.Estimate(1.0, None, None)


def start(output: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(BENCH / "lab"), "--output", str(output), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def namespaces_of(process: subprocess.Popen[str]) -> list[str]:
    """The network namespaces of a run that exist now."""
    listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
    return [line for line in listed.splitlines() if line.startswith(f"skylab-{process.pid}-")]


@pytest.fixture
def running() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=LIMIT_S)


@needs_cluster
def test_a_tiny_cluster(tmp_path: Path, running: list[subprocess.Popen[str]]) -> None:
    process = start(tmp_path, "smoke")
    running.append(process)
    said, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said
    assert namespaces_of(process) == []
    found = json.loads((tmp_path / "smoke.json").read_text())
    assert {"butterfly_plan", "butterfly_once", "plain_tcp"} <= set(found["times_s"])
    assert [len(times) for times in found["times_s"]["butterfly_once"]] == [2, 2]
    # 16 MB over 100 Mbit/s take 1.4 s, however busy the machine is: the links are limited.
    assert min(map(min, found["times_s"]["plain_tcp"])) > 0.95 * found["limits"]["plain_tcp_s"]


@needs_cluster
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_leaves_nothing(
    tmp_path: Path, running: list[subprocess.Popen[str]], number: signal.Signals
) -> None:
    process = start(tmp_path, "smoke", "--iterations", "10000")
    running.append(process)
    deadline = time.monotonic() + LIMIT_S
    while len(namespaces_of(process)) < 4 and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
    process.send_signal(number)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode != 0
    assert namespaces_of(process) == []
    assert os.listdir(tmp_path) == []


def test_the_lab_is_unavailable_without_root() -> None:
    code = (
        "import os, sys; os.geteuid = lambda: 1000\n"
        f"sys.path.insert(0, {str(BENCH)!r})\n"
        "from lab.cluster import unavailable; print(unavailable())"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=LIMIT_S)
    assert "needs root" in said.stdout


def test_time_outs_are_counted_from_an_earlier_reading() -> None:
    """After the reading two first time-outs, and two that follow another one and wait at least twice as long."""
    before = flows._Waits(unacknowledged=0, retransmitted=5, time_outs=1, recoveries=1, time_out_s=0.2)
    after = flows._Waits(unacknowledged=0, retransmitted=9, time_outs=5, recoveries=3, time_out_s=0.3)
    assert after.stood_still_s(before) == pytest.approx(0.2 * (2 + 2 * 2))
    assert before.stood_still_s(before) == 0


@needs_cluster
def test_flows_between_hosts() -> None:
    with Cluster(3, "100mbit", "2k", 64 << 10) as cluster, flows.Flows(cluster, 2, "plain") as running:
        turn = running.turn([[], [0], [0]], 2, 100_000)
    assert turn.seconds >= 0.9 * link.seconds(4 * 100_000, 100e6)
    assert len(turn.late_s) == 4
    assert min(turn.late_s) >= 0
