"""Groups of processes with torch, which all tests here share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from torch_ranks import Ranks

_groups: dict[int, Ranks] = {}


@pytest.fixture(scope="session", autouse=True)
def ended() -> Iterator[None]:
    yield
    for group in _groups.values():
        group.close()


@pytest.fixture
def ranks() -> Callable[[int], Ranks]:
    """A group of so many processes, which later tests use too."""

    def of(size: int) -> Ranks:
        if size not in _groups or not all(process.is_alive() for process in _groups[size].processes):
            _groups[size] = Ranks(size)
        return _groups[size]

    return of
