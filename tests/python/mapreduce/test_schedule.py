"""Schedules of map tasks: decisions, in virtual time; jobs with slow, stuck, failing or killed ranks."""

from __future__ import annotations

import collections
import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import skyphos as sky
from conftest import Processes, on_all
from mapreduce_support import (
    JOB,
    POINTS,
    WORDS,
    book,
    counted,
    means,
    nearest,
    on_hosts,
    ones_of,
    plain_k_means,
    with_points,
    words_of,
)
from skyphos.errors import BadInput
from skyphos.mapreduce import MapReduce, Partitions
from skyphos.mapreduce.board import Board, Status
from skyphos.shuffle import Shuffle

pytest.importorskip("scipy")


class Ranks:
    """Ranks with one thread that run tasks in virtual time, and exchange their progress at intervals."""

    def __init__(self, seconds: list[float], owner: list[int], *, copies: bool = False) -> None:
        self.seconds, self.copies = seconds, copies
        self.size, self.now = len(seconds), 0.0
        self.board = Board(owner, self.size, [range(self.size)] * len(owner))
        self.queues = [collections.deque(np.flatnonzero(np.array(owner) == rank).tolist()) for rank in range(self.size)]
        self.running: list[tuple[int, float] | None] = [None] * self.size
        self.done: list[list[int]] = [[] for _ in range(self.size)]
        self.runs: collections.Counter[int] = collections.Counter()
        self.mean = [0.0] * self.size

    def step(self, end: float) -> None:
        """Let all ranks work until ``end``."""
        for rank in range(self.size):
            at = self.now
            while True:
                if self.running[rank] is None:
                    if not self.queues[rank]:
                        break
                    self.running[rank] = (self.queues[rank].popleft(), at)
                task, begun = self.running[rank] or (0, 0.0)
                if begun + self.seconds[rank] > end:
                    break
                at = begun + self.seconds[rank]
                self.done[rank].append(task)
                self.runs[task] += 1
                self.mean[rank] = self.seconds[rank]
                self.running[rank] = None
        self.now = end

    def exchange(self) -> None:
        """Exchange the reports of all ranks, and move and copy tasks as the board decides."""
        maxima: dict[int, int] = {}
        for rank in range(self.size):
            run = self.running[rank]
            late = self.now - run[1] if run else 0.0
            idle = int(run is None and not self.queues[rank])
            own = {run[0]: late} if run and self.board.copies.get(run[0]) != rank else {}
            status = Status(max(self.mean[rank], late), 1, idle, own, self.done[rank])
            self.done[rank] = []
            report = self.board.encode(rank, status)
            for index, value in zip(report.indices.tolist(), report.values.tolist(), strict=True):
                maxima[index] = max(maxima.get(index, 0), value)
        order = sorted(maxima)
        before = self.board.owner.copy()
        self.board.update(np.array(order, np.int64), np.array([maxima[index] for index in order], np.int64))
        for task in np.flatnonzero(self.board.winner >= 0).tolist():
            for rank in range(self.size):
                run = self.running[rank]
                if run and run[0] == task and self.board.winner[task] != rank:
                    self.running[rank] = None  # a lower rank has completed the task
        for task, taker in self.board.moves():
            self.queues[before[task]].remove(task)
            self.queues[taker].append(task)
            before[task] = taker
        if self.copies:
            for task, taker in self.board.second_copies():
                self.queues[taker].append(task)

    def run(self, every: float) -> float:
        for _ in range(200_000):
            self.exchange()
            if self.board.is_complete:
                return self.now
            self.step(self.now + every)
        raise AssertionError("it never ends")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_all_tasks_are_run_once_and_sooner(data: st.DataObject) -> None:
    seconds = data.draw(st.lists(st.sampled_from([0.5, 1.0, 1.0, 1.5, 4.0, 30.0]), min_size=1, max_size=8))
    ranks = range(len(seconds))
    owner = [*ranks, *data.draw(st.lists(st.sampled_from(ranks), max_size=60))]
    every = data.draw(st.sampled_from([0.05, 0.1, 0.3]))
    group = Ranks(seconds, owner)
    took = group.run(every)
    assert set(group.runs) == set(range(len(owner))) and set(group.runs.values()) == {1}
    static = max(seconds[rank] * count for rank, count in collections.Counter(owner).items())
    # The rest of a running task is unknown: it counts as a whole task.
    assert took <= static + max(seconds) + 2 * every
    # The best is that all ranks work until the end; tasks that have started do not move.
    best = len(owner) / sum(1 / one for one in seconds)
    assert took <= best + 2 * max(seconds) + 3 * every


