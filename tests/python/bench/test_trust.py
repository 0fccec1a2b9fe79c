"""Pickles run code where they are read: between hosts ranks read them only from ranks that proved a token."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"
sys.path.insert(0, str(BENCH))

from lab.cluster import Cluster, unavailable  # noqa: E402

needs_cluster = pytest.mark.skipif(unavailable() is not None, reason=f"no cluster here: {unavailable()}")

RANK = """
import json, numpy as np, skyphos as sky
from skyphos.mapreduce import MapReduce
said = {}
with sky.init(timeout=30) as comm:
    def tried(name, work):
        try:
            work()
            said[name] = "done"
        except sky.BadInput as error:
            said[name] = str(error)
    root = comm.rank == 0
    tried("array", lambda: comm.broadcast(np.arange(5) if root else None))
    tried("object", lambda: comm.broadcast({1: {2}} if root else None))
    tried("rows", lambda: comm.shuffle(np.arange(5), np.ones(5)))
    tried("objects", lambda: comm.shuffle(np.arange(5), [{1}] * 5, combine="list"))
    tried("function", lambda: comm.shuffle([1], [{1}], combine=lambda key, a, b: a | b))
    results = {"reduce": lambda key, rows: {1}, "combine": lambda keys, found: None}
    tried("job", lambda: MapReduce(comm, map=lambda x, _: (x, x), partitions=[np.arange(3)], **results).run())
    tried("again", lambda: comm.allreduce(np.ones(1)))
print(json.dumps(said))
"""

SENT_AS_PICKLES = {"object", "objects", "function", "job"}


@needs_cluster
@pytest.mark.parametrize("proved", [True, False])
def test_objects_between_hosts_take_a_token(proved: bool) -> None:
    with Cluster(2, "1gbit", "128k") as cluster:
        ranks = []
        for rank in range(2):
            env = cluster.environment(rank, 2, 29970, "a token of the tests")
            if not proved:
                del env["SKYPHOS_TOKEN"]
            command = cluster.command(rank, [sys.executable, "-c", RANK])
            ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        said = [process.communicate(timeout=60) for process in ranks]
    for out, err in said:
        assert out, err
        for name, what in json.loads(out).items():
            if proved or name not in SENT_AS_PICKLES:
                assert what == "done", name
            else:
                assert "have proved no token: pass token= to sky.init() on all ranks" in what, name
