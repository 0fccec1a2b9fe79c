"""Flag for NaN and infinity: an entry beyond a vector's end, which marks the vector on all ranks."""

from __future__ import annotations

import numpy as np

from ...vectors.sparse_vector import SparseVector

__all__ = ["has_flag", "with_flag"]


def with_flag(vector: SparseVector, *, is_finite: bool) -> SparseVector:
    """The vector with one more index in its index space. If it is not finite, its only entry is at that index.

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos import SparseVector
    >>> from skyphos.torch.hooks.non_finite import has_flag, with_flag
    >>> vector = SparseVector(np.array([1, 3]), np.array([2.0, np.nan]), 5)
    >>> has_flag(with_flag(vector, is_finite=True), 5), has_flag(with_flag(vector, is_finite=False), 5)
    (False, True)
    """
    indices, values = vector.indices, vector.values
    if not is_finite:
        indices, values = np.array([vector.n], indices.dtype), np.ones((1, *values.shape[1:]), values.dtype)
    return SparseVector._of(indices, values, None, vector.n + 1)


def has_flag(reduced: SparseVector, length: int) -> bool:
    """Whether a rank set the flag of a vector that has this length without it."""
    # The first test skips vectors that were sent without a flag, because a dense result has to compute `indices`.
    return reduced.n > length and bool(len(reduced.indices)) and int(reduced.indices[-1]) == length
