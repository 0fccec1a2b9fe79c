"""The gradient exchange of an example: the hook of ``DistributedDataParallel``, and its time.

A step's time has three parts. The hook's time until it returns (selecting entries, starting the call) and the wait
after the last bucket are communication that the step could not hide; the rest is computing.
"""

# No `from __future__ import annotations`: DistributedDataParallel checks the types that a hook declares.
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from options import Run

__all__ = ["Spent", "WithoutExchange", "average_blocks", "machine_bytes", "wrap"]


@dataclass
class Spent:
    """Seconds so far in hooks, in waiting for the last of them, and in whole steps; bytes of the hooks' gradients."""

    hook_s: float = 0.0
    wait_s: float = 0.0
    step_s: float = 0.0
    gradient_bytes: int = 0
    _returned: float = 0.0

    def returned(self) -> None:
        """Start counting time as waiting."""
        self._returned = time.perf_counter()

    def waited(self) -> None:
        """Stop counting, because all buckets have arrived. Without a start nothing is counted."""
        if self._returned:
            self.wait_s += time.perf_counter() - self._returned
        self._returned = 0.0

    def since(self, before: "Spent") -> dict[str, float]:
        """The parts of the seconds since another moment, by name."""
        hook, wait = self.hook_s - before.hook_s, self.wait_s - before.wait_s
        return {"compute": self.step_s - before.step_s - hook - wait, "hook": hook, "wait": wait}


class WithoutExchange(torch.nn.Module):
    """A model without gradient exchange, with the methods of `DistributedDataParallel` that are used here."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> Any:
        """The output of the model."""
        return self.module(*inputs)


def average_blocks(optimizer: torch.optim.Optimizer, run: Run, ranks: int, spent: Spent) -> Callable[[], None]:
    """For block momentum, average the parameters of all ranks after each block of the optimizer's steps.

    Returns a function that ends a block early, so that all ranks have the same parameters.
    """
    if run.compress != "bmuf":
        return lambda: None
    import skyphos.torch as st

    # Hooks run in the order of registration, so the time between these two is that of block momentum.
    optimizer.register_step_post_hook(lambda *_: spent.returned())
    blocks = st.block_momentum(optimizer, every=run.settings.every, momentum=1 - 1 / ranks)
    optimizer.register_step_post_hook(lambda *_: spent.waited())
    return blocks.synchronize


def wrap(model: torch.nn.Module, run: Run, spent: Spent, epoch_steps: int) -> DistributedDataParallel | WithoutExchange:
    """Wrap the model with the gradient exchange of the run."""
    if run.compress == "bmuf":
        return WithoutExchange(model)
    if run.outer_products:
        import skyphos.torch as st

        model = st.outer_product(model)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    # Batch norms keep their rank's statistics until the evaluation: a step sends only gradients.
    # (An attribute, because the argument's name depends on PyTorch's version.)
    ddp.broadcast_buffers = False
    state, hook = _hook(run, epoch_steps)

    def timed(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        begin = time.perf_counter()
        spent.gradient_bytes += bucket.buffer().nbytes
        future = hook(state, bucket)
        spent.hook_s += time.perf_counter() - begin
        spent.returned()
        return future

    ddp.register_comm_hook(state, timed)
    return ddp


def _hook(run: Run, epoch_steps: int) -> tuple[Any, Any]:
    """State and hook. Dense gradients use a hook too, so that the same parts are timed."""
    if run.compress == "dense":
        return None, allreduce_hook
    import skyphos.torch as st

    settings = run.settings
    if run.compress == "topk":
        state = st.TopK(
            settings.k,
            settings.bucket,
            settings.bits,
            levels=run.levels,
            warmup=settings.density_warm_up * epoch_steps,
            momentum_correction=settings.momentum if settings.momentum_correction else None,
            seed=run.seed,
        )
        return state, st.topk_hook
    return st.QSGD(settings.bits or 4, levels=run.levels, seed=run.seed), st.qsgd_hook


def machine_bytes() -> dict[str, int]:
    """Bytes that all interfaces of this machine (or network namespace) have sent and received; empty if unknown.

    Bytes that ranks exchange through shared memory are not counted; with ``SKYPHOS_SHARED_MEMORY=0`` ranks use sockets.
    """
    try:
        lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    except OSError:
        return {}
    counts = [[int(count) for count in line.rpartition(":")[2].split()] for line in lines]
    sent, received = sum(each[8] for each in counts), sum(each[0] for each in counts)
    return {"machine_sent_bytes": sent, "machine_received_bytes": received}