@pytest.mark.parametrize(("size", "tasks"), [(2, 9), (4, 40), (8, 100)])
def test_tasks_assigned_to_one_rank_are_shared_by_all(size: int, tasks: int) -> None:
    group = Ranks([1.0] * size, [size - 1] * tasks)
    assert group.run(0.02) <= -(-tasks // size) + 1 + 0.2
    assert max(np.bincount(group.board.winner)) - min(np.bincount(group.board.winner)) <= 2


@pytest.mark.parametrize("slow", [100.0, 10_000.0])
def test_stuck_tasks_are_run_elsewhere_too(slow: float) -> None:
    seconds, owner = [slow, 1.0, 1.0, 1.0], [task % 4 for task in range(16)]
    assert Ranks(seconds, owner).run(slow / 1000) >= slow
    ranks = Ranks(seconds, owner, copies=True)
    # 15 tasks of one second on three ranks; the stuck one must be late before it is copied.
    assert ranks.run(0.05) <= 8.0
    assert 0 not in ranks.board.winner and max(ranks.runs.values()) == 1


def test_if_two_ranks_complete_a_task_the_lower_one_counts() -> None:
    board = Board([0, 1], 2, [range(2)] * 2)
    reports = [board.encode(rank, Status(1.0, 1, 1, done=[0, 1])) for rank in (0, 1)]
    maxima: dict[int, int] = {}
    for report in reports:
        for index, value in zip(report.indices.tolist(), report.values.tolist(), strict=True):
            maxima[index] = max(maxima.get(index, 0), value)
    board.update(np.array(list(maxima)), np.array(list(maxima.values())))
    assert board.is_complete and board.winner.tolist() == [0, 0]


SCHEDULES = ["static", "dynamic", "speculative"]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("size", "threads"), [(1, 2), (2, 1), (3, 3)])
def test_results_are_the_same(tmp_path: Path, schedule: str, size: int, threads: int) -> None:
    path = book(tmp_path, 11)

    def body(comm: sky.Comm) -> Any:
        job = MapReduce(comm, map=ones_of, reduce="sum", partitions=path, schedule=schedule, threads=threads)
        for _ in range(5):
            result = job.run()
        reduction = {"reduce": lambda word, ones: sum(ones), "reducers": 4}
        lists = MapReduce(comm, map=ones_of, partitions=path, schedule=schedule, threads=threads, **reduction)
        return result, lists.run(), sum(iteration.tasks for iteration in job.iterations)

    results = on_all(size, body)
    for part in (0, 1):
        assert counted([result[part] for result in results]) == collections.Counter(WORDS)
    assert sum(result[2] for result in results) == 5 * 11


class Gate:
    """Holds up the first task of rank 1 until ``others`` other tasks are done."""

    def __init__(self, others: int) -> None:
        self._changed = threading.Condition()
        self._others, self._done = others, 0

    def count_done(self) -> None:
        with self._changed:
            self._done += 1
            self._changed.notify_all()

    def wait(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._done >= self._others, 60), "the other tasks have not been run"

    def hold_up_rank_1(self, comm: sky.Comm, function: Any) -> Any:
        """``function``, except that the first task of rank 1 waits for the other tasks."""
        first = threading.Lock()

        def task(data: Any, state: Any) -> Any:
            if comm.rank == 1 and first.acquire(blocking=False):
                self.wait()
            else:
                self.count_done()
            return function(data, state)

        return task

    def open(self) -> None:
        with self._changed:
            self._done = self._others
            self._changed.notify_all()


def test_tasks_of_a_straggler_that_have_not_started_move(tmp_path: Path) -> None:
    path = book(tmp_path, 12)
    gate = Gate(11)

    def body(comm: sky.Comm) -> Any:
        slow = gate.hold_up_rank_1(comm, words_of)
        job = MapReduce(comm, map=slow, reduce="count", partitions=path, schedule="dynamic", threads=1)
        return job.run(), job.iterations[0]

    results = on_all(3, body)
    assert counted([result for result, _ in results]) == collections.Counter(WORDS)
    first, slow, last = [iteration for _, iteration in results]
    assert slow.tasks == 1 and first.tasks + slow.tasks + last.tasks == 12
    assert first.taken + last.taken >= 3 and slow.taken == 0  # the others may take tasks from each other too
    assert "taken over" in str(first) + str(last)


