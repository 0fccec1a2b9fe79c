"""Communication hooks for ``DistributedDataParallel``, which looks at their annotations: these are no strings."""

from typing import Any

import torch
import torch.distributed as dist

from ...errors import BadInput
from .engine import Engine
from .states import QSGD, TopK

__all__ = ["qsgd_hook", "topk_hook"]


def topk_hook(state: TopK, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce a bucket of gradients by the largest of each layer, with error feedback.

    Parameters
    ----------
    state : TopK
    bucket : torch.distributed.GradBucket

    Returns
    -------
    Future of the bucket's tensor, the mean over ranks of what they sent. Where it is waited for (DDP does so at the
    end of ``backward``), it raises what :class:`TopK` tells of, and ``PeerLost``, on all ranks.

    Raises
    ------
    BadInput
        The state is no :class:`TopK`.

    Notes
    -----
    For ``model.register_comm_hook(state, topk_hook)``: see :class:`TopK`, which has an example. Gradients that are
    sparse tensors are reduced as they are.
    """
    return _of(state, TopK).reduce_bucket(bucket)


def qsgd_hook(state: QSGD, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce a bucket of gradients in a few bits a value.

    Parameters
    ----------
    state : QSGD
    bucket : torch.distributed.GradBucket

    Returns
    -------
    Future of the bucket's tensor, the mean over ranks; it raises as that of :func:`topk_hook`.

    Raises
    ------
    BadInput
        The state is no :class:`QSGD`.

    Notes
    -----
    For ``model.register_comm_hook(state, qsgd_hook)``: see :class:`QSGD`, which has an example.
    """
    return _of(state, QSGD).reduce_bucket(bucket)


def _of(state: Any, kind: type[Engine]) -> Engine:
    """The state, if it is the hook's own kind."""
    if not isinstance(state, kind):
        raise BadInput(f"this hook takes a {kind.__name__} as its state, not {state!r}")
    return state
