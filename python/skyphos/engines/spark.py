"""A group in a barrier stage of Spark: ``sky.spark.run(spark, fn, data, num_workers=4)``.

Each task is a rank. Rank 0 opens a port, and the stage's allGather passes its address to the others. Rows come in and
outcomes go out as Arrow batches (``mapInArrow``). Spark does not rerun such a stage when a task is lost.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import BadInput, PeerLost
from ._meeting import Member, Outcomes, address_toward, listen, pack, package, settings_of, take_part

__all__ = ["run"]

# Seconds to wait for executors: those of a new session may still be starting.
_EXECUTORS_COME_S = 10.0

# Spark's messages about a lost process of a task or a lost executor, and about the task's number.
_LOST = re.compile(r"exited unexpectedly|ExecutorLostFailure|executor \S+ exited|Remote RPC client disassociated")
_TASK = re.compile(r"barrier task \w+\(\d+, (\d+)\)")


def run(
    spark: Any,
    fn: Callable[..., Any],
    data: Any = None,
    *,
    num_workers: int,
    partition_by: Sequence[str] = (),
    timeout: float = 300.0,
    init_options: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Run ``fn(comm, arrays)`` in a barrier stage whose tasks form a group, and return the results by rank.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    fn : callable
        Called on each rank with its :class:`skyphos.Comm` and, with ``data``, this rank's rows as a dict from column to
        NumPy array (integers with nulls: floats with NaN; strings, lists: objects). The result is pickled.
    data : pyspark.sql.DataFrame, optional
        Rows to distribute over the ranks.
    num_workers : int
        Number of ranks, each of which needs a free slot (``spark.task.cpus`` cores) at the same time.
    partition_by : sequence of str, optional
        Columns: rows with equal values in them go to the same rank. Default: rows are distributed round-robin.
    timeout, init_options : float and mapping, optional
        Seconds to wait for progress in making the group or in a call; further arguments of :func:`skyphos.init`.

    Raises
    ------
    BadInput, RankFailed, PeerLost
        If ``pyspark`` is not installed or there are fewer slots than workers; if ``fn`` raised on a rank (the exception
        is the cause); if a task's process or its executor ended.

    Examples
    --------
    >>> import skyphos as sky
    >>> from pyspark.sql import SparkSession  # doctest: +SKIP
    >>> spark = SparkSession.builder.master("local[2]").getOrCreate()  # doctest: +SKIP
    >>> def body(comm, arrays):
    ...     return comm.allreduce(arrays["id"].sum(keepdims=True)).tolist()
    >>> sky.spark.run(spark, body, spark.range(10), num_workers=2)  # doctest: +SKIP
    [[45], [45]]
    """
    settings = settings_of(fn, num_workers, timeout, init_options)
    types, pickler = package("pyspark.sql.pandas.types", "spark"), package("pyspark.cloudpickle", "spark")
    _check_slots(spark.sparkContext, num_workers)
    rows, schema = spark.range(num_workers, numPartitions=num_workers), None
    if data is not None:  # a shuffle: one task per rank after it; Spark may still retry the stages before it
        rows, schema = data.repartition(num_workers, *partition_by), types.to_arrow_schema(data.schema)
    member = Member(0, num_workers, None, secrets.token_hex(16), settings)
    try:
        stage = rows.mapInArrow(lambda batches: _part(batches, member, fn, schema), "outcome binary", barrier=True)
        collected = stage.collect()
    except Exception as error:
        if not _LOST.search(str(error)):
            raise
        rank = int(task[1]) if (task := _TASK.search(str(error))) else None
        what = f"rank {'?' if rank is None else rank} of {num_workers} lost its worker"
        raise PeerLost(f"{what}: its process or its executor ended", rank=rank) from error
    outcomes = Outcomes(num_workers)
    for row in collected:
        outcomes.add(pickler.loads(bytes(row.outcome)))
    return outcomes.results()


def _check_slots(context: Any, num_workers: int) -> None:
    """Raise BadInput if there are too few slots; Spark itself would wait for ten minutes."""
    java = context._jsc.sc()
    until = time.monotonic() + (0 if java.isLocal() else _EXECUTORS_COME_S)
    while (slots := java.maxNumConcurrentTasks(java.resourceProfileManager().defaultResourceProfile())) < num_workers:
        if time.monotonic() > until:
            what = f"num_workers={num_workers}, but Spark has {slots} slots for tasks (master={context.master!r})"
            raise BadInput(f"{what}, and a barrier stage needs all at once: ask for fewer, or more executors or cores")
        time.sleep(0.1)


def _part(batches: Iterator[Any], member: Member, fn: Callable[..., Any], schema: Any) -> Iterator[Any]:
    arrow, pickler = package("pyarrow", "spark"), package("pyspark.cloudpickle", "spark")
    context = package("pyspark", "spark").BarrierTaskContext.get()
    # Read all rows before the rendezvous, so that no rank waits in a call for another's Spark shuffle.
    table = arrow.Table.from_batches(given) if (given := list(batches)) else schema and schema.empty_table()
    args = () if schema is None else ({name: table[name].to_numpy() for name in table.column_names},)
    rank, listener, address = context.partitionId(), None, ""
    if rank == 0 and member.size > 1:
        hosts = [info.address.rpartition(":")[0].strip("[]") for info in context.getTaskInfos()]
        other_host = next((host for host in hosts if host != hosts[0]), None)
        listener, address = listen("127.0.0.1" if other_host is None else address_toward(other_host))
    member = replace(member, rank=rank, rendezvous=context.allGather(address)[0] or None)
    outcome = take_part(member, fn, args, listener=listener, cpus=context.cpus(), dumps=pickler.dumps)
    packed = pack(outcome, pickler.dumps)
    yield arrow.RecordBatch.from_pydict({"outcome": arrow.array([packed], arrow.binary())})
