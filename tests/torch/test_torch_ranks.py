"""The groups of processes that the tests share."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch.distributed as dist

from torch_ranks import Ranks


def rank() -> int:
    return int(dist.get_rank())


def never_returns() -> None:
    threading.Event().wait()


def test_a_group_that_times_out_is_discarded(ranks: Callable[[int], Ranks]) -> None:
    group = ranks(2)
    with pytest.raises(pytest.fail.Exception, match="have not ended"):
        group.run(never_returns, timeout=0.1)
    assert not any(process.is_alive() for process in group.processes)
    assert ranks(2).run(rank) == [0, 1]
