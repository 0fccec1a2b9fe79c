"""Broadcast of a dict of arrays of 1 GB to the processes of a host: bar 3 GB/s from object to object.

Each rank gets the whole object, and reads a number of each page. A time is from the call on root to the end of the last
rank. For comparison: `numpy.copy` of the same arrays in one process, a lower bound for any method that copies them.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from common import median_ratio, report, spawn

ARRAYS, BYTES, ROUNDS = 64, 1 << 30, 5


def main() -> None:
    import skyphos as sky

    comm = sky.init()
    each = BYTES // ARRAYS // 8
    for algorithm in ("auto", "chain"):
        times, copies = [], []
        for round_ in range(ROUNDS + 1):
            what = {f"array {k}": np.full(each, float(k + round_)) for k in range(ARRAYS)} if comm.rank == 0 else None
            comm.barrier()
            start = time.perf_counter()
            got = comm.broadcast(what, algorithm=algorithm)
            right = all((got[f"array {k}"][::512] == k + round_).all() for k in range(ARRAYS))
            comm.barrier()
            end = time.perf_counter()
            if not right or len(got) != ARRAYS:
                raise SystemExit(f"rank {comm.rank}: wrong")
            del got
            if comm.rank == 0 and round_ and what is not None:
                times.append(end - start)
                start = time.perf_counter()
                copied = [array.copy() for array in what.values()]
                copies.append(time.perf_counter() - start)
                del copied
        if comm.rank == 0:
            title = f"dict of {ARRAYS} arrays, {BYTES:,} bytes, to {comm.size} ranks, {algorithm}"
            bar = [BYTES / 3e9] * ROUNDS
            report(title, {"broadcast": times, "a copy": copies, "3 GB/s": bar}, median_ratio(times, bar), 1)
            print(json.dumps({"GB/s": [round(BYTES / took / 1e9, 2) for took in times]}), file=sys.stderr)
    comm.close()


if __name__ == "__main__":
    spawn(__file__, 2, main)
