"""Ranks for tests: long-lived processes that import torch once and run functions of test modules."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def serve(pipe: Connection, rank: int, size: int, port: int, backend: str) -> None:
    """A rank: runs the functions whose names come through the pipe, and sends back each result or traceback."""
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank)
    )
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path[:0] = [str(HERE), *(str(room) for room in HERE.iterdir() if room.is_dir())]
    import torch
    import torch.distributed as dist

    import skyphos.torch

    skyphos.torch.register()
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    pipe.send("ready")
    while (request := pipe.recv()) is not None:
        module, name, args = request
        try:
            pipe.send((True, getattr(importlib.import_module(module), name)(*args)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class Ranks:
    """A group of processes."""

    def __init__(self, size: int, backend: str = "skyphos", *, daemon: bool = True) -> None:
        self.size = size
        context, port = multiprocessing.get_context("spawn"), free_port()
        self._pipes, self.processes = [], []
        for rank in range(size):
            mine, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, rank, size, port, backend), daemon=daemon)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self.processes.append(process)
        for pipe in self._pipes:
            assert pipe.recv() == "ready"

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = 60.0) -> list[Any]:
        """Call a function of a test module on each rank; return the results by rank.

        A failure or a time-out ends all processes; the next test then gets a new group.
        """
        for pipe in self._pipes:
            pipe.send((function.__module__, function.__name__, args))
        found: dict[int, Any] = {}
        until = time.monotonic() + timeout
        # When a rank fails, the others would wait for it until their own time-outs: stop at the first failure.
        while len(found) < self.size and all(succeeded for succeeded, _ in found.values()):
            awaited = [pipe for rank, pipe in enumerate(self._pipes) if rank not in found]
            answered = wait(awaited, max(0.0, until - time.monotonic()))
            if not answered:
                self.kill()  # ranks that are still in this call would answer it in the next one
                pytest.fail(f"ranks other than {sorted(found)} have not ended after {timeout} s")
            for pipe in answered:
                found[self._pipes.index(pipe)] = pipe.recv()
        failures = [f"rank {rank}:\n{trace}" for rank, (succeeded, trace) in found.items() if not succeeded]
        if failures:
            self.kill()
        assert not failures, "\n".join(failures)
        return [found[rank][1] for rank in range(self.size)]

    def run_but(self, lost: int, function: Callable[..., Any], *args: Any, timeout: float = 60.0) -> list[Any]:
        """Like :meth:`run`, for a function in which rank ``lost`` ends its process; return the others' results."""
        for pipe in self._pipes:
            pipe.send((function.__module__, function.__name__, args))
        found = []
        for rank, pipe in enumerate(self._pipes):
            if rank != lost:
                assert pipe.poll(timeout), f"rank {rank} has not ended after {timeout} s"
                succeeded, result = pipe.recv()
                assert succeeded, f"rank {rank}:\n{result}"
                found.append(result)
        return found

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def close(self) -> None:
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
