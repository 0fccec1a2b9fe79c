"""PyTorch's generic distributed suite for one backend and one number of ranks; :mod:`run` starts it as a process.

The suite chooses tests by the name of the backend, and tests compare it to choose what they do. So the name here is
equal to Gloo's or MPI's too (``CHOSEN_AS``), but is the backend's own where groups are made.
"""

from __future__ import annotations

import json
import os
import sys
import unittest
from typing import Any

import torch.multiprocessing

BACKEND = os.environ["BACKEND"]
os.environ["BACKEND"] = os.environ["CHOSEN_AS"]
import torch.testing._internal.distributed.distributed_test as generic  # noqa: E402

os.environ["BACKEND"] = BACKEND


class _Name(str):
    """The backend's name, which also equals another backend's."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return other in (str(self), os.environ["CHOSEN_AS"])

    def __ne__(self, other: object) -> bool:
        return not self == other


generic.BACKEND = _Name(BACKEND)

if BACKEND == "skyphos":
    import skyphos.torch

    skyphos.torch.register()

_context: Any = torch.multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["suite"])


def _in_environment(environment: dict[str, str], run: Any, *args: Any, **kwargs: Any) -> None:
    """Run with this environment, because the fork server was started with an older one."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    run(*args, **kwargs)


def _process(target: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
    return _context.Process(
        target=_in_environment, name=name, args=(dict(os.environ), target, *args), kwargs=kwargs or {}
    )


class Generic(generic.TestDistBackend, generic.DistributedTest._DistTestBase):
    """All of PyTorch's tests. Ranks are forked from a process that has imported torch already."""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(_process)


class Record(unittest.TextTestResult):
    """Writes a line for each test: its name, how it ended, and why."""

    def _write(self, test: unittest.TestCase, outcome: str, why: str = "") -> None:
        print(json.dumps({"test": test.id().split(".")[-1], "outcome": outcome, "why": why}), file=_results, flush=True)

    def addSuccess(self, test: Any) -> None:
        self._write(test, "passed")
        super().addSuccess(test)

    def addSkip(self, test: Any, reason: str) -> None:
        self._write(test, "skipped", reason)
        super().addSkip(test, reason)

    def addFailure(self, test: Any, err: Any) -> None:
        self._write(test, "failed", self._exc_info_to_string(err, test))
        super().addFailure(test, err)

    def addError(self, test: Any, err: Any) -> None:
        self._write(test, "failed", self._exc_info_to_string(err, test))
        super().addError(test, err)


if __name__ == "__main__":
    import suite

    names = [name for name in unittest.TestLoader().getTestCaseNames(suite.Generic) if sys.argv[2] in name]
    tests = unittest.TestSuite(map(suite.Generic, names))
    with open(sys.argv[1], "a") as _results:
        ended = unittest.TextTestRunner(resultclass=Record, verbosity=2).run(tests)
    sys.exit(not ended.wasSuccessful())
