"""The figures of the papers: formulas checked by hand, and the simulated figures measured in short and drawn."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from itertools import combinations, permutations, product
from pathlib import Path

import numpy as np
import pytest

from skyphos.planning import Profile

BENCH = Path(__file__).resolve().parents[3] / "bench"
sys.path.insert(0, str(BENCH))
pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli", reason="Python 3.10 does not read TOML")

from figures import (  # noqa: E402
    graphs,
    incast,
    kylix_fig2,
    kylix_fig4,
    kylix_fig6,
    kylix_replicas,
    lateness,
    processor,
    sparcml_fig3,
    sparcml_fig7,
    sparse_allreduce_fig7,
    style,
    twister,
    twister_fig6,
)
from figures.__main__ import NAMES  # noqa: E402

#: Figures that need the lab, or a build of Rust examples.
NOT_SIMULATED = (
    "kylix_fig2",
    "kylix_table1",
    "kylix_replicas",
    "twister_fig7",
    "twister_lab",
    "twister_table9",
    "dsop_lab",
)
_PAPERS = ("kylix_", "sparse_allreduce_", "twister_", "dsop_")
SIMULATED = [name for name in NAMES if name.startswith(_PAPERS) and name not in NOT_SIMULATED]
RECORDS = sorted((BENCH.parent / "docs" / "figures").glob("*.json"))
needs_matplotlib = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed: make lab")


@pytest.mark.parametrize(("k", "n", "ranks"), [(1, 4, 2), (2, 4, 3), (2, 5, 2), (3, 3, 2)])
def test_expected_unions_are_those_of_all_choices(k: int, n: int, ranks: int) -> None:
    unions = [len(set().union(*chosen)) for chosen in product(combinations(range(n), k), repeat=ranks)]
    mean = sum(unions) / len(unions)
    assert sparcml_fig7.expected(k, n, ranks) == pytest.approx(mean)
    assert float(sparcml_fig7.papers_expected(k, n, ranks)) == pytest.approx(mean)
    variance = sum((union - mean) ** 2 for union in unions) / len(unions)
    assert sparcml_fig7.deviation(k, n, ranks) == pytest.approx(variance**0.5, abs=1e-6)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_failures_until_a_rank_is_lost_in_all_orders(ranks: int) -> None:
    orders = list(permutations(range(2 * ranks)))
    lost = [next(k for k in range(1, 2 * ranks + 1) if len({p % ranks for p in order[:k]}) < k) for order in orders]
    assert kylix_replicas.expected(ranks) == pytest.approx(sum(lost) / len(lost))


def test_bytes_of_the_papers_algorithms() -> None:
    """Four ranks, 1,000 indices, one entry each: unions hardly overlap."""
    n, density, ranks = 1000, 0.001, 4
    pairs = {name: sparcml_fig3.theirs(name, n, density, ranks) / 8 for name in ("recursive_doubling",)}
    assert pairs["recursive_doubling"] == pytest.approx(1 + 2, rel=1e-3)
    assert sparcml_fig3.theirs("split_allgather", n, density, ranks) / 8 == pytest.approx(0.75 * 5, rel=2e-3)
    assert sparcml_fig3.theirs("split_allgather_dense", n, density, ranks) == pytest.approx(0.75 * 4008)
    assert sparcml_fig3.theirs("dense_ring", n, density, ranks) == pytest.approx(1.5 * 4000)


def test_the_smallest_efficient_size() -> None:
    """A message of size s takes 1 + s, so s = 1 reaches half of the full rate, to within the interpolation."""
    sizes = [4**i for i in range(-5, 8)]
    rates = [size / (1 + size) for size in sizes]
    assert kylix_fig2.efficient(sizes, rates) == pytest.approx(1, rel=0.1)
    assert kylix_fig2.efficient([8, 16], [1.0, 1.0]) == 8


def test_quartiles() -> None:
    assert style.quartiles([4.0, 1.0, 2.0, 3.0, 5.0]) == style.Quartiles(2, 3, 4, 5)
    assert [style.size_name(size) for size in (64, 2048, 3 << 20)] == ["64 B", "2 KB", "3 MB"]


def test_a_small_measurement() -> None:
    said: list[str] = []
    points = sparcml_fig7.measure(True, said.append)["points"]
    assert len(points) == len(said) * 2
    for point in points:
        assert point["allreduce"] == pytest.approx(point["expected"], rel=0.1)


def test_the_cost_of_a_message_from_kylix_figure_2() -> None:
    """Messages of 0.4 MB reach 30 % of the rate of those of 5 MB."""
    overhead = graphs.message_bytes()
    assert overhead == pytest.approx(1.2727e6, rel=1e-4)
    assert 0.4e6 / (0.4e6 + overhead) == pytest.approx(0.3 * 5e6 / (5e6 + overhead))


def test_all_ordered_factorisations() -> None:
    assert graphs.factorisations(8) == [(8,), (4, 2), (2, 4), (2, 2, 2)]
    assert graphs.factorisations(8, 2) == [(8,), (4, 2), (2, 4)]
    assert len(graphs.factorisations(64)) == 32


def test_bytes_of_layers_are_those_of_the_proposition() -> None:
    """All nodes hold 64 D_0 n values at first, and n D_64 at the bottom, 4 bytes each."""
    first, second, bottom = graphs.layer_bytes(graphs.YAHOO, (16, 4))
    assert first == pytest.approx(64 * 0.035 * 1.4e9 * 4)
    assert first > second > bottom
    assert bottom < 4 * 1.4e9


def test_the_density_curve_is_the_sum() -> None:
    """With four indices and exponent 1: f(λ) = mean of 1 - exp(-λ/r)."""
    reference = kylix_fig4.factor(1.0, 4)
    assert sum(1 - math.exp(-reference / r) for r in range(1, 5)) / 4 == pytest.approx(0.9)
    by_hand = sum(1 - math.exp(-0.2 * reference / r) for r in range(1, 5)) / 4
    assert kylix_fig4.density(0.2, 4, 1.0)[0] == pytest.approx(by_hand, rel=1e-3)


def test_lateness_passes_on_to_neighbours_only() -> None:
    rng = np.random.default_rng(1)
    late, no_delays = np.zeros((2, 3)), np.zeros(1)
    late[0, 1] = 1.0
    assert lateness.pass_layer(late, 1, no_delays, rng).tolist() == [[1, 1, 1], [0, 0, 0]]
    assert lateness.pass_layer(late, 0, no_delays, rng).tolist() == [[0, 1, 0], [0, 1, 0]]
    # Every message is 0.2 s late, so a layer adds 0.2 s, and a reduction passes each layer twice.
    assert lateness.pass_layer(np.zeros((2, 3)), 1, np.full(1, 0.2), rng).tolist() == [[0.2] * 3] * 2
    setting = {"all_to_all": [{"flows": 1, "messages": 4, "late_s": [0.2] * 4}]}
    assert lateness.reduce_s((2, 3), setting, 2) == pytest.approx([0.8, 0.8])


def test_late_messages_come_from_the_nearest_number_of_flows() -> None:
    one, many = ({"flows": f, "messages": 4, "late_s": late} for f, late in ((3, []), (63, [0.2, 0.4])))
    setting = {"all_to_all": [one, many]}
    assert lateness.pool(setting, 7).tolist() == [0, 0, 0, 0]
    assert lateness.pool(setting, 31).tolist() == [0.2, 0.4, 0, 0]
    assert incast.late_share(many) == 0.5


def test_stragglers() -> None:
    assert processor.stragglers([1.0] * 8 + [2.0, 3.0]) == processor.Stragglers(0.2, 2.5)
    assert processor.stragglers([1.0, 1.1, 0.9]) == processor.Stragglers(0.0, 1.0)


def test_ratios_are_relative_to_the_better_of_two_choices() -> None:
    points = [{"choice": c, "reduce_s": s} for c, s in (("direct", 6), ("paper", 3), ("ours", 2), ("binary", 5))]
    assert (kylix_fig6.ratio(points, "direct"), kylix_fig6.ratio(points, "binary")) == (3, 2.5)


def test_threads_leave_the_network_alone() -> None:
    machine = Profile.network(1e9)
    faster = sparse_allreduce_fig7.faster(machine, 4)
    assert (faster.fold_s, faster.byte_s) == (machine.fold_s / 4, machine.byte_s / 4)
    assert (faster.rate, faster.latency_s, faster.cores) == (machine.rate, machine.latency_s, machine.cores)


def test_bound_of_uplinks_for_a_chain() -> None:
    """Racks of 25: a chain in order leaves each rack once; one that alternates between two, 24 or 25 times."""
    assert twister_fig6.allowed(list(range(50)), 25) == 1.0
    between = [host for k in range(25) for host in (k, 25 + k)]
    assert twister_fig6.allowed(between, 25) == pytest.approx(25 / 10)
    assert twister_fig6.allowed(between[:22], 25) == pytest.approx(1.1)


def test_links_of_the_twister_cluster_agree_with_its_table() -> None:
    """0.5 GB to one node take 4.04 s. Of 2 GB that each of 125 nodes shuffles, four fifths leave its rack of 25."""
    assert twister.link_s(0.5e9) == pytest.approx(4.04, rel=1e-3)
    link, uplink = twister.shuffle_bound_s(2e9, 125)
    assert link == pytest.approx(twister.link_s(2e9 * 124 / 125))
    assert uplink == pytest.approx(25 * 2e9 * 0.8 / 1.25e9 * 9038 / 8948)
    network = twister.cluster(151, 5)
    assert (network.hosts_per_rack, network.uplink_rate * network.hosts_per_rack) == (31, pytest.approx(1.25e9))


@pytest.mark.parametrize("name", SIMULATED)
def test_a_simulated_figure_in_short(name: str, tmp_path: Path) -> None:
    figure = import_module(f"figures.{name}")
    assert not figure.NEEDS_ROOT
    said: list[str] = []
    points = figure.measure(True, said.append)
    assert said
    entry = style.save_record(tmp_path / f"{name}.json", name, True, points)
    read = json.loads((tmp_path / f"{name}.json").read_text())
    assert read["figure"] == name
    if find_spec("matplotlib"):
        style.save_picture(figure.draw(read), tmp_path / f"{name}.png")
        style.save_picture(figure.draw(entry), tmp_path / f"{name}.png")


@needs_matplotlib
@pytest.mark.parametrize("record", RECORDS, ids=[record.stem for record in RECORDS])
def test_committed_figures_can_be_redrawn(record: Path, tmp_path: Path) -> None:
    (tmp_path / record.name).write_bytes(record.read_bytes())
    command = [sys.executable, str(BENCH / "figures"), "--redraw", "--output", str(tmp_path), record.stem]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"{record.stem}.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(record.read_text())["figure"] == record.stem
    assert record.with_suffix(".png").exists()
