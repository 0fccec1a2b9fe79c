"""The same input gives the same bits: in every call if groups do not adapt, otherwise after the first calls."""

from __future__ import annotations

from typing import Any

import numpy as np

import skyphos as sky
from conftest import Processes, on_all
from skyphos.planning.profile_choice import begin_with

#: The first calls with an input, in which `auto` may try several algorithms.
WARM_UP = 25


def inputs(rank: int) -> list[Any]:
    """Inputs whose sums are rounded, so that another order of additions shows. Several algorithms are predicted to take
    about the same time for the first input, so `auto` tries each."""
    random = np.random.default_rng(rank)
    return [
        sky.SparseVector(
            np.sort(random.choice(30_000, 10_000, replace=False)),
            random.standard_normal(10_000).astype(np.float32),
            n=30_000,
        ),
        random.standard_normal(5_000).astype(np.float32),
    ]


def bits(x: Any) -> bytes:
    return bytes(x.to_dense().tobytes() if isinstance(x, sky.SparseVector) else x.tobytes())


def sums(comm: sky.Comm, calls: int) -> list[bytes]:
    return [b"".join(bits(comm.allreduce(x)) for x in inputs(comm.rank)) for _ in range(calls)]


def test_fifty_fresh_groups_that_do_not_adapt_have_the_same_bits() -> None:
    def body(comm: sky.Comm) -> list[bytes]:
        with sky.Comm(begin_with(comm._native, None, False, None)) as fixed:
            return sums(fixed, 3)

    all_bits = {one for _ in range(50) for rank in on_all(4, body) for one in rank}
    assert len(all_bits) == 1


def test_in_fifty_fresh_groups_the_bits_stay_after_the_first_calls() -> None:
    tried = False
    for _ in range(50):
        ranks = on_all(4, lambda comm: sums(comm, WARM_UP + 15))
        assert ranks[1:] == ranks[:-1], "the bits differ between ranks"
        assert len(set(ranks[0][WARM_UP:])) == 1
        tried |= len(set(ranks[0])) > 1
    assert tried, "no group has tried several algorithms, so the test shows nothing"


FRESH = """
import hashlib
random = np.random.default_rng(comm.rank)
x = sky.SparseVector(np.sort(random.choice(30_000, 10_000, replace=False)), random.standard_normal(10_000), n=30_000)
said = hashlib.sha256()
for _ in range(10):
    said.update(comm.allreduce(x).to_dense().tobytes())
    said.update(comm.reduce_scatter(x).to_dense().tobytes())
say(comm.rank, said.hexdigest())
"""


def test_fresh_processes_that_do_not_adapt_have_the_same_bits(processes: Processes) -> None:
    runs = [processes.lines(3, FRESH, options="adapt=False") for _ in range(4)]
    said = [[out for out, _ in run] for run in runs]
    assert all(out for out in said[0]) and all(run == said[0] for run in said), runs
