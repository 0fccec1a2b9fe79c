"""Broadcast of an array in the lab, compared with MPICH's Bcast and Gloo's broadcast in one run.

    sudo .venv/bin/python bench/broadcast.py                         # 8 hosts at 1 Gbit/s, 256 MB
    sudo .venv/bin/python bench/broadcast.py --hosts 16 --rate 250mbit --only chain
    sudo .venv/bin/python bench/broadcast.py --rate 100mbit --mb 32 --racks 2 --uplink 100mbit --only chain --unaware

A time is from the start of the first rank to the end of the last, on one clock. The floor is the array with its
framing over the link's rate: no broadcast can take less. The bars: a chain takes at most 1.02 times
the floor, 1/1.75 of MPICH's time and 1/5 of Gloo's; 16 hosts take at most 1.03 times as long as 8.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from lab.cluster import Cluster
from lab.conductor import MPICH_IN_A_CLUSTER, mpiexec_of
from lab.link import FRAMING, rate_bits

OURS = ("chain", "scatter_allgather", "binomial", "simple", "auto")
DEFAULT = "chain,scatter_allgather,binomial,auto,mpich,gloo"


@dataclass(frozen=True)
class Rank:
    """One rank: its number, its barrier, and the recorded times of its calls."""

    number: int
    wait: Callable[[], None]
    rounds: int
    rows: list[Any] = field(default_factory=list)

    def time(self, name: str, broadcast: Callable[[Any], Any], count: int) -> None:
        """Call ``broadcast`` several times, and record the start and the end of each call on this rank."""
        x = np.zeros(count, np.float32)
        for k in range(self.rounds + 1):
            x[:] = k if self.number == 0 else -1
            self.wait()
            begin = time.monotonic()
            got = broadcast(x)
            end = time.monotonic()
            if not (got[:: len(got) // 97] == k).all() or got[-1] != k:
                raise SystemExit(f"{name}: wrong")
            if k:
                self.rows.append([name, k, begin, end])
            del got

    def write(self, library: str) -> None:
        """Write the times for the process that started all ranks."""
        Path(os.environ["BENCH_ROWS"], f"{library}-{self.number}").write_text(json.dumps(self.rows))


def ours(names: list[str], count: int, rounds: int) -> None:
    """Run one rank: the broadcasts of Skyphos, then Gloo's."""
    import skyphos as sky

    comm = sky.init(timeout=300)
    rank = Rank(comm.rank, comm.barrier, rounds)
    for name in OURS:
        if name in names:

            def skyphos_broadcast(x: Any, name: Any = name) -> Any:
                return comm.broadcast(x if comm.rank == 0 else None, algorithm=name)

            rank.time(name, skyphos_broadcast, count)
    if "gloo" in names:
        import torch
        import torch.distributed as dist

        where = os.environ["SKYPHOS_RENDEZVOUS"].rsplit(":", 1)[0]
        dist.init_process_group("gloo", f"tcp://{where}:29951", rank=comm.rank, world_size=comm.size)

        def gloo(x: Any) -> Any:
            dist.broadcast(torch.from_numpy(x), 0)
            return x

        rank.time("gloo", gloo, count)
    rank.write("ours")
    comm.close()


def mpich(count: int, rounds: int) -> None:
    """Run one rank of MPICH."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank = Rank(world.rank, world.Barrier, rounds)

    def bcast(x: Any) -> Any:
        world.Bcast(x, 0)
        return x

    rank.time("mpich", bcast, count)
    rank.write("mpich")


def run(commands: list[list[str]], environments: list[dict[str, str]]) -> None:
    """Start processes, and wait for them."""
    ranks = [subprocess.Popen(command, env=env) for command, env in zip(commands, environments, strict=True)]
    if any([process.wait(timeout=1200) for process in ranks]):
        raise SystemExit("a rank failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--mb", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=DEFAULT)
    parser.add_argument("--racks", type=int, default=1, help="racks, to which hosts are assigned round-robin")
    parser.add_argument("--uplink", default="none", help="rate of a rack's link to the others")
    parser.add_argument("--unaware", action="store_true", help="do not tell ranks the racks")
    parser.add_argument("--json", type=Path, help="file for the seconds of each call, by name")
    parser.add_argument("--rank", choices=("ours", "mpich"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    names, count = options.only.split(","), options.mb << 18
    if options.rank == "ours":
        return ours(names, count, options.rounds)
    if options.rank == "mpich":
        return mpich(count, options.rounds)
    program = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--rank"]
    racks = {"racks": options.racks, "uplink": options.uplink}
    with TemporaryDirectory() as folder, Cluster(options.hosts, options.rate, "128k", **racks) as cluster:
        hosts, rows_folder = range(options.hosts), {"BENCH_ROWS": folder}
        if set(names) - {"mpich"}:
            commands = [cluster.command(host, [*program, "ours"]) for host in hosts]
            more = {"GLOO_SOCKET_IFNAME": cluster.interface, "SKYPHOS_PROFILE": "none", "OMP_NUM_THREADS": "1"}
            more |= rows_folder
            if options.racks > 1 and not options.unaware:
                topology = Path(folder) / "racks"
                topology.write_text("".join(f"{cluster.address(host)} {host % options.racks}\n" for host in hosts))
                more |= {"SKYPHOS_TOPOLOGY": str(topology)}
            run(commands, [cluster.environment(h, options.hosts, 29950, "broadcast") | more for h in hosts])
        if "mpich" in names:
            command = mpiexec_of([cluster.command(host, [*program, "mpich"]) for host in hosts])
            nets = {name: cluster.interface for name in ("UCX_NET_DEVICES", "FI_TCP_IFACE")}
            run([command], [os.environ | MPICH_IN_A_CLUSTER | nets | rows_folder])
        rows = [row for file in Path(folder).glob("*-*") for row in json.loads(file.read_text())]
    floor = FRAMING * 4 * count * 8 / rate_bits(options.rate)
    print(f"{options.mb} MB to {options.hosts} hosts at {options.rate}; floor with framing {1e3 * floor:,.0f} ms")
    spans: dict[str, list[float]] = {}
    for name in names:
        mine = [row for row in rows if row[0] == name]
        calls = sorted({row[1] for row in mine})
        spans[name] = [
            max(row[3] for row in mine if row[1] == k) - min(row[2] for row in mine if row[1] == k) for k in calls
        ]
    if options.json is not None:
        options.json.write_text(json.dumps({"floor_s": floor, "seconds": spans}))
    for name, all_spans in spans.items():
        took = median(all_spans)
        spread = f"{1e3 * min(all_spans):,.0f} to {1e3 * max(all_spans):,.0f}"
        print(f"  {name:<18} {1e3 * took:9,.0f} ms ({spread}), {took / floor:.3f} times the floor")
    if "chain" in spans:
        for other, bar in (("mpich", 1.75), ("gloo", 5.0)):
            if other in spans:
                times = median(spans[other]) / median(spans["chain"])
                print(f"  chain is {times:.2f} times as fast as {other}, bar {bar}")


if __name__ == "__main__":
    main()
