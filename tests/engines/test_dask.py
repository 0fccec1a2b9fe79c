"""``sky.dask.run`` on a real Dask cluster of this machine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bodies
import skyphos as sky
from conftest import check_docstring
from skyphos.engines import RankFailed

distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install 'skyphos[dask]'")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with distributed.Client(n_workers=3, threads_per_worker=1, dashboard_address=None) as client:
        yield client


@pytest.fixture
def client(cluster: Any) -> Any:
    # A worker that a test has killed is started again by its nanny.
    cluster.wait_for_workers(3, timeout=30)
    return cluster


def test_results_come_by_rank(client: Any) -> None:
    assert sky.dask.run(client, bodies.total, 0.5, timeout=30) == [(rank, 3, 1.5) for rank in range(3)]


def test_some_workers(client: Any) -> None:
    assert sky.dask.run(client, bodies.total, num_workers=2, timeout=30) == [(0, 2, 2.0), (1, 2, 2.0)]
    assert sky.dask.run(client, bodies.total, num_workers=1, timeout=30) == [(0, 1, 1.0)]


def test_futures_arrive_as_values(client: Any) -> None:
    assert sky.dask.run(client, bodies.sum_of, client.submit(np.ones, 3), timeout=30) == [3.0] * 3


def test_workers_that_are_threads() -> None:
    with distributed.Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as client:
        assert sky.dask.run(client, bodies.total, timeout=30) == [(0, 2, 2.0), (1, 2, 2.0)]


def test_variables_of_other_launchers_do_not_matter(client: Any) -> None:
    def body(comm: sky.Comm) -> tuple[int, str]:
        return comm.size, comm.transport

    stray = {"PMI_RANK": "5", "PMI_SIZE": "9", "SLURM_PROCID": "7", "SKYPHOS_RANK": "4", "SKYPHOS_LISTEN_FD": "0"}
    client.run(lambda: os.environ.update(stray))
    try:
        assert sky.dask.run(client, body, timeout=30) == [(3, "tcp")] * 3
        assert all(set(stray) <= have for have in client.run(lambda: set(os.environ)).values())
    finally:
        client.run(lambda: [os.environ.pop(name) for name in stray])


def test_an_error_names_its_rank(client: Any, tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match=r"rank 1 of 3 on .* raised KeyError: 'no such vertex'") as raised:
        sky.dask.run(client, bodies.raises_on_1, str(tmp_path), timeout=30)
    assert raised.value.rank == 1
    assert isinstance(raised.value.__cause__, KeyError)
    assert bodies.lost(tmp_path) == {0: 1, 2: 1}
    assert len(sky.dask.run(client, bodies.total, timeout=30)) == 3


def test_exit_does_not_end_the_worker(client: Any) -> None:
    before = set(client.nthreads())
    with pytest.raises(RankFailed, match=r"rank 0 of 3 on .* raised SystemExit: enough"):
        sky.dask.run(client, bodies.exits, timeout=30)
    assert set(client.nthreads()) == before


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_a_killed_worker(client: Any, tmp_path: Path, how: str) -> None:
    began = time.monotonic()
    with pytest.raises(sky.PeerLost, match=r"rank 1 of 3 lost its worker: tcp://.* has left") as raised:
        sky.dask.run(client, bodies.dies_on_1, str(tmp_path), how, timeout=60)
    assert time.monotonic() - began < 30
    assert raised.value.rank == 1
    assert bodies.lost(tmp_path) == {0: 1, 2: 1}
    client.wait_for_workers(3, timeout=30)
    # One thread a worker: these tasks run only if no task of the failed call is left.
    assert len(sky.dask.run(client, bodies.total, timeout=30)) == 3


def test_the_only_worker_is_killed(client: Any, tmp_path: Path) -> None:
    def dies(comm: sky.Comm) -> None:
        import os

        os._exit(3)

    with pytest.raises(sky.PeerLost, match="rank 0 of 1 lost its worker"):
        sky.dask.run(client, dies, num_workers=1, timeout=60)


def test_results_that_cannot_be_pickled(client: Any) -> None:
    with pytest.raises(RankFailed, match="Unpicklable: 1 and 2"):
        sky.dask.run(client, bodies.raises_unpicklable, timeout=30)


def test_a_busy_worker(client: Any) -> None:
    event = distributed.Event("go", client=client)
    others = [client.submit(event.wait, 30, workers=[one], pure=False) for one in client.nthreads()]
    try:
        with pytest.raises(sky.Timeout, match="no free thread within 1 s"):
            sky.dask.run(client, bodies.total, timeout=1)
    finally:
        event.set()
        distributed.wait(others, timeout=30)


def test_too_few_workers(client: Any) -> None:
    with pytest.raises(sky.BadInput, match=r"num_workers=4, but the Dask cluster has 3 workers: .*wait_for_workers\(4"):
        sky.dask.run(client, bodies.total, num_workers=4)


def test_without_dask(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(sky.BadInput, match=r"sky.dask needs the package distributed.*pip install 'skyphos\[dask\]'"):
        sky.dask.run(client, bodies.total)


def test_docstring() -> None:
    check_docstring(sky.dask.run)


def test_example(example: Callable[[str], str]) -> None:
    assert "as computed here" in example("dask_pagerank.py")
