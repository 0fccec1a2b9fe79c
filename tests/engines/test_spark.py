"""``sky.spark.run`` on a real Spark of this machine."""

from __future__ import annotations

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

sql = pytest.importorskip("pyspark.sql", reason="Spark is not installed: pip install 'skyphos[spark]'")


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    quiet = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.ui.showConsoleProgress": "false"}
    session = sql.SparkSession.builder.master("local[3]").config(map=quiet).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def test_results_come_by_rank(spark: Any) -> None:
    assert sky.spark.run(spark, bodies.total, num_workers=3, timeout=30) == [(rank, 3, 3.0) for rank in range(3)]


def test_a_group_of_one(spark: Any) -> None:
    assert sky.spark.run(spark, bodies.total, num_workers=1, timeout=30) == [(0, 1, 1.0)]


def test_a_frame_arrives_as_arrays(spark: Any) -> None:
    def body(comm: sky.Comm, arrays: dict[str, np.ndarray]) -> Any:
        weights = comm.allreduce(sky.SparseVector(*np.unique(arrays["vertex"], return_counts=True), n=10))
        return {name: (str(one.dtype), len(one)) for name, one in arrays.items()}, weights.to_dense().tolist()

    frame = spark.range(100).selectExpr("id % 10 as vertex", "cast(id as float) as x", "cast(id as string) as name")
    found = sky.spark.run(spark, body, frame, num_workers=3, timeout=30)
    assert sum(types["x"][1] for types, _ in found) == 100
    for types, counts in found:
        assert [kind for kind, _ in types.values()] == ["int64", "float32", "object"]
        assert counts == [10] * 10


def test_rows_with_equal_keys_go_to_one_rank(spark: Any) -> None:
    def body(comm: sky.Comm, arrays: dict[str, np.ndarray]) -> Any:
        return sorted(set(arrays["vertex"].tolist())), str(arrays["x"].dtype)

    frame = spark.range(100).selectExpr("id % 2 as vertex", "if(id = 3, null, id) as x")
    found = sky.spark.run(spark, body, frame, num_workers=3, partition_by=["vertex"], timeout=30)
    assert sorted(vertex for vertices, _ in found for vertex in vertices) == [0, 1]  # and a rank without rows


def test_an_error_names_its_rank(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match=r"rank 1 of 3 on .* raised KeyError: 'no such vertex'") as raised:
        sky.spark.run(spark, lambda comm: bodies.raises_on_1(comm, str(tmp_path)), num_workers=3, timeout=30)
    assert raised.value.rank == 1
    assert isinstance(raised.value.__cause__, KeyError)
    assert bodies.lost(tmp_path) == {0: 1, 2: 1}


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_a_killed_worker(spark: Any, tmp_path: Path, how: str) -> None:
    began = time.monotonic()
    with pytest.raises(sky.PeerLost, match="rank 1 of 3 lost its worker") as raised:
        sky.spark.run(spark, lambda comm: bodies.dies_on_1(comm, str(tmp_path), how), num_workers=3, timeout=60)
    assert time.monotonic() - began < 30
    assert raised.value.rank == 1
    assert bodies.lost(tmp_path) == {0: 1, 2: 1}
    # Three slots: these tasks run only if no task of the failed call is left.
    assert len(sky.spark.run(spark, bodies.total, num_workers=3, timeout=30)) == 3


def test_results_that_cannot_be_pickled(spark: Any) -> None:
    with pytest.raises(RankFailed, match="pickle"):
        sky.spark.run(spark, bodies.returns_unpicklable, num_workers=2, timeout=30)
    with pytest.raises(RankFailed, match="Unpicklable: 1 and 2"):
        sky.spark.run(spark, bodies.raises_unpicklable, num_workers=2, timeout=30)


def test_too_few_slots(spark: Any) -> None:
    began = time.monotonic()
    with pytest.raises(sky.BadInput, match=r"num_workers=4, but Spark has 3 slots for tasks \(master='local\[3\]'\)"):
        sky.spark.run(spark, bodies.total, num_workers=4)
    assert time.monotonic() - began < 5


def test_without_spark(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] == "pyspark"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(sky.BadInput, match=r"sky.spark needs the package pyspark.*pip install 'skyphos\[spark\]'"):
        sky.spark.run(spark, bodies.total, num_workers=1)


def test_docstring(spark: Any) -> None:
    check_docstring(sky.spark.run)


def test_example(example: Callable[[str], str]) -> None:
    assert "as computed here" in example("spark_dataframe.py")
