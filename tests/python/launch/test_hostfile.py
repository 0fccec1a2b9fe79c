"""Host files: MPICH's and Open MPI's forms are read, and every other line is refused by its number."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyphos.errors import BadInput
from skyphos.launch.hostfile import parse_hostfile

NAMES = st.sampled_from(["n1", "node-7.cluster.local", "10.0.0.4", "[::1]", "user@n1", "gpu_3", "N9."])
FORMS = st.sampled_from(["{}", "{}:4", "{} slots=4", "{} slots=4 max_slots=8", "{}\tslots=4  # four", "{} max-slots=4"])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hosts") / "hosts"


@given(
    lines=st.lists(st.tuples(NAMES, FORMS), min_size=1, max_size=5),
    mark=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
    noise=st.sampled_from(["", "# spare", "   ", "\t# x"]),
)
@settings(deadline=None)
def test_forms_that_launchers_know(file: Path, lines: list, mark: bool, end: str, noise: str) -> None:
    text = end.join(f"{noise}{end}{form.format(name)}" for name, form in lines)
    file.write_bytes((b"\xef\xbb\xbf" if mark else b"") + text.encode() + end.encode())
    expected: dict[str, int] = {}
    for name, form in lines:
        host = name.strip("[]")
        expected[host] = expected.get(host, 0) + (
            4 if "{}:4" in form or " slots=4" in form or "\tslots=4" in form else 1
        )
    assert parse_hostfile(str(file)) == list(expected.items())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("n1 4", "'4' is not understood"),
        ("n1 slots=0", "'slots=0' is not understood"),
        ("n1 slots=x", "is not understood"),
        ("n1 slots 4", "is not understood"),
        ("n1:x", "'n1:x' is no host"),
        ("n1:", "is no host"),
        ("n1:0", "at least one"),
        (":4", "is no host"),
        ("n1:4 slots=4", "says twice"),
        ("n1 slots=4 slots=4", "says twice"),
        ("n1 slots=9 max_slots=8", "slots=9 is more than max_slots=8"),
        ("[::1", "is no host"),
        ("[zz]:4", "no host"),
        ("[1:2]:4", "no IPv6 address"),
        ("-oProxyCommand=sh", "is no host"),
        ("n1,n2", "is no host"),
        ("n1;rm", "is no host"),
        ("$(id)", "is no host"),
        ("n1 cpu=4", "'cpu=4' is not understood"),
        ("@n1", "is no host"),
        ("ñ1", "is no host"),
    ],
)
def test_a_line_that_is_not_understood_is_named(file: Path, line: str, why: str) -> None:
    file.write_text(f"# hosts\nok\n{line}\n", encoding="utf-8")
    with pytest.raises(BadInput, match="line 3: ") as caught:
        parse_hostfile(str(file))
    assert why in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "why"), [(b"", "no host"), (b"\xef\xbb\xbf# none\r\n", "no host"), (b"\xff\xfen\x001\x00", "utf-8")]
)
def test_files_without_a_host(file: Path, content: bytes, why: str) -> None:
    file.write_bytes(content)
    with pytest.raises(BadInput, match=why):
        parse_hostfile(str(file))


def test_an_address_without_slots(file: Path) -> None:
    file.write_text("2001:db8::7\nuser@fe80::1%eth0 slots=2\n")
    assert parse_hostfile(str(file)) == [("2001:db8::7", 1), ("user@fe80::1%eth0", 2)]
