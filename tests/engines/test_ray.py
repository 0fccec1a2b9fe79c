"""``sky.ray.run`` on a real Ray of this machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import bodies
import skyphos as sky
from conftest import check_docstring
from skyphos.engines import RankFailed

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'skyphos[ray]'")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_results_come_by_rank() -> None:
    assert sky.ray.run(bodies.total, 0.5, num_workers=3, timeout=30) == [(rank, 3, 1.5) for rank in range(3)]


def test_a_group_of_one() -> None:
    assert sky.ray.run(bodies.total, num_workers=1, timeout=30) == [(0, 1, 1.0)]


def test_object_refs_arrive_as_values() -> None:
    assert sky.ray.run(bodies.sum_of, ray.put(np.ones(3)), num_workers=2, timeout=30) == [2.0, 2.0]


def test_an_error_names_its_rank(tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match=r"rank 1 of 3 on .* raised KeyError: 'no such vertex'") as raised:
        sky.ray.run(bodies.raises_on_1, str(tmp_path), num_workers=3, timeout=30)
    assert raised.value.rank == 1
    assert isinstance(raised.value.__cause__, KeyError)
    assert bodies.lost(tmp_path) == {0: 1, 2: 1}
    _all_end(tmp_path)


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_a_killed_worker(tmp_path: Path, how: str) -> None:
    began = time.monotonic()
    with pytest.raises(sky.PeerLost, match="rank 1 of 3 lost its worker") as raised:
        sky.ray.run(bodies.dies_on_1, str(tmp_path), how, num_workers=3, timeout=60)
    assert time.monotonic() - began < 30
    assert raised.value.rank == 1
    assert bodies.lost(tmp_path) == {0: 1, 2: 1}
    _all_end(tmp_path)
    assert len(sky.ray.run(bodies.total, num_workers=3, timeout=30)) == 3


def test_results_that_cannot_be_pickled() -> None:
    with pytest.raises(RankFailed, match="pickle"):
        sky.ray.run(bodies.returns_unpicklable, num_workers=2, timeout=30)
    with pytest.raises(RankFailed, match="Unpicklable: 1 and 2"):
        sky.ray.run(bodies.raises_unpicklable, num_workers=2, timeout=30)


def test_too_few_cpus() -> None:
    with pytest.raises(sky.BadInput, match=r"num_workers=4, but Ray has room for 3 workers of CPU 1 each"):
        sky.ray.run(bodies.total, num_workers=4)
    with pytest.raises(sky.BadInput, match="room for 0 workers of CPU 1, unobtainium 2 each"):
        sky.ray.run(bodies.total, num_workers=1, resources={"unobtainium": 2})


def test_no_room_in_time() -> None:
    other = ray.util.placement_group([{"CPU": 2}])
    try:
        assert other.wait(30)
        with pytest.raises(sky.Timeout, match="no room for 2 workers"):
            sky.ray.run(bodies.total, num_workers=2, timeout=1)
    finally:
        ray.util.remove_placement_group(other)
    assert len(sky.ray.run(bodies.total, num_workers=3, timeout=30)) == 3


def test_bad_arguments() -> None:
    for wrong in (0, -1, 1.5):
        with pytest.raises(sky.BadInput, match="num_workers must be"):
            sky.ray.run(bodies.total, num_workers=wrong)
    with pytest.raises(sky.BadInput, match="needs a function"):
        sky.ray.run(3, num_workers=1)
    with pytest.raises(sky.BadInput, match="rank cannot be among init_options"):
        sky.ray.run(bodies.total, num_workers=1, init_options={"rank": 0})


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(sky.BadInput, match=r"sky.ray needs the package ray.*pip install 'skyphos\[ray\]'"):
        sky.ray.run(bodies.total, num_workers=1)


def test_docstring() -> None:
    check_docstring(sky.ray.run)


def test_example(example: Callable[[str], str]) -> None:
    assert "as computed here" in example("ray_allreduce.py")


def _all_end(folder: Path) -> None:
    """Wait until the processes of all ranks have ended."""
    until = time.monotonic() + 20
    for pid in bodies.pids(folder):
        while Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
            assert time.monotonic() < until, f"process {pid} is still there"
            time.sleep(0.05)
