"""Cost of hooks where compression gains nothing: ranks of one host, compared with plain DDP.

    .venv/bin/python bench/torch_hook.py                # 2 ranks of one thread; the bar: 1.1 times plain DDP over Gloo

Training steps of a network with two layers of `--width`, all methods alternating in the same processes. With two levels
(the default) gradients are summed uncompressed within a host and compressed only between hosts, so on one host nothing
is compressed. With `levels=1` each rank selects, sends, and expands the received values. A time is that of the slowest
rank. Needs PyTorch (`make .venv/.torch`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from on_hosts import command_of_rank

PORT, WARM = 29920, 5


def one_rank(options: argparse.Namespace) -> None:
    """Run a rank: a step of each method in turn."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import skyphos.torch as st

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ours = dist.get_rank(), dist.new_group(backend="skyphos")
    width = options.width

    def model(group: Any, state: Any = None, hook: Any = None) -> Any:
        torch.manual_seed(1)
        layers = [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 100)]
        ddp = DistributedDataParallel(nn.Sequential(*layers), process_group=group, gradient_as_bucket_view=True)
        if state is not None:
            ddp.register_comm_hook(state, hook)
        return ddp, torch.optim.SGD(ddp.parameters(), lr=1e-3)

    variants = {
        "DDP over Gloo": model(dist.group.WORLD),
        "DDP over skyphos": model(ours),
        "top-k hook": model(ours, st.TopK(k=4, process_group=ours), st.topk_hook),
        "top-k hook, levels=1": model(ours, st.TopK(k=4, levels=1, process_group=ours), st.topk_hook),
        "QSGD hook": model(ours, st.QSGD(bits=4, process_group=ours), st.qsgd_hook),
        "QSGD hook, levels=1": model(ours, st.QSGD(bits=4, levels=1, process_group=ours), st.qsgd_hook),
    }
    x = torch.randn(options.batch, width, generator=torch.Generator().manual_seed(rank))
    seconds: dict[str, list[float]] = {variant: [] for variant in variants}
    for round_ in range(WARM + options.rounds):
        for variant, (ddp, optimizer) in variants.items():
            dist.barrier()
            start = time.perf_counter()
            optimizer.zero_grad()
            (ddp(x) ** 2).mean().backward()
            optimizer.step()
            if round_ >= WARM:
                seconds[variant].append(time.perf_counter() - start)
    print(json.dumps(seconds), flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return one_rank(options)
    common = {"WORLD_SIZE": str(options.ranks), "LOCAL_WORLD_SIZE": str(options.ranks), "OMP_NUM_THREADS": "1"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT)}
    ranks = [
        subprocess.Popen(
            command_of_rank(__file__), env=os.environ | common | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(options.ranks)
    ]
    said = [process.communicate(timeout=900)[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise SystemExit("a rank failed")
    rows = [json.loads(out.splitlines()[-1]) for out in said]
    slowest = {
        variant: [max(each) for each in zip(*(row[variant] for row in rows), strict=True)] for variant in rows[0]
    }
    base = slowest["DDP over Gloo"]
    table = Table(title=f"a training step, {options.ranks} ranks of one host")
    for column in ("method", "median, ms", "relative to the first"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for variant, times in slowest.items():
        ratio = median(a / b for a, b in zip(times, base, strict=True))
        table.add_row(variant, f"{1e3 * median(times):.1f}", f"{ratio:.3f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
