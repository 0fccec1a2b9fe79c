"""Groups of processes with torch, which the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from torch_ranks import Ranks

_groups: dict[int, Ranks] = {}


@pytest.fixture(scope="session", autouse=True)
def close_groups() -> Iterator[None]:
    yield
    for group in _groups.values():
        group.close()


@pytest.fixture
def ranks() -> Callable[[int], Ranks]:
    """A function that returns a group of a given size; a group is shared by tests until one of its processes ends."""

    def group_of_size(size: int) -> Ranks:
        if size not in _groups or not all(process.is_alive() for process in _groups[size].processes):
            _groups[size] = Ranks(size)
        return _groups[size]

    return group_of_size
