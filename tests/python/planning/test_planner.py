"""Predictions of an allreduce's time and bytes, checked against counts."""

from __future__ import annotations

import math
import pathlib
from dataclasses import replace

import numpy as np
import pytest

import skyphos as sky
from conftest import on_all
from skyphos.planning import Profile, greedy_degrees, predict_allreduce, union_entries

NETWORK = Profile.network(1e9)


def test_unions_of_drawn_sets() -> None:
    rng = np.random.default_rng(5)
    n, k = 20_000, 300
    sets = [rng.choice(n, k, replace=False) for _ in range(16)]
    for m in (1, 2, 4, 16):
        drawn = len(np.unique(np.concatenate(sets[:m])))
        (expected,) = union_entries([m], n, k)
        assert abs(drawn - expected) < 4 * math.sqrt(expected)


@pytest.mark.parametrize("ranks", [-1, -0.5, math.nan, math.inf])
def test_a_union_of_an_impossible_number_of_ranks_is_refused(ranks: float) -> None:
    with pytest.raises(sky.BadInput, match="at least 0"):
        union_entries([1, ranks], 100, 5)
    assert union_entries([0, 0.5], 100, 5) == [0.0, pytest.approx(2.53, rel=1e-2)]


def test_a_measured_curve_is_followed() -> None:
    curve = [(1, 100.0), (4, 200.0), (16, 300.0)]
    assert union_entries([1, 4, 16, 64], 1000, 100, curve=curve) == pytest.approx([100, 200, 300, 300])
    # A curve suffices to predict every algorithm.
    found = predict_allreduce(16, 1000, 100, profile=NETWORK, curve=curve)
    assert {p.algorithm for p in found} >= {"recursive_doubling", "ring", "allgather", "butterfly", "dense_ring"}


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 8, 12, 64])
def test_degrees_are_distinct_factorisations_and_the_fastest_is_first(ranks: int) -> None:
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
def test_predicted_bytes_are_the_bytes_sent(algorithm: str, ranks: int) -> None:
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


def test_degrees_of_the_kylix_paper() -> None:
    twitter = {"n": 60_000_000, "entries": 0.21 * 60e6}
    assert greedy_degrees(64, **twitter, min_packet_bytes=5e6) == [8, 4, 2]
    assert greedy_degrees(64, **twitter, min_packet_bytes=2e6) == [16, 4]


@pytest.mark.parametrize(
    "wrong",
    [
        {"ranks": -4},
        {"ranks": 2.5},
        {"n": -1},
        {"n": 2**70},
        {"entries": -5.0},
        {"entries": math.nan},
        {"row_bytes": -4},
        {"alpha": -1.0},
        {"min_packet_bytes": -1.0},
        {"min_packet_bytes": math.inf},
    ],
)
def test_greedy_degrees_refuse_invalid_numbers(wrong: dict[str, float]) -> None:
    good: dict[str, float] = {"ranks": 64, "n": 1000, "entries": 10.0, "min_packet_bytes": 1e6}
    with pytest.raises(sky.BadInput):
        greedy_degrees(**(good | wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [("latency_s", 1e308), ("message_s", 1e20), ("rate", 0), ("rate", 1e-8), ("cores", 1e300), ("fold_s", -1.0)],
)
def test_profile_values_out_of_range(field: str, value: float) -> None:
    with pytest.raises(sky.BadInput, match=f"{field} of a profile must be a number between .* and .*, not "):
        replace(NETWORK, **{field: value})


def test_profile_round_trip(tmp_path: pathlib.Path) -> None:
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
        (NETWORK.to_json().replace("1000000000.0", "true"), "rate"),
        (NETWORK.to_json().replace("1000000000.0", "1" + "0" * 400), "rate of a profile must be .* not 1000"),
        (NETWORK.to_json().replace("1000000000.0", "1" + "0" * 9000), "broken.json"),
        ("[" * 100_000, "broken.json: .* deep"),
        ('{"skyphos_profile": ' + "[" * 900 + "]" * 900 + "}", "broken.json: .* deep"),
    ],
)
def test_invalid_profiles(tmp_path: pathlib.Path, text: str, word: str) -> None:
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
        {"curve": [(-1, 10.0), (1, 20.0)]},
        {"curve": [(0, 10.0), (2, 20.0)]},
        {"curve": [(1, 10.0, 3)]},
        {"curve": 5},
        {"ranks": 2.5},
        {"ranks": 2**40},
        {"ranks": -1},
        {"ranks": "4"},
        {"n": 1e6},
        {"n": 2**70},
        {"n": "many"},
        {"entries": "few"},
        {"entries": 10**400},
        {"row_bytes": 10**30},
        {"alpha": "steep"},
    ],
)
def test_numbers_that_make_no_sense(arguments: dict[str, object]) -> None:
    good: dict[str, object] = {"ranks": 4, "n": 1_000_000, "entries": 10.0, "profile": NETWORK}
    with pytest.raises(sky.BadInput):
        predict_allreduce(**(good | arguments))  # type: ignore[arg-type]
