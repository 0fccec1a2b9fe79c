"""The error classes: their base classes, their attributes, and pickling between processes."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest

import skyphos as sky
from conftest import Processes, on_all
from skyphos import errors
from skyphos.collectives.agreement import fail


@pytest.mark.parametrize(
    ("error", "also"),
    [
        (errors.PeerLost("gone", rank=3, address="h:1"), ConnectionError),
        (errors.Timeout("late", missing=(1, 2), call="barrier"), TimeoutError),
        (errors.BadInput("no"), ValueError),
        (errors.Mismatch("two calls"), Exception),
        (errors.Refused("wrong token"), Exception),
    ],
)
def test_errors_are_subclasses_of_skyphos_error_and_of_pythons_errors(error: Exception, also: type) -> None:
    assert isinstance(error, errors.SkyphosError)
    assert isinstance(error, also)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_message_alone_is_enough() -> None:
    assert errors.PeerLost("gone").rank is None
    assert errors.Timeout("late").missing == ()
    assert str(errors.PeerLost("gone")) == "gone"


def test_all_names_every_class() -> None:
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert classes == set(errors.__all__)


@pytest.mark.parametrize(
    "settings",
    [{"algorithm": None}, {"algorithm": ["ring"]}, {"split": 3}, {"degrees": 3}, {"expected_nnz": "9"}, {"op": 7}],
)
def test_a_wrong_type_on_one_rank_raises_on_all(settings: dict[str, Any]) -> None:
    """All ranks raise, so that none waits for a rank that never comes."""

    def body(comm: sky.Comm) -> str:
        x = sky.SparseVector([comm.rank], np.ones(1), n=10)
        wrong: Any = settings if comm.rank == 0 else {}
        with pytest.raises(sky.BadInput) as raised:
            comm.allreduce(x, **wrong)
        assert comm.allreduce(x, explain=1, async_op=0)[0].nnz == comm.size  # type: ignore[call-overload]
        with pytest.raises(sky.BadInput):
            comm.allgather(x, algorithm=None if comm.rank == 0 else "ring")  # type: ignore[arg-type]
        return str(raised.value)

    for rank, text in enumerate(on_all(3, body, timeout=20)):
        ((name, value),) = settings.items()
        assert text.startswith("" if rank == 0 else "rank 0: "), text
        assert f"{name} must be " in text and text.endswith(f", not {value!r}"), text


def test_errors_in_a_group_that_the_library_made_number_ranks_as_the_user_knows_them() -> None:
    """The library makes such groups for shuffles, which first gather on each host, and for hooks of two levels."""

    def body(comm: sky.Comm) -> None:
        inner = comm._split_within(comm.rank % 2)
        assert inner is not None
        with pytest.raises(sky.Mismatch) as differs:
            inner.allreduce(np.ones(1 + comm.rank // 2))
        one, other = comm.rank % 2, comm.rank % 2 + 2
        assert re.search(rf"rank {one} is in .*, rank {other} is in ", str(differs.value))
        with pytest.raises(sky.BadInput, match=rf"^rank {other}: this one" if comm.rank == one else "this one"):
            fail(inner, ValueError("this one")) if comm.rank == other else inner.barrier()
        if comm.rank < 2:
            inner.close()
            comm.close()
        else:
            with pytest.raises(sky.PeerLost, match=rf"rank {one} .*is lost") as lost:
                inner.barrier()
            assert lost.value.rank == one

    on_all(4, body)


def test_errors_number_ranks_as_the_group_that_was_called(processes: Processes) -> None:
    code = """
part = comm.split(comm.rank % 2, key=-comm.rank)
if comm.rank == 3:
    comm.recv(1)
    raise ValueError("no more")
if comm.rank == 1:
    try:
        part.broadcast("x", root=5)
    except sky.BadInput as error:
        say(error)
    comm.send("go", 3)
    calls = (
        lambda: part.barrier(),
        lambda: part.recv(0),
        lambda: part.allreduce(np.ones(1), async_op=True).wait(),
        lambda: part.send(np.ones(2_000_000), 0),
    )
    for call in calls:
        try:
            call()
        except sky.PeerLost as error:
            say(error.rank, str(error).startswith("rank 0 ("), "rank 0 failed: ValueError: no more" in str(error))
if comm.rank == 2:
    try:
        part.barrier()
    except sky.Timeout as error:
        say(error.missing, "rank 1 did not come" in str(error))
    comm.send("done", 0)
if comm.rank == 0:
    while True:  # rank 2 sends after its time-out, which is as long as this rank's
        try:
            comm.recv(2)
            break
        except sky.Timeout:
            pass
"""
    said = processes.start(4, code, timeout=5)
    outs = [process.communicate(timeout=60) for process in said]
    first, *lost = outs[1][0].splitlines()
    assert first == "root=5 is not a rank of a group of 2: ranks are 0 to 1", outs[1]
    assert lost == ["0 True True"] * 4, outs[1]
    assert outs[2][0].splitlines() == ["(1,) True"], outs[2]
