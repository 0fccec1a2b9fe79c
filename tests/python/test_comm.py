"""Groups: how they are made, split and closed, and calls that do not meet."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import skyphos as sky
from conftest import on_all


def test_different_calls_name_both_sides() -> None:
    def body(comm: sky.Comm) -> str:
        plan = comm.configure([1], [1], n=3)
        with pytest.raises(sky.Mismatch) as caught:
            plan.reduce(np.ones(1, np.float64 if comm.rank else np.float32))
        with pytest.raises(sky.Mismatch):
            comm.barrier() if comm.rank else comm.split(0)
        comm.barrier()
        return str(caught.value)

    for text in on_all(3, body):
        assert "rank 0 is in reduce(" in text and "dtype=float32" in text and "dtype=float64" in text


def test_a_rank_that_does_not_come_is_named() -> None:
    gone = threading.Event()

    def body(comm: sky.Comm) -> Any:
        if comm.rank == 1:
            gone.wait(30)
            return None
        try:
            with pytest.raises(sky.Timeout, match="rank 1 did not come") as caught:
                comm.barrier()
        finally:
            gone.set() if comm.rank == 0 else None
        return caught.value.missing

    assert on_all(3, body, timeout=0.3) == [(1,), None, (1,)]


def test_closed_and_split() -> None:
    def body(comm: sky.Comm) -> None:
        with comm.split(comm.rank % 2, key=-comm.rank) as half:
            assert (half.size, half.rank) == (2, 1 - comm.rank // 2)
            assert half.configure_reduce([0], [0], np.array([comm.rank]), n=1)[0] == 2 + 2 * (comm.rank % 2)
        assert comm.split(None) is None
        comm.barrier()
        comm.close()
        comm.close()
        with pytest.raises(sky.BadInput, match="closed"):
            comm.barrier()

    on_all(4, body)


def test_local_arguments() -> None:
    for arguments in ({"size": 0}, {"size": 2, "threads": 0}, {"size": 2, "timeout": -1.0}):
        with pytest.raises(sky.BadInput):
            sky.local(**arguments)


def wait_for_native_call(thread: threading.Thread) -> None:
    """Return once a thread has stood at one instruction of the library for 50 looks: it waits in the native call."""
    looks, last = 0, None
    while looks < 50:
        frame = sys._current_frames()[cast(int, thread.ident)]
        at = (frame.f_code, frame.f_lasti)
        in_library = Path(frame.f_code.co_filename).is_relative_to(Path(sky.__file__).parent)
        looks, last = (looks + 1 if in_library and at == last else 0), at
        time.sleep(0.001)


def test_closing_while_another_thread_is_in_a_call() -> None:
    first, second = sky.local(2, timeout=20.0)
    caught: list[Exception] = []

    def wait() -> None:
        try:
            first.barrier()
        except sky.SkyphosError as error:
            caught.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_for_native_call(waiting)
    first.close()
    waiting.join()
    assert "rank 0 left the call: its Comm was closed" in str(caught[0])
    with pytest.raises(sky.SkyphosError, match="rank 0"):
        second.barrier()


def test_time_outs_are_accurate() -> None:
    def body(comm: sky.Comm) -> float:
        start = time.monotonic()
        if comm.rank == 0:
            with pytest.raises(sky.Timeout, match=r"within the timeout of 2.0 s in barrier\(\): rank 1 did not come"):
                comm.barrier()
        return time.monotonic() - start

    assert 2.0 <= on_all(2, body, timeout=2.0)[0] < 3.0
