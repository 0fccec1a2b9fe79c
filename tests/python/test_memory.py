"""Peak memory of a sparse allreduce: at most 1.75 times a rank's own input and the result together."""

from __future__ import annotations

import sys

import pytest

from conftest import Processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")

#: Rows that do not overlap: 50 MB a rank if ``even``, else 100 MB on rank 0. The result has all of them.
CALL = """
from pathlib import Path

def mb(key):
    return int(Path("/proc/self/status").read_text().split(key + ":")[1].split()[0]) / 1000

comm.allreduce(np.ones(1))
idle = mb("VmRSS")
rows = np.arange(comm.rank, 390_000, 2) * 256 if {even} else np.arange(390_000 * (1 - comm.rank)) * 256
mine = sky.SparseVector(rows, np.ones((len(rows), 64), np.float32), 10**8)
comm.barrier()
Path("/proc/self/clear_refs").write_text("5")
sums = comm.allreduce(mine, algorithm={algorithm!r})
peak = mb("VmHWM") - idle
assert sums.nnz == 390_000 and (sums.values == 1).all()
say(peak / ((mine.values.nbytes + sums.values.nbytes) / 1e6))
"""


@pytest.mark.parametrize(
    ("algorithm", "even", "max_ratio"),
    [
        ("recursive_doubling", True, 1.45),
        ("allgather", True, 1.45),
        ("allgather", False, 1.45),
        ("split_allgather", True, 1.75),
        ("split_allgather", False, 1.75),
        ("ring", True, 1.75),
    ],
)
def test_first_call(processes: Processes, algorithm: str, even: bool, max_ratio: float) -> None:
    # A split algorithm holds twice the part that a rank reduces: by itself, and in the result.
    for out, err in processes.lines(2, CALL.format(algorithm=algorithm, even=even)):
        assert not err and 1 < float(out) < max_ratio, (out, err)
