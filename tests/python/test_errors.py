"""The error classes: what they are, what they carry, and that they survive a trip between processes."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import skyphos as sky
from conftest import on_all
from skyphos import errors


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
def test_each_is_a_skyphos_error_and_what_python_calls_it(error: Exception, also: type) -> None:
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
def test_a_wrong_type_on_one_rank_is_told_to_all(settings: dict[str, Any]) -> None:
    """Everyone raises or nobody: the others do not wait for a rank that never came."""

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
