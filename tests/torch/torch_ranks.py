"""Ranks for tests: processes that stay, so that torch is imported once in each, and run functions of test modules."""

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

HERE = Path(__file__).resolve().parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def serve(pipe: Connection, rank: int, size: int, port: int, backend: str) -> None:
    """A rank: runs what it is told by name, and says how it ended."""
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
    while (told := pipe.recv()) is not None:
        module, name, args = told
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
        """What a function of a test module returns on each rank."""
        for pipe in self._pipes:
            pipe.send((function.__module__, function.__name__, args))
        found: dict[int, Any] = {}
        until = time.monotonic() + timeout
        # A rank that fails leaves the others waiting for it.
        while len(found) < self.size and all(well for well, _ in found.values()):
            awaited = [pipe for rank, pipe in enumerate(self._pipes) if rank not in found]
            for pipe in wait(awaited, max(0.0, until - time.monotonic())) or [None]:
                assert pipe is not None, f"ranks other than {sorted(found)} have not ended after {timeout} s"
                found[self._pipes.index(pipe)] = pipe.recv()
        wrong = [f"rank {rank}:\n{told}" for rank, (well, told) in found.items() if not well]
        if wrong:
            self.kill()
        assert not wrong, "\n".join(wrong)
        return [found[rank][1] for rank in range(self.size)]

    def run_but(self, lost: int, function: Callable[..., Any], *args: Any, timeout: float = 60.0) -> list[Any]:
        """As :meth:`run`, of the ranks that are left when one ends without an answer."""
        for pipe in self._pipes:
            pipe.send((function.__module__, function.__name__, args))
        found = []
        for rank, pipe in enumerate(self._pipes):
            if rank != lost:
                assert pipe.poll(timeout), f"rank {rank} has not ended after {timeout} s"
                well, told = pipe.recv()
                assert well, f"rank {rank}:\n{told}"
                found.append(told)
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
