"""A process of `kills.py`: calls collectives that a seed selects, and compares each result with NumPy's."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import skyphos as sky

SIZES = (3, 1_000, 30_000, 200_000)
SPARSE = (
    *("auto", "recursive_doubling", "split_allgather", "split_allgather_dense", "butterfly"),
    *("ring", "allgather", "dense_ring", "dense_rabenseifner"),
)


class Calls:
    """Inputs of the ranks in each step, the calls with them, and the checks of their results."""

    def __init__(self, seed: int, comm: sky.Comm) -> None:
        self.seed, self.comm = seed, comm
        self.all: dict[str, Callable[[int, int, int], bool]] = {
            "allreduce": self.allreduce,
            "allgather": self.allgather,
            "gather": self.gather,
            "reduce": self.reduce,
            "scatter": self.scatter,
            "alltoall": self.alltoall,
            "reduce_scatter": self.reduce_scatter,
            "configure and reduce": self.configure_and_reduce,
            "split": self.split,
            "topk_allreduce": self.topk_allreduce,
            "barrier": self.barrier,
        }
        for algorithm in SPARSE:
            self.all[f"sparse allreduce by {algorithm}"] = self.sparse_allreduce(algorithm)

    def run(self, step: int) -> str | None:
        """Make the step's call; return its name if the result is wrong."""
        draw = random.Random(f"{self.seed} {step}")
        name, n, root = draw.choice(list(self.all)), draw.choice(SIZES), draw.randrange(self.comm.size)
        return None if self.all[name](step, n, root) else f"{name} of {n}"

    def part(self, step: int, rank: int, n: int) -> npt.NDArray[np.float64]:
        return np.random.default_rng([self.seed, step, rank]).integers(-99, 99, n).astype(np.float64)

    def parts(self, step: int, n: int) -> list[npt.NDArray[np.float64]]:
        return [self.part(step, rank, n) for rank in range(self.comm.size)]

    def chosen(self, step: int, rank: int, n: int) -> npt.NDArray[np.int64]:
        return np.unique(np.random.default_rng([self.seed, step, rank, 1]).integers(0, n, max(n // 10, 1)))

    def sparse_total(self, step: int, n: int) -> npt.NDArray[np.float64]:
        out = np.zeros(n)
        for rank in range(self.comm.size):
            indices = self.chosen(step, rank, n)
            out[indices] += self.part(step, rank, n)[: len(indices)]
        return out

    def allreduce(self, step: int, n: int, _root: int) -> bool:
        got = self.comm.allreduce(self.part(step, self.comm.rank, n))
        return same(got, sum(self.parts(step, n)))

    def sparse_allreduce(self, algorithm: Any) -> Callable[[int, int, int], bool]:
        def call(step: int, n: int, _root: int) -> bool:
            indices = self.chosen(step, self.comm.rank, n)
            mine = sky.SparseVector(indices, self.part(step, self.comm.rank, n)[: len(indices)], n)
            return same(self.comm.allreduce(mine, algorithm=algorithm).to_dense(), self.sparse_total(step, n))

        return call

    def allgather(self, step: int, n: int, _root: int) -> bool:
        return same(self.comm.allgather(self.part(step, self.comm.rank, n)), self.parts(step, n))

    def gather(self, step: int, n: int, root: int) -> bool:
        got = self.comm.gather(self.part(step, self.comm.rank, n), root=root)
        return self.comm.rank != root or same(got, self.parts(step, n))

    def reduce(self, step: int, n: int, root: int) -> bool:
        got = self.comm.reduce(self.part(step, self.comm.rank, n), root=root)
        return self.comm.rank != root or same(got, sum(self.parts(step, n)))

    def scatter(self, step: int, n: int, root: int) -> bool:
        mine = self.part(step, self.comm.rank, n)
        return same(self.comm.scatter(self.parts(step, n) if self.comm.rank == root else None, mine, root=root), mine)

    def alltoall(self, step: int, n: int, _root: int) -> bool:
        size, me = self.comm.size, self.comm.rank
        got = self.comm.alltoall([self.part(step, me * size + rank, n) for rank in range(size)])
        return same(got, [self.part(step, rank * size + me, n) for rank in range(size)])

    def reduce_scatter(self, step: int, n: int, _root: int) -> bool:
        owned = self.comm.owned_range(n)
        got = self.comm.reduce_scatter(self.part(step, self.comm.rank, n))
        return same(got, sum(self.parts(step, n))[owned.start : owned.stop])

    def configure_and_reduce(self, step: int, n: int, _root: int) -> bool:
        me, size = self.comm.rank, self.comm.size
        out, want = self.chosen(step, me, n), self.chosen(step, (me + 1) % size, n)
        got = self.comm.configure(out, want, n=n).reduce(self.part(step, me, n)[: len(out)])
        return same(got, self.sparse_total(step, n)[want])

    def split(self, step: int, n: int, _root: int) -> bool:
        half = self.comm.split(self.comm.rank % 2)
        assert half is not None
        got = half.allreduce(self.part(step, self.comm.rank, n))
        half.close()
        return same(got, sum(self.parts(step, n)[self.comm.rank % 2 :: 2]))

    def topk_allreduce(self, step: int, n: int, _root: int) -> bool:
        # k is the number of all entries, so that ties do not matter.
        return same(
            self.comm.topk_allreduce(self.part(step, self.comm.rank, n), n).to_dense(), sum(self.parts(step, n))
        )

    def barrier(self, _step: int, _n: int, _root: int) -> bool:
        self.comm.barrier()
        return True


def same(got: Any, want: Any) -> bool:
    """True if all numbers are equal. They are integers, so the order of additions does not matter."""
    return bool(np.array_equal(np.asarray(got), np.asarray(want)))


def say(what: str, **more: Any) -> None:
    """Print a line for the parent process."""
    print(json.dumps({"what": what, "at": time.time(), **more}), flush=True)


def main(seed: int, heartbeat: float, timeout: float) -> None:
    """Make calls until only two processes are left."""
    comm = sky.init(heartbeat=heartbeat, timeout=timeout)
    calls, step, shrunk = Calls(seed, comm), 0, True
    say("group", size=comm.size)
    while True:
        try:
            if not shrunk:
                calls.comm = calls.comm.shrink()
                # Survivors may have been in different calls.
                step, shrunk = int(calls.comm.allreduce(np.array([step]), op="max")[0]), True
                say("group", size=calls.comm.size)
            wrong = calls.run(step)
            step += 1
            if wrong:
                say("wrong", name=wrong, step=step)
            if calls.comm.size == 2:
                break
        except sky.PeerLost as error:
            if "end this process" in str(error):
                say("out", error=str(error))
                return
            say("lost", rank=error.rank, error=str(error))
            shrunk = False
    say("end", steps=step)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
