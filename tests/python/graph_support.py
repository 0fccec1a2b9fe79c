"""Helpers of the graph tests: groups whose ranks are threads of this process, and the data sets beside the project."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skyphos as sky

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def on_ranks(size: int, work: Callable[[sky.Comm], Any]) -> list[Any]:
    """Run ``work`` on every rank of an in-process group; return the results by rank, or raise the first
    error."""
    comms = sky.local(size)
    results: list[Any] = [None] * size
    errors: list[BaseException | None] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(comms[rank])
        except BaseException as error:
            errors[rank] = error
            comms[rank].close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for error in errors:
        if error is not None:
            raise error
    return results


def errors_on_ranks(size: int, work: Callable[[sky.Comm], Any]) -> list[BaseException | None]:
    """Run ``work`` on every rank and return the exception of each."""

    def attempt(comm: sky.Comm) -> BaseException | None:
        try:
            work(comm)
        except Exception as error:
            return error
        return None

    return on_ranks(size, attempt)


def shared(name: str) -> Path:
    """Path of a data set, or skip the test."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"data set {name} is not beside the project (../shared/data)")
    return path


def whole(shares: list[tuple[np.ndarray, np.ndarray]]) -> dict[int, Any]:
    """One dictionary from shares of (keys, values), each key in one share only."""
    together: dict[int, Any] = {}
    for keys, values in shares:
        for key, value in zip(keys.tolist(), values.tolist(), strict=True):
            assert key not in together, f"{key} is owned twice"
            together[key] = value
    return together
