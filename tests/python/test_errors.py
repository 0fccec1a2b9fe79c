"""The error classes: what they are, what they carry, and that they survive a trip between processes."""

from __future__ import annotations

import pickle

import pytest

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
