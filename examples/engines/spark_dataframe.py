"""Sums over the rows of a Spark data frame, in a barrier stage.

    pip install 'skyphos[spark]'
    python examples/engines/spark_dataframe.py

Each task gets its rows as NumPy arrays and adds them up by key; the sparse allreduce adds up the tasks' sums.
"""

import os
import sys

import numpy as np
from pyspark.sql import SparkSession

import skyphos as sky

KEYS = 10**9  # too many keys for an array in a task
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else tasks run the first python3 on PATH


def sums(comm: sky.Comm, arrays: dict[str, np.ndarray]) -> tuple[int, dict[int, float]]:
    keys, place = np.unique(arrays["key"], return_inverse=True)
    total = comm.allreduce(sky.SparseVector(keys, np.bincount(place, arrays["value"]), n=KEYS))
    return len(place), dict(zip(total.indices.tolist(), total.values.tolist(), strict=True))


settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": 2}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
frame = spark.range(10_000).selectExpr("id * id % 7 * 1000003 as key", "id * 0.5D as value")
results = sky.spark.run(spark, sums, frame, num_workers=2)

expected = {row.key: row.total for row in frame.groupBy("key").agg({"value": "sum"}).toDF("key", "total").collect()}
assert sum(rows for rows, _ in results) == 10_000
assert all(found == expected for _, found in results)
print(f"{len(expected)} keys of {KEYS}, sums as computed here")
spark.stop()
