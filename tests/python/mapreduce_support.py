"""Jobs and data that the tests of map-reduce share."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import skyphos as sky
from conftest import on_all
from skyphos.mapreduce.split import split

WORDS = [f"w{k * k % 17}" for k in range(500)]


def book(folder: Path, parts: int) -> str:
    """Write ``WORDS`` to a text file and cut it into ``parts``; return the partition file."""
    path = folder / "book.txt"
    path.write_text("".join(" ".join(WORDS[at : at + 7]) + "\n" for at in range(0, len(WORDS), 7)), encoding="utf-8")
    split(path, folder / "parts", parts)
    return str(folder / "parts" / "partitions.json")


def words_of(text: bytes, state: Any) -> Any:
    return text.decode().split(), None


def ones_of(text: bytes, state: Any) -> Any:
    for line in text.decode().splitlines():
        yield line.split(), [1] * len(line.split())


def counted(results: list[Any]) -> dict[str, int]:
    """The keys and values of all ranks as one dictionary; no key may be on two ranks."""
    pairs = [(key, int(value)) for keys, values in results for key, value in zip(keys, values, strict=True)]
    assert len(pairs) == len(dict(pairs))
    return dict(pairs)


POINTS: npt.NDArray[np.float64] = np.random.default_rng(0).normal(size=(400, 2)) + np.arange(400)[:, None] % 4 * 5


def nearest(points: Any, centres: Any) -> Any:
    labels = ((points[:, None] - centres) ** 2).sum(2).argmin(1)
    return labels, np.column_stack([points, np.ones(len(points))])


def means(keys: Any, sums: Any) -> Any:
    centres = np.empty((4, 2))
    centres[keys] = sums[:, :2] / sums[:, 2:]
    return centres


def plain_k_means(iterations: int) -> npt.NDArray[np.float64]:
    """The expected centres of k-means, computed by NumPy in one process."""
    centres = POINTS[:4]
    for _ in range(iterations):
        labels, _ = nearest(POINTS, centres)
        centres = np.stack([POINTS[labels == k].mean(0) for k in range(4)])
    return centres


JOB = """
import glob, os, socket, time
from skyphos.mapreduce import MapReduce
name = os.environ.get("HOST", "here")
socket.gethostname = lambda: name
folder, dies_at = os.environ["FOLDER"], os.environ.get("DIES_AT", "")
def nearest(points, centres):
    labels = ((points[:, None] - centres) ** 2).sum(2).argmin(1)
    return labels, np.column_stack([points, np.ones(len(points))])
def counting(points, centres):
    if str(job.iterations[-1].number + 1 if job.iterations else 1 + first) == dies_at:
        # If several ranks die, wait until all of them are here, so that none notices a loss earlier.
        open(f"{folder}/dies-{job.comm.rank}", "w").close()
        while len(glob.glob(f"{folder}/dies-*")) < int(os.environ.get("DIE_TOGETHER", "1")):
            time.sleep(0.001)
        os._exit(9)
    return nearest(points, centres)
def means(keys, sums):
    centres = np.empty((4, 2))
    centres[keys] = sums[:, :2] / sums[:, 2:]
    return centres
first = int(os.environ.get("FIRST", "0"))
points = np.load(folder + "/points.npy")
checkpoint = folder + "/checkpoint" if os.environ.get("CHECKPOINT") else None
job = MapReduce(comm, map=counting, reduce="sum", combine=means, partitions=folder + "/parts/partitions.json",
                checkpoint=checkpoint, schedule=os.environ.get("SCHEDULE", "static"),
                collective=os.environ.get("COLLECTIVE", "auto"))
centres = job.iterate(points[:4], iterations=6)
say(centres.tobytes().hex(), [done.number for done in job.iterations][:1], job.comm.size)
"""


def with_points(folder: Path) -> None:
    """Write ``POINTS`` to a file and cut it into 8 partitions, as ``JOB`` expects."""
    np.save(folder / "points.npy", POINTS)
    split(folder / "points.npy", folder / "parts", 8)


def on_hosts(hosts: list[str], monkeypatch: pytest.MonkeyPatch, body: Any) -> list[Any]:
    """Call ``body`` on ranks that run as threads, each of which believes to be on the given host."""
    name = threading.local()
    monkeypatch.setattr(socket, "gethostname", lambda: getattr(name, "host", "here"))

    def on_host(comm: sky.Comm) -> Any:
        name.host = hosts[comm.rank]
        return body(comm)

    return on_all(len(hosts), on_host)
