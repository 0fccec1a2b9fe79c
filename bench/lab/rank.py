"""A rank of the lab: a process on its host that executes the commands of the conductor.

It is started as `python -m lab.rank SOCKET RANK`, says hello and receives a :class:`Job`. Then commands arrive as
tuples, and each is answered by its result or the text of its error. The socket is a Unix socket, so that commands and
answers do not use the links.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .contenders import Contender, make
from .contenders.ours import Ours
from .data import load
from .drain import Drain
from .measure import latency
from .oracle import Oracle
from .protocol import Failure, Job


class Rank:
    """Each public method is a command of the conductor."""

    def __init__(self, job: Job) -> None:
        self.job, place = job, job.place
        self.data = load(job.folder, place.rank, place.n)
        self.oracle = Oracle.load(job.folder)
        self.contenders: dict[str, Contender] = {}
        self.given: Any = None
        self.drainer: Drain | None = None
        if job.rate_bits is not None:
            following = place.addresses[(place.rank + 1) % place.size]
            self.drainer = Drain(place.addresses[place.rank], following, job.rate_bits)

    def load(self, folder: Path, n: int) -> None:
        """Load other inputs; contenders keep their groups."""
        self.data, self.oracle = load(folder, self.job.place.rank, n), Oracle.load(folder)

    def setup(self, name: str) -> None:
        """Join a contender's group."""
        contender = make(name)
        contender.setup(self.job.place)
        self.contenders[name] = contender
        gc.collect()
        gc.freeze()  # the collection before each call then skips the objects of libraries

    def prepare(self, name: str) -> None:
        """Convert the input for a contender."""
        self.given = self.contenders[name].prepare(self.data)
        gc.collect()

    def drain(self) -> None:
        """Keep the link busy until the next call."""
        if self.drainer is not None:
            self.drainer.start()

    def run(self, name: str, start_s: float, check: bool) -> tuple[float, float, str | None]:
        """Call a contender at an agreed time; return start, end and, with ``check``, the error of its answer."""
        contender = self.contenders[name]
        gc.disable()
        time.sleep(max(0.0, start_s - time.monotonic()))
        if self.drainer is not None:
            self.drainer.stop()
        begin, end, result = latency(contender, self.given)
        gc.enable()
        contender.settle()
        answer = contender.answer(result) if check else None
        fault = None if answer is None else self.oracle.fault(answer, whole=contender.kind != "partial")
        self.given = None
        return begin, end, fault

    def explain(self, name: str) -> Any:
        """The explanation of a call of Skyphos with the present input. Collective."""
        contender = self.contenders[name]
        assert isinstance(contender, Ours)
        return contender.explain(contender.prepare(self.data))

    def close(self) -> None:
        """Leave all groups."""
        for contender in reversed(self.contenders.values()):
            contender.close()


def main(path: str, rank: str) -> None:
    line = socket.socket(socket.AF_UNIX)
    line.connect(path)
    connection: Connection[Any, Any] = Connection(line.detach())
    connection.send((int(rank), os.getpid()))
    worker = Rank(connection.recv())
    connection.send(None)
    while True:
        try:
            word, *arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = getattr(worker, word)(*arguments)
        except Exception as error:
            traceback.print_exc()
            answer = Failure(f"{type(error).__name__}: {error}")
        connection.send(answer)
        if word == "close":
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
