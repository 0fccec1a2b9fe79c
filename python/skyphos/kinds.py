"""The kinds of vector that collectives take, and the way back to the kind that came in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import BadInput
from .sparse_vector import SparseVector

__all__ = ["open_vector"]


def _same(vector: SparseVector) -> Any:
    return vector


def open_vector(x: Any) -> tuple[SparseVector | np.ndarray[Any, Any], Callable[[Any], Any]]:
    """The vector or dense array inside, and what makes the caller's kind of a result.

    SparseVector, NumPy, SciPy and torch are known; the last two are not imported here, since an object of theirs
    means that they have been.
    """
    if isinstance(x, SparseVector):
        return x, _same
    if isinstance(x, np.ndarray):
        return x, _same
    scipy_sparse, torch = sys.modules.get("scipy.sparse"), sys.modules.get("torch")
    if scipy_sparse is not None and scipy_sparse.issparse(x):
        vector = SparseVector.from_scipy(x)
        form = x.format if x.ndim == 2 else "coo"
        return vector, lambda result: result.to_scipy().asformat(form)
    if torch is not None and isinstance(x, torch.Tensor):
        if x.is_sparse:
            return SparseVector.from_torch(x), lambda result: result.to_torch().to(x.device)
        array = x.detach().cpu().contiguous().numpy()
        return array, lambda result: torch.from_numpy(result).to(x.device)
    raise BadInput(
        f"a collective takes a SparseVector, a NumPy array, a SciPy sparse array or a torch tensor, not {type(x).__name__}"
    )
