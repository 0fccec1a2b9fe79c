"""Sums of outer products in which a rank is killed or stopped: the others learn which one, and go on without it."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from conftest import Processes

# Makes sums until an error; `{how}`: further arguments. The numbers are whole, so every order of additions agrees.
BODY = """
import scipy.sparse as sp
def factors(rank):
    random = np.random.default_rng(rank)
    a, b = random.integers(-3, 4, ({pairs}, 900)).astype(float), random.integers(-3, 4, ({pairs}, 700)).astype(float)
    return (sp.csr_array(a * (a > 1)), sp.csr_array(b * (b > 1))) if {sparse} else (a, b)
def right(got, ranks):
    dense = lambda x: x.toarray() if {sparse} else x
    return (dense(got) == sum(dense(a).T @ dense(b) for a, b in map(factors, ranks))).all()
a, b = factors(comm.rank)
assert right(comm.outer_product_sum(a, b, {how}), range(4))
say("begins")
try:
    while True:
        comm.outer_product_sum(a, b, {how})
except sky.SkyphosError as error:
    say(type(error).__name__, error.rank)
left = comm.shrink()
say("right" if right(left.outer_product_sum(a, b, {how}), (0, 1, 3)) else "wrong", left.size)
"""

CASES = [
    ("algorithm='allgather', exchange='direct'", 2, False),
    ("algorithm='allgather', exchange='recursive_doubling'", 300, False),
    ("algorithm='rabenseifner'", 40, False),
    ("algorithm='ring'", 40, False),
    ("algorithm='butterfly'", 2, False),
    ("algorithm='allreduce'", 2, False),
    ("", 40, True),
]


def next_words(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


@pytest.mark.parametrize("options", ["", "shared_memory=False"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0] or "sparse")
def test_a_killed_rank_is_named_and_the_others_go_on(
    processes: Processes, case: tuple[str, int, bool], options: str
) -> None:
    how, pairs, sparse = case
    group = processes.start(4, BODY.format(how=how, pairs=pairs, sparse=sparse), options=options)
    for process in group:
        assert next_words(process) == ["begins"]
    begin = time.monotonic()
    group[2].kill()
    for rank in (0, 1, 3):
        assert next_words(group[rank]) == ["PeerLost", "2"]
    assert time.monotonic() - begin < 10
    for rank in (0, 1, 3):
        out, err = group[rank].communicate(timeout=60)
        assert (out.split(), err) == (["right", "3"], "")


@pytest.mark.parametrize("case", CASES[1:3], ids=lambda case: case[0])
def test_a_stopped_rank_is_named(processes: Processes, case: tuple[str, int, bool]) -> None:
    """Its operating system keeps its connections open, so the others find out only by the group's time-out."""
    how, pairs, sparse = case
    body = BODY.format(how=how, pairs=pairs, sparse=sparse).replace("error.rank", "*error.missing, error.call")
    group = processes.start(4, body, timeout=4)
    for process in group:
        assert next_words(process) == ["begins"]
    group[2].send_signal(signal.SIGSTOP)
    for rank in (0, 1, 3):
        said = next_words(group[rank])
        assert said[:2] == ["Timeout", "2"] and said[2].startswith("outer_product_sum("), said
