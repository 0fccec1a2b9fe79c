"""Communication hooks of ``DistributedDataParallel``: ``topk_hook`` and ``qsgd_hook``."""

# DDP checks the annotations of hooks, so this module has no `from __future__ import annotations`.

from typing import Any

import torch
import torch.distributed as dist

from ...errors import BadInput
from .hook_state import HookState
from .states import QSGD, TopK

__all__ = ["qsgd_hook", "topk_hook"]


def topk_hook(state: TopK, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce the largest gradients of each layer of a bucket, with error feedback.

    Parameters
    ----------
    state : TopK
    bucket : torch.distributed.GradBucket

    Returns
    -------
    Future of the bucket's tensor: the mean over ranks of the values they sent. DDP waits for it at the end of
    ``backward``, where all ranks raise the errors of :class:`TopK`, or ``PeerLost``.

    Raises
    ------
    BadInput
        The state is not a :class:`TopK`.

    Notes
    -----
    For ``model.register_comm_hook(state, topk_hook)``; see the example of :class:`TopK`. Sparse gradients are reduced
    without compression.
    """
    return _checked(state, TopK).reduce_bucket(bucket)


def qsgd_hook(state: QSGD, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce a bucket of gradients in a few bits a value.

    Parameters
    ----------
    state : QSGD
    bucket : torch.distributed.GradBucket

    Returns
    -------
    Future of the bucket's tensor: the mean over ranks. It raises the same errors as the future of :func:`topk_hook`.

    Raises
    ------
    BadInput
        The state is not a :class:`QSGD`.

    Notes
    -----
    For ``model.register_comm_hook(state, qsgd_hook)``; see the example of :class:`QSGD`.
    """
    return _checked(state, QSGD).reduce_bucket(bucket)


def _checked(state: Any, kind: type[HookState]) -> HookState:
    """The state, if it is of the kind that the hook takes."""
    if not isinstance(state, kind):
        raise BadInput(f"this hook takes a {kind.__name__} as its state, not {state!r}")
    return state
