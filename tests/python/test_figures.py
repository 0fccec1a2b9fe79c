"""The figures of the papers: their formulas by hand, and the smallest of them measured and drawn."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from itertools import combinations, product
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli", reason="Python 3.10 does not read TOML")

from figures import kylix_fig2, sparcml_fig3, sparcml_fig7, style  # noqa: E402

RECORDS = sorted((BENCH.parent / "docs" / "figures").glob("*.json"))
needs_matplotlib = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed: make lab")


@pytest.mark.parametrize(("k", "n", "ranks"), [(1, 4, 2), (2, 4, 3), (2, 5, 2), (3, 3, 2)])
def test_expected_unions_are_those_of_all_choices(k: int, n: int, ranks: int) -> None:
    unions = [len(set().union(*chosen)) for chosen in product(combinations(range(n), k), repeat=ranks)]
    mean = sum(unions) / len(unions)
    assert sparcml_fig7.expected(k, n, ranks) == pytest.approx(mean)
    assert float(sparcml_fig7.papers(k, n, ranks)) == pytest.approx(mean)
    variance = sum((union - mean) ** 2 for union in unions) / len(unions)
    assert sparcml_fig7.deviation(k, n, ranks) == pytest.approx(variance**0.5, abs=1e-6)


def test_bytes_of_the_papers_algorithms() -> None:
    """Four ranks, 1,000 indices, one entry each: unions hardly overlap."""
    n, density, ranks = 1000, 0.001, 4
    pairs = {name: sparcml_fig3.theirs(name, n, density, ranks) / 8 for name in ("recursive_doubling",)}
    assert pairs["recursive_doubling"] == pytest.approx(1 + 2, rel=1e-3)
    assert sparcml_fig3.theirs("split_allgather", n, density, ranks) / 8 == pytest.approx(0.75 * 5, rel=2e-3)
    assert sparcml_fig3.theirs("split_allgather_dense", n, density, ranks) == pytest.approx(0.75 * 4008)
    assert sparcml_fig3.theirs("dense_ring", n, density, ranks) == pytest.approx(1.5 * 4000)


def test_the_least_efficient_size() -> None:
    """Time 1 + s: half of the full rate where s = 1, to within the line between two sizes."""
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


@needs_matplotlib
@pytest.mark.parametrize("record", RECORDS, ids=[record.stem for record in RECORDS])
def test_what_is_checked_in_can_be_drawn_again(record: Path, tmp_path: Path) -> None:
    (tmp_path / record.name).write_bytes(record.read_bytes())
    command = [sys.executable, str(BENCH / "figures"), "--redraw", "--output", str(tmp_path), record.stem]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"{record.stem}.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(record.read_text())["figure"] == record.stem
    assert record.with_suffix(".png").exists()
