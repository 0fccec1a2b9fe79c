"""Predictions: formulas against counts, and the command that shows them."""

from __future__ import annotations

import json
import math
import pathlib

import numpy as np
import pytest
from click.testing import CliRunner

import skyphos as sky
from conftest import on_all
from skyphos.cli.plan import command
from skyphos.cli.units import parse_rate
from skyphos.planner import Profile, greedy_degrees, predict_allreduce, union_entries

NETWORK = Profile.network(1e9)


def test_unions_of_drawn_sets() -> None:
    rng = np.random.default_rng(5)
    n, k = 20_000, 300
    sets = [rng.choice(n, k, replace=False) for _ in range(16)]
    for m in (1, 2, 4, 16):
        drawn = len(np.unique(np.concatenate(sets[:m])))
        (expected,) = union_entries([m], n, k)
        assert abs(drawn - expected) < 4 * math.sqrt(expected)


def test_a_measured_curve_is_followed() -> None:
    curve = [(1, 100.0), (4, 200.0), (16, 300.0)]
    assert union_entries([1, 4, 16, 64], 1000, 100, curve=curve) == pytest.approx([100, 200, 300, 300])
    # The index space hardly matters to a curve: what follows from it is the same.
    found = predict_allreduce(16, 1000, 100, profile=NETWORK, curve=curve)
    assert {p.algorithm for p in found} >= {"recursive_doubling", "ring", "allgather", "butterfly", "dense_ring"}


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 8, 12, 64])
def test_every_factorisation_is_there_and_the_fastest_is_first(ranks: int) -> None:
    found = predict_allreduce(ranks, 1 << 20, 5000, profile=NETWORK, model="power_law", alpha=1.1)
    seconds = [p.seconds for p in found]
    assert seconds == sorted(seconds) and all(map(math.isfinite, seconds))
    degrees = [p.degrees for p in found if p.algorithm == "butterfly"]
    assert len(degrees) == len(set(degrees))
    assert all(math.prod(d) == ranks for d in degrees)
    for p in found:
        assert p.sent_bytes >= 0 and (ranks > 1 or p.messages == 0)


@pytest.mark.parametrize("algorithm", ["recursive_doubling", "split_allgather", "ring", "allgather", "butterfly"])
@pytest.mark.parametrize("ranks", [4, 7, 8])
def test_bytes_are_those_that_are_sent(algorithm: str, ranks: int) -> None:
    """Predicted and counted bytes of the busiest rank."""
    n, k = 1 << 20, 20_000
    predictions = predict_allreduce(ranks, n, k, profile=NETWORK)
    predicted = next(p.sent_bytes for p in predictions if p.algorithm == algorithm and p.degrees in ((), (ranks,)))

    def body(comm: sky.Comm) -> int:
        indices = np.sort(np.random.default_rng(comm.rank).choice(n, k, replace=False))
        x = sky.SparseVector(indices, np.ones(k, np.float32), n)
        _, how = comm.allreduce(x, algorithm=algorithm, explain=True)
        return how.sent_bytes

    counted = max(on_all(ranks, body))
    assert predicted == pytest.approx(counted, rel=0.15)


def test_the_papers_degrees() -> None:
    twitter = {"n": 60_000_000, "entries": 0.21 * 60e6}
    assert greedy_degrees(64, **twitter, min_packet_bytes=5e6) == [8, 4, 2]
    assert greedy_degrees(64, **twitter, min_packet_bytes=2e6) == [16, 4]


def test_a_profile_is_read_as_it_was_written(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "here.json"
    path.write_text(NETWORK.to_json())
    assert Profile.load(str(path)) == NETWORK


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "no profile"),
        ("[1]", "no profile"),
        ('{"skyphos_profile": 9}', "format 9"),
        ('{"skyphos_profile": 1, "profile": {"rate": 1}}', "no profile"),
        (NETWORK.to_json().replace("1000000000.0", "-1"), "rate"),
        (NETWORK.to_json().replace("1000000000.0", '"fast"'), "rate"),
    ],
)
def test_what_is_no_profile(tmp_path: pathlib.Path, text: str, word: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(sky.BadInput, match=word):
        Profile.load(str(path))
    with pytest.raises(sky.BadInput, match="No such file"):
        Profile.load(str(tmp_path / "nothing.json"))


@pytest.mark.parametrize(
    "arguments",
    [
        {"ranks": 0},
        {"n": 0},
        {"entries": -1.0},
        {"entries": 2e6},
        {"row_bytes": 0},
        {"model": "normal"},
        {"model": "power_law", "alpha": -1.0},
        {"model": "power_law", "alpha": math.nan},
        {"curve": []},
        {"curve": [(2, 10.0), (1, 20.0)]},
    ],
)
def test_numbers_that_make_no_sense(arguments: dict[str, object]) -> None:
    good: dict[str, object] = {"ranks": 4, "n": 1_000_000, "entries": 10.0, "profile": NETWORK}
    with pytest.raises(sky.BadInput):
        predict_allreduce(**(good | arguments))  # type: ignore[arg-type]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_says_each_choice(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "plan.html"
    said = run(
        "--ranks", "64", "--size", "60e6", "--density", "0.21", "--alpha", "1.1",
        "--min-packet", "5MB", "--chart", str(page),
    )  # fmt: skip
    assert "n = 60,000,000" in said and "degrees 8x4x2" in said and "Lemma 5.2" in said
    assert "down 1" in said and "up 1" in said
    assert page.read_text().startswith("<!doctype html>")
    found = json.loads(run("--ranks", "8", "--size", "16777216", "--entries", "131072", "--rate", "250Mbit", "--json"))
    assert found[0]["seconds"] <= found[-1]["seconds"]
    assert len(run("--ranks", "64", "--size", "1e6", "--entries", "10", "--all").splitlines()) > 32


def test_the_command_plans_degrees(tmp_path: pathlib.Path) -> None:
    """Kylix's Twitter graph: a message that costs a millisecond makes layers of mixed degrees worth it."""
    page = tmp_path / "plan.html"
    twitter = ("--collective", "reduce", "--ranks", "64", "--size", "60e6", "--density", "0.21", "--alpha", "1.1")
    said = run(*twitter, "--message", "5e-3", "--chart", str(page))
    assert "Configured once" in said and "sample" not in said and "Lemma" not in said
    assert "down 2" in said and "down 2" not in run(*twitter, "--message", "0", "--latency", "0")
    assert "<svg" in page.read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--ranks", "4", "--size", "10"),
        ("--ranks", "4", "--size", "10", "--density", "0.1", "--entries", "3"),
        ("--ranks", "4", "--size", "10", "--density", "1.5"),
        ("--ranks", "4", "--size", "10", "--entries", "11"),
        ("--ranks", "4", "--size", "10", "--entries", "1", "--rate", "fast"),
        ("--ranks", "4", "--size", "10", "--entries", "1", "--rate", "0Gbit"),
        ("--ranks", "4", "--size", "10", "--entries", "1", "--profile", "/nowhere/profile.json"),
        ("--ranks", "4", "--size", "10", "--entries", "1", "--latency", "nan"),
    ],
)
def test_bad_options(arguments: tuple[str, ...]) -> None:
    with pytest.raises(sky.BadInput):
        CliRunner().invoke(command, arguments, catch_exceptions=False)


def test_rates() -> None:
    assert parse_rate("1 gbit/s") == 125e6
    for text in ("", "10", "Gbit", "1..2Gbit", "-1Gbit"):
        with pytest.raises(sky.BadInput):
            parse_rate(text)
