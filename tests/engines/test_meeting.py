"""The rendezvous and outcomes that all engines share, tested without an engine."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys

import pytest

import skyphos as sky
from skyphos.engines import RankFailed
from skyphos.engines._meeting import Outcome, Outcomes, address_toward, listen


def test_engines_are_imported_when_they_are_used() -> None:
    code = "import sys, skyphos as sky; from skyphos import dask, ray, spark; assert sky.ray is ray and ray.run\n"
    code += "assert not {'dask', 'distributed', 'ray', 'pyspark'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_error_that_caused_the_others_is_raised() -> None:
    lost = Outcome(0, "n1", error=sky.PeerLost("rank 1 is gone", rank=1))
    for outcomes, gone, kind in (
        ([lost, Outcome(1, "n2", error=ValueError("no"))], [], RankFailed),
        ([lost], [1], sky.PeerLost),
        ([lost, Outcome(1, "n2", 3)], [], sky.PeerLost),
    ):
        ended = Outcomes(2)
        for one in outcomes:
            ended.add(one)
        for rank in gone:
            ended.lose(rank, "killed")
        with pytest.raises(kind) as raised:
            ended.results()
        assert raised.value.rank == 1


def test_errors_travel() -> None:
    for error in (RankFailed("no", rank=3), sky.PeerLost("gone", rank=3, address="n1:7")):
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.rank) == (str(error), 3)


def test_a_port_is_held_even_at_an_address_that_this_host_lacks() -> None:
    listener, address = listen("192.0.2.77")  # an address reserved for documentation
    with listener:
        assert address == f"192.0.2.77:{listener.getsockname()[1]}"
        socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=5).close()


def test_address_toward_the_own_host() -> None:
    assert address_toward("127.0.0.1") == "127.0.0.1"
