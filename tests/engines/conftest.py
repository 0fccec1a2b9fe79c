"""Tests against the engines themselves; each file skips where its engine is absent.

pip install 'skyphos[ray,dask,spark,stores]'
python -m pytest tests/engines
"""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import skyphos

HERE = Path(__file__).parent
PYTHON = Path(skyphos.__file__).parent.parent

# Workers are other processes: they find these tests' functions and this Skyphos by the environment, which they inherit.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(PYTHON), os.environ.get("PYTHONPATH", "")]).rstrip(
    os.pathsep
)
os.environ["PYSPARK_PYTHON"] = sys.executable
# Spark's JVM lives for seconds here: its optimizing compiler would take more time than it saves.
os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def pytest_configure(config: pytest.Config) -> None:
    # Warnings that engines give about themselves are no errors here.
    config.addinivalue_line("filterwarnings", "default")


@pytest.fixture(scope="session", autouse=True)
def no_profile_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ignore the user's own profile, which would change the choices of `auto`."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


@pytest.fixture
def example() -> Callable[[str], str]:
    """Run an example by the command in its first lines; return its output."""

    def run(name: str) -> str:
        path = HERE.parent.parent / "examples" / "engines" / name
        done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=80, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def check_docstring(run: Callable[..., Any]) -> None:
    """Run the example of a docstring, which `pytest --doctest-modules` skips because it needs the engine."""
    text = str(run.__doc__).replace("# doctest: +SKIP", "")
    test = doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, run.__module__, None, 0)
    assert doctest.DocTestRunner().run(test).failed == 0
