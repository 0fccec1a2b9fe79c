"""PyTorch: a backend of ``torch.distributed``, and training with compressed gradients.

::

    import torch.distributed as dist

    dist.init_process_group("skyphos")                    # instead of "gloo"
    dist.init_process_group("cpu:skyphos,cuda:nccl")      # NCCL for tensors of GPUs

PyTorch 2.15 and newer find the backend by its name. PyTorch 2.14, the oldest that takes a backend made in Python, needs
``import skyphos.torch``. Ranks meet through torch's own store, so a script for ``torchrun`` changes nothing else.

With ``DistributedDataParallel`` one line compresses gradients (:class:`TopK`, :class:`QSGD`)::

    model.register_comm_hook(skyphos.torch.TopK(k=4, bucket=512, bits=4), skyphos.torch.topk_hook)

:func:`outer_product` reduces gradients of weights by their factors. :class:`DistributedOptimizer` and
:func:`block_momentum` train without ``DistributedDataParallel``.

Needs the package torch: ``pip install 'skyphos[torch]'``.
"""

from __future__ import annotations

try:
    import torch.distributed
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    message = "skyphos.torch needs the package torch, which is not installed: pip install 'skyphos[torch]'"
    raise ModuleNotFoundError(message, name="torch") from None

if torch.__version__ < (2, 14):
    raise ImportError(
        f"skyphos.torch needs PyTorch 2.14 or newer, and this is {torch.__version__}: pip install 'skyphos[torch]'",
        name="torch",
    )

from .backend.group_comm import comm_of
from .backend.process_group import SkyphosBackend
from .backend.queries import extend_work
from .backend.rendezvous import create
from .hooks.ddp import qsgd_hook, topk_hook
from .hooks.registration import extend_register_comm_hook
from .hooks.states import QSGD, TopK
from .outer.layers import guard, no_sync, outer_product
from .training.block_momentum import BlockMomentum, block_momentum
from .training.optimizer import DistributedOptimizer

__all__ = [
    "QSGD",
    "BlockMomentum",
    "DistributedOptimizer",
    "SkyphosBackend",
    "TopK",
    "block_momentum",
    "comm_of",
    "guard",
    "no_sync",
    "outer_product",
    "qsgd_hook",
    "register",
    "topk_hook",
]


def register() -> None:
    """Register the backend's name with ``torch.distributed``. Importing :mod:`skyphos.torch` does so too.

    Examples
    --------
    >>> import torch.distributed as dist
    >>> import skyphos.torch
    >>> skyphos.torch.register()
    >>> dist.is_backend_available("skyphos")
    True
    """
    extend_work()
    extend_register_comm_hook()
    if "SKYPHOS" not in torch.distributed.Backend._plugins:
        torch.distributed.Backend.register_backend("skyphos", create, extended_api=True, devices=["cpu"])


register()
