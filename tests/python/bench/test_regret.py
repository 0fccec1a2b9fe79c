"""Scores of the sweep of `auto` against named choices."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))

from regret.__main__ import main
from regret.cases import DENSITIES, KINDS, RANKS, SIZES, Case, cases, inputs
from regret.score import score, summary
from regret.sweep import Measured

CASE = Case(8, 1 << 16, 0.01, "uniform")


def test_the_best_is_picked_on_odd_iterations_and_compared_on_even_ones() -> None:
    times = {
        "auto": [4.0, 9.0, 4.0, 9.0],
        "ring": [3.0, 1.0, 3.0, 1.0],  # the best on odd ones, where it was lucky
        "allgather": [2.0, 5.0, 2.0, 5.0],
        "dense": [3.9, 0.1, 3.9, 0.1],  # for dense arrays: no choice for a sparse vector
    }
    one = score(Measured(CASE, "host", times, "allgather"))
    assert (one.best, one.best_s, one.auto_s, one.dense_s) == ("ring", 3.0, 4.0, 3.9)
    assert one.regret == pytest.approx(4 / 3) and not one.beaten_by_dense
    slow = score(Measured(CASE, "host", times | {"auto": [4.2] * 4}, "allgather"))
    assert slow.beaten_by_dense
    whole = summary([one, slow])
    assert (whole.cases, whole.over_30_percent, whole.beaten_by_dense) == (2, 2, 1)
    assert whole.worst is slow and whole.mean == pytest.approx((4 / 3 * 1.4) ** 0.5)


def test_a_dropped_dense_contender_counts_with_the_time_of_its_first_calls() -> None:
    measured = Measured(
        CASE, "host", {"auto": [1.0] * 4, "ring": [1.0] * 4}, "ring", hopeless={"dense": 9.0, "gloo": 7.0}
    )
    assert score(measured).dense_s == 7.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("density", DENSITIES)
def test_inputs_have_the_density_that_was_asked_for(kind: str, density: float) -> None:
    held = inputs(Case(4, 1 << 16, density, kind))
    count = np.mean([len(one.values) for one in held])
    assert abs(count / max(1, density * (1 << 16)) - 1) <= max(0.1, 3 / max(1, density * (1 << 16)) ** 0.5)
    for one in held:
        assert one.indices is not None and (np.diff(one.indices) > 0).all() and one.indices[-1] < 1 << 16


def test_every_case_is_swept() -> None:
    assert sum(1 for ranks in RANKS for _ in cases(ranks)) == len(RANKS) * len(SIZES) * len(DENSITIES) * len(KINDS)


def test_a_table_from_stored_results(tmp_path: Path) -> None:
    times = {"auto": [4e-3] * 4, "ring": [2e-3] * 4, "dense_ring": [1e-3] * 4}
    one = {"case": CASE.record(), "place": "host", "times_s": times, "chosen": "ring", "predicted_s": 3e-3}
    (tmp_path / "host.json").write_text(json.dumps({"cases": [one | {"hopeless_s": {"gloo": 9.0}}]}))
    shown = CliRunner().invoke(main, ["--stored", "--place", "host", "--output", str(tmp_path)])
    assert shown.exit_code == 0 and "geometric mean 2.000" in shown.output
    table = (tmp_path / "host.txt").read_text()
    assert CASE.name() in table and "2.00 !" in table and "off by 25%" in table
    assert list(tmp_path.glob("*.part")) == []
    missing = CliRunner().invoke(main, ["--stored", "--place", "250mbit", "--output", str(tmp_path)])
    assert missing.exit_code == 1 and "250mbit.json is not there" in missing.output
