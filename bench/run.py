"""Every benchmark, one after the other: `make bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMES = [
    "startup",
    "local_reduce",
    "loopback_small",
    "nesting",
    "rmat_pagerank",
    "topk_allreduce",
    "small_calls",
    "mpi",
    "objects",
    "stragglers",
]


def main() -> None:
    for name in NAMES:
        print(f"--- {name}", flush=True)
        subprocess.run([sys.executable, str(Path(__file__).with_name(f"{name}.py"))], check=True)


if __name__ == "__main__":
    main()
