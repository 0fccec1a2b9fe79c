"""Variables and settings: each value has its effect, or is refused by name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skyphos as sky
from skyphos.errors import BadInput
from skyphos.group import _shares_memory
from skyphos.inputs import variables
from skyphos.inputs.settings import real, truth, whole
from skyphos.inputs.units import as_bytes
from skyphos.launch import discover

YES, NO = ["1", "true", "on", "yes", "TRUE", "On", " yes "], ["0", "false", "off", "no", "OFF", "False", "nO"]


@pytest.mark.parametrize("name", ["SKYPHOS_SHARED_MEMORY", "SKYPHOS_ADAPT", "SKYPHOS_DEBUG"])
def test_all_flags_accept_the_same_values(name: str) -> None:
    assert [variables.flag(name, {name: value}) for value in YES] == [True] * len(YES)
    assert [variables.flag(name, {name: value}) for value in NO] == [False] * len(NO)
    assert [variables.flag(name, {name: value}) for value in ("", "  ")] == [None, None]
    for value in ("2", "offf", "enable", "-1", "none", "0x0"):
        with pytest.raises(BadInput, match=f"{name} must be .*{value!r}"):
            variables.flag(name, {name: value})


def test_shared_memory_follows_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, expected in ((None, True), ("off", False), ("NO", False), ("on", True), ("", True)):
        if value is not None:
            monkeypatch.setenv("SKYPHOS_SHARED_MEMORY", value)
        assert _shares_memory(None) is expected
        assert _shares_memory(True) is True  # the argument takes precedence
    monkeypatch.setenv("SKYPHOS_SHARED_MEMORY", "of")
    with pytest.raises(BadInput, match="SKYPHOS_SHARED_MEMORY"):
        sky.init()


@pytest.mark.parametrize("value", ["4.0", "1_0", "x", "٣", "0x4", "1e1"])
@pytest.mark.parametrize("name", ["SKYPHOS_THREADS", "SKYPHOS_RANK", "RANK", "MASTER_PORT", "SKYPHOS_LISTEN_FD"])
def test_numbers_are_decimal_digits(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "SKYPHOS_THREADS":
        monkeypatch.setenv(name, value)
        with pytest.raises(BadInput, match=f"{name} must be a whole number"):
            sky.init()
        return
    environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "7000"}
    if name.startswith("SKYPHOS"):
        environ = {"SKYPHOS_RANK": "0", "SKYPHOS_WORLD_SIZE": "2", "SKYPHOS_RENDEZVOUS": "h:1"}
    with pytest.raises(BadInput, match=name):
        discover(environ=environ | {name: value})


def test_every_variable_that_is_read_is_known() -> None:
    """An unknown variable would be reported as a typing error, and typing errors in its name would not be."""
    package, read = Path(sky.__file__).parent, set()
    for file in package.rglob("*.py"):
        read |= set(re.findall("[\"'](SKYPHOS_[A-Z_]*[A-Z])[\"']", file.read_text(encoding="utf-8")))
    read.remove("SKYPHOS_SHARED_MEMROY")  # an example
    assert len(read) > 10 and read <= set(variables.KNOWN)


@pytest.mark.parametrize("name", ["SKYPHOS_SHARED_MEMROY", "SKYPHOS_THREAD", "SKYPHOS_ADPAT", "SKYPHOS_TLS_KEYS"])
def test_a_typing_error_in_a_name_warns_once(name: str) -> None:
    code = "import skyphos as sky\nfor _ in range(2): sky.init().close()"
    env = os.environ | {name: "0", "SKYPHOS_TEST_SOMETHING": "x", "SKYPHOS_FAULT_SEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stderr.count("has no effect: is SKYPHOS_") == 1 and name in done.stderr


def test_no_warning_without_a_typing_error() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        variables.warn_of_typing_errors(dict.fromkeys(variables.KNOWN, "1") | {"SKYPHOS_MPIEXEC": "mpiexec"})


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"timeout": "a"}, "timeout"),
        ({"timeout": None}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"heartbeat": "10"}, "heartbeat"),
        ({"threads": "two"}, "threads"),
        ({"threads": 1.5}, "threads"),
        ({"threads": 0}, "threads"),
        ({"socket_buffer": "1MB"}, "socket_buffer"),
        ({"congestion_control": 3}, "congestion_control"),
        ({"share_hosts": "no"}, "share_hosts"),
        ({"shared_memory": "off"}, "shared_memory"),
        ({"replication": 1.5}, "replication"),
        ({"replication": "2"}, "replication"),
        ({"rank": 0.5, "world_size": 2}, "rank"),
        ({"rank": "0", "world_size": 2}, "rank"),
        ({"rendezvous": 7000}, "rendezvous"),
        ({"token": 5}, "token"),
        ({"transport": 3}, "transport"),
        ({"adapt": "off"}, "adapt"),
    ],
)
def test_arguments_of_init_are_named(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(BadInput, match=name):
        sky.init(**arguments)


def test_values_of_equivalent_types_are_accepted() -> None:
    with sky.init(timeout=np.float32(5), threads=2.0, replication=1.0, shared_memory=np.True_) as comm:  # type: ignore[arg-type]
        assert comm.size == 1
    with sky.init(rank=0.0, world_size=np.int64(1)) as comm:  # type: ignore[arg-type]
        assert comm.size == 1
    for comm in sky.local(2.0, timeout=5, replication=1.0):  # type: ignore[arg-type]
        comm.close()


@pytest.mark.parametrize("value", [10, 10.0, np.int8(10), np.float64(10), np.array(10), np.array(10.0)])
def test_whole_numbers(value: object) -> None:
    assert whole(value, "n", 1, 100) == 10 and type(whole(value, "n", 1, 100)) is int


@pytest.mark.parametrize(
    "value", [2.5, "10", b"1", None, True, np.True_, float("nan"), float("inf"), [1], 1j, np.array([1])]
)
def test_invalid_whole_numbers(value: object) -> None:
    with pytest.raises(BadInput, match=r"^n must be a whole number"):
        whole(value, "n", 1, 100)


@pytest.mark.parametrize("value", ["1", None, True, float("nan"), 1j, [1.0]])
def test_invalid_real_numbers(value: object) -> None:
    with pytest.raises(BadInput, match=r"^t must be a number"):
        real(value, "t")


@pytest.mark.parametrize("value", ["off", "", None, 2, 0.0, [], np.array([True])])
def test_invalid_truth_values(value: object) -> None:
    with pytest.raises(BadInput, match=r"^x must be True or False"):
        truth(value, "x")


@pytest.mark.parametrize(
    ("value", "expected"), [("1GB", 10**9), ("64 kB", 64_000), ("2MiB", 2 << 20), ("512B", 512), (7.0, 7), (5, 5)]
)
def test_sizes_as_text(value: object, expected: int) -> None:
    assert as_bytes(value, "memory") == expected


@pytest.mark.parametrize("value", ["1 parsec", "GB", "-1GB", "", "0B", "1.5B", 2.5, None, 0, True, "1_0GB", "nanB"])
def test_invalid_sizes(value: object) -> None:
    with pytest.raises(BadInput, match=r"^memory"):
        as_bytes(value, "memory")


def test_a_shuffle_takes_sizes_as_text() -> None:
    with sky.init() as comm:
        keys, values = comm.shuffle([1, 2, 1], [1.0, 2.0, 3.0], memory="1GB", push_bytes="64kB", fetches=4.0)  # type: ignore[arg-type]
        assert dict(zip(keys, values.tolist(), strict=True)) == {1: 4.0, 2: 2.0}
        for options in ({"memory": "much"}, {"memory": 0}, {"push_bytes": "x"}, {"fetches": 1.5}, {"fetches": 0}):
            with pytest.raises(BadInput, match=next(iter(options))):
                comm.shuffle([1], [1.0], **options)  # type: ignore[arg-type]
