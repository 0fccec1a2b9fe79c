"""Characters that a stream cannot encode are replaced, and are never an error."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyphos.text.plain_text import encoded, plain

SKYPHOS = [sys.executable, "-m", "skyphos.cli"]
PLAN = ["plan", "--ranks", "8", "--size", "1e6", "--density", "0.1"]


@given(
    text=st.text(st.characters(codec=None, exclude_categories=[])),
    encoding=st.sampled_from(["ascii", "latin-1", "utf-8", "cp1252"]),
)
def test_any_text_can_be_encoded(text: str, encoding: str) -> None:
    found = encoded(text, encoding)
    try:
        assert found == text.encode(encoding)  # what can be encoded is left as it is
    except UnicodeEncodeError:
        assert found.decode(encoding)
    assert plain(plain(text)) == plain(text)


def test_the_nearest_ascii() -> None:
    assert encoded("… ≈ 5 µs × café – 中", "ascii") == b"... ~ 5 us x cafe - \\u4e2d"
    assert plain(os.fsdecode(b"raw\xff")) == "raw\\xff"


@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONIOENCODING": "latin-1"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "cp1252"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii:strict"},
    ],
)
@pytest.mark.parametrize(
    "command", [PLAN, ["--help"], ["run", "--help"], ["pagerank", "--help"], ["pagerank", "nö\u2026ne"]]
)
def test_commands_in_any_encoding(command: list[str], env: dict[str, str]) -> None:
    clean = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONIOENCODING", "LC_ALL", "PYTHONUTF8")
    }
    done = subprocess.run([*SKYPHOS, *command], env=clean | env, capture_output=True, check=False, timeout=60)
    assert done.returncode == (2 if "pagerank" in command and "--help" not in command else 0), done.stderr
    assert b"UnicodeEncodeError" not in done.stderr and b"Traceback" not in done.stderr
    if command == PLAN:
        assert b"SparCML, Lemma 5.2" in done.stdout  # the last line
