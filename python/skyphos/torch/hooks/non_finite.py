"""How ranks say in a sparse allreduce that they found what is not finite: by an entry behind the vector's end."""

from __future__ import annotations

import numpy as np

from ...vectors.sparse_vector import SparseVector

__all__ = ["has_mark", "marked"]


def marked(vector: SparseVector, *, is_odd: bool) -> SparseVector:
    """The vector with one place more; of one that is odd, an entry at that place alone.

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos import SparseVector
    >>> from skyphos.torch.hooks.non_finite import has_mark, marked
    >>> vector = SparseVector(np.array([1, 3]), np.array([2.0, np.nan]), 5)
    >>> has_mark(marked(vector, is_odd=False), 5), has_mark(marked(vector, is_odd=True), 5)
    (False, True)
    """
    places, values = vector.indices, vector.values
    if is_odd:
        places, values = np.array([vector.n], places.dtype), np.ones((1, *values.shape[1:]), values.dtype)
    return SparseVector._of(places, values, None, vector.n + 1)


def has_mark(reduced: SparseVector, length: int) -> bool:
    """Whether a rank has marked its vector, of so many places without the one for marks."""
    # (Without that place there is nothing to look for: a dense result would count its entries.)
    return reduced.n > length and bool(len(reduced.indices)) and int(reduced.indices[-1]) == length
