"""Functions that ranks run in these tests. Workers import this module."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

import skyphos as sky


def total(comm: sky.Comm, scale: float = 1.0) -> tuple[int, int, float]:
    x = sky.SparseVector([comm.rank, 9], np.array([1.0, scale]), n=10)
    return comm.rank, comm.size, float(comm.allreduce(x).to_dense()[9])


def sum_of(comm: sky.Comm, array: Any) -> float:
    return float(comm.allreduce(np.asarray(array, float))[0])


def raises_on_1(comm: sky.Comm, folder: str) -> None:
    """Rank 1 raises, while the others are in collectives."""

    def body() -> None:
        for call in range(10**9):
            if comm.rank == 1 and call == 20:
                raise KeyError("no such vertex")
            comm.barrier()

    _record(comm, folder, body)


def dies_on_1(comm: sky.Comm, folder: str, how: str) -> None:
    """Rank 1's process ends without a goodbye, while the others are in collectives."""

    def body() -> None:
        for call in range(10**9):
            if comm.rank == 1 and call == 20:
                if how == "exit":
                    os._exit(3)
                os.kill(os.getpid(), signal.SIGKILL)
            comm.barrier()

    _record(comm, folder, body)


def _record(comm: sky.Comm, folder: str, body: Any) -> None:
    (Path(folder) / f"pid-{comm.rank}").write_text(str(os.getpid()))
    try:
        body()
    except sky.PeerLost as error:
        (Path(folder) / f"lost-{comm.rank}").write_text(str(error.rank))
        raise


def returns_unpicklable(comm: sky.Comm) -> Any:
    return (one for one in range(comm.rank))


class Unpicklable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raises_unpicklable(comm: sky.Comm) -> None:
    raise Unpicklable(1, 2)


def exits(comm: sky.Comm) -> None:
    if comm.rank == 0:
        raise SystemExit("enough")
    comm.barrier()


def lost(folder: Path) -> dict[int, int]:
    """For each rank that noticed a loss: the rank that its error names as lost."""
    return {int(one.name[5:]): int(one.read_text()) for one in folder.glob("lost-*")}


def pids(folder: Path) -> list[int]:
    return [int(one.read_text()) for one in folder.glob("pid-*")]