@pytest.mark.parametrize("kind", ["count", "list"])
def test_a_stuck_task_is_run_elsewhere_and_counts_once(tmp_path: Path, kind: str) -> None:
    path = book(tmp_path, 9)
    gate = Gate(1)

    def body(comm: sky.Comm) -> Any:
        first = threading.Lock()

        def stuck(text: bytes, state: Any) -> Any:
            words = text.decode().split()
            half = len(words) // 2
            yield (words[:half], None) if kind == "count" else (words[:half], [1] * half)
            # Rank 1 has passed on half of its first task's words, and stays in the task until the job ends.
            if comm.rank == 1 and first.acquire(blocking=False):
                gate.wait()
                yield ["never"], (None if kind == "count" else [1])
                return
            yield (words[half:], None) if kind == "count" else (words[half:], [1] * (len(words) - half))

        reduce: Any = "count" if kind == "count" else lambda word, ones: len(ones)
        job = MapReduce(comm, map=stuck, reduce=reduce, partitions=path, schedule="speculative", threads=1)
        result = job.run()
        comm.barrier()
        gate.open()
        # All three ranks take part in the next iteration.
        return result, job.run(), job.iterations

    results = on_all(3, body)
    for part in (0, 1):
        assert counted([result[part] for result in results]) == collections.Counter(WORDS)
    first, second = ([iterations[k] for *_, iterations in results] for k in (0, 1))
    assert first[1].tasks == 0 and sum(one.copied for one in first) >= 1
    assert sum(one.tasks for one in second) == 9


def test_partitions_follow_their_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions that only the straggler's host has are sent over the network, and stay on the new rank."""
    with_points(tmp_path)
    made = Partitions.load(tmp_path / "parts" / "partitions.json")
    hosts = ["a", "a", "a", "a", "b", "b", "b", "b"]
    parts = Partitions(made.format, [dataclasses.replace(part, hosts=(hosts[part.number],)) for part in made])
    gate = Gate(7)

    def body(comm: sky.Comm) -> Any:
        slow = gate.hold_up_rank_1(comm, nearest)
        options: dict[str, Any] = {"partitions": parts, "schedule": "dynamic", "threads": 1}
        job = MapReduce(comm, map=slow, reduce="sum", combine=means, **options)
        return job.iterate(POINTS[:4], iterations=3), job.iterations

    results = on_hosts(["a", "b"], monkeypatch, body)
    for centres, _ in results:
        assert np.allclose(centres, plain_k_means(3))
    (_, iterations_a), (_, iterations_b) = results
    assert iterations_a[0].taken == 3 and iterations_a[0].remote_bytes == 3 * made.bytes // 8
    assert iterations_b[0].tasks == 1 and iterations_b[0].remote_bytes == 0


def _raises(*_: Any) -> Any:
    raise KeyError("not this one")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_errors_of_map_functions(tmp_path: Path, schedule: str) -> None:
    path = book(tmp_path, 6)

    def body(comm: sky.Comm) -> None:
        function: Any = _raises if comm.rank == 1 else ones_of
        with pytest.raises(BadInput, match=r"rank 1: map of partition \d \(.*raised KeyError(.|\n)*in _raises"):
            MapReduce(comm, map=function, reduce="sum", partitions=path, schedule=schedule).run()
        assert comm.allreduce(np.ones(1))[0] == comm.size

    on_all(3, body)


def test_a_full_disk_while_output_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = book(tmp_path, 6)
    release = Shuffle.release

    def full(self: Shuffle, task: int) -> None:
        if self._comm.rank == 1:
            raise BadInput("rank 1: the disk is full")
        release(self, task)

    monkeypatch.setattr(Shuffle, "release", full)

    def body(comm: sky.Comm) -> None:
        with pytest.raises(BadInput, match="rank 1: the disk is full"):
            MapReduce(comm, map=ones_of, reduce="sum", partitions=path, schedule="speculative").run()
        assert comm.allreduce(np.ones(1))[0] == comm.size

    on_all(3, body)


def test_invalid_settings(tmp_path: Path) -> None:
    path = book(tmp_path, 4)

    def body(comm: sky.Comm) -> None:
        with pytest.raises(BadInput, match="schedule='quick': one of static, dynamic, speculative"):
            MapReduce(comm, map=ones_of, partitions=path, schedule="quick")  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="takes a partition file"):
            MapReduce(comm, map=ones_of, partitions=[b"a"], schedule="dynamic")

    on_all(2, body)


@pytest.mark.parametrize("schedule", ["dynamic", "speculative"])
def test_a_rank_is_killed(schedule: str, processes: Processes, tmp_path: Path) -> None:
    with_points(tmp_path)
    common = {"FOLDER": dict.fromkeys(range(3), str(tmp_path)), "SCHEDULE": dict.fromkeys(range(3), schedule)}
    lines = processes.lines(3, JOB, **common, DIES_AT={1: "3"})
    assert lines.pop(1)[0] == ""
    for out, err in lines:
        assert out, err
        centres = np.frombuffer(bytes.fromhex(out.split()[0]))
        assert np.allclose(centres.reshape(4, 2), plain_k_means(6)), err
        assert out.split()[-1] == "2"
