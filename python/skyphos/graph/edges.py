"""Edge lists, which readers return and partitions move."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadInput
from ..inputs.arrays import refuse_masked

__all__ = ["MAX_ID", "Edges", "Ids", "Weights"]

#: The largest id of a vertex.
MAX_ID = 2**63 - 1

Ids = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Edges:
    """Directed edges, all of them or one rank's share.

    Attributes
    ----------
    source, target : ndarray of int64, shape (m,)
        Edge k goes from ``source[k]`` to ``target[k]``; ids from 0, gaps allowed.
    weight : ndarray of float64, shape (m,), or None
        One weight an edge; None where the file has none (each edge counts 1).
    shape : (int, int) or None
        Rows and columns, for formats that state them: then every smaller id is a vertex. None if the vertices are
        those that edges name.
    base : int
        The smallest id in the file, which is added to ids for output (1 for MatrixMarket, else 0).
    combine : {"last", "sum"}
        Meaning of a repeated edge: its last weight, as in ``networkx.DiGraph``, or the sum of its weights, as in
        SciPy's matrices. Without weights, ``"last"`` makes it one edge, and ``"sum"`` counts the repetitions.
    stored, stated : int or None
        From a reader: entries read (before a symmetric matrix was completed), and the number of entries that the file
        states for the whole matrix (None if it states none).

    Examples
    --------
    >>> import numpy as np
    >>> from skyphos.graph import Edges
    >>> edges = Edges(np.array([0, 0, 2]), np.array([1, 1, 0]))
    >>> len(edges), len(edges.merged())
    (3, 2)
    """

    source: Ids
    target: Ids
    weight: Weights | None = None
    shape: tuple[int, int] | None = None
    base: int = 0
    combine: str = "last"
    stored: int = 0
    stated: int | None = None

    def __post_init__(self) -> None:
        for name in ("source", "target", "weight"):
            refuse_masked(getattr(self, name), name)
        for name in ("source", "target"):
            object.__setattr__(self, name, _ids(getattr(self, name), name))
        if self.weight is not None:
            object.__setattr__(self, "weight", _weights(self.weight))
        lengths = [len(self.source), len(self.target)] + ([] if self.weight is None else [len(self.weight)])
        if len(set(lengths)) != 1:
            raise BadInput(f"source, target and weight must have one length, not {lengths}")
        if self.combine not in ("last", "sum"):
            raise BadInput(f'combine must be "last" or "sum", not {self.combine!r}')

    def __len__(self) -> int:
        return len(self.source)

    def take(self, which: npt.NDArray[Any] | slice) -> Edges:
        """Return the edges that a mask, a slice or an array of positions picks, in its order.

        Examples
        --------
        >>> import numpy as np
        >>> from skyphos.graph import Edges
        >>> Edges(np.array([0, 5]), np.array([1, 6])).take(np.array([False, True])).source
        array([5])
        """
        weight = None if self.weight is None else self.weight[which]
        return replace(self, source=self.source[which], target=self.target[which], weight=weight)

    def mirrored(self) -> Edges:
        """Return these edges and their reverses; a self loop stays one edge.

        Examples
        --------
        >>> import numpy as np
        >>> from skyphos.graph import Edges
        >>> Edges(np.array([0, 3]), np.array([1, 3])).mirrored().target
        array([1, 3, 0])
        """
        back = self.source != self.target
        weight = None if self.weight is None else np.concatenate([self.weight, self.weight[back]])
        return replace(
            self,
            source=np.concatenate([self.source, self.target[back]]),
            target=np.concatenate([self.target, self.source[back]]),
            weight=weight,
        )

    def merged(self) -> Edges:
        """Return each edge once, with its repetitions combined as ``combine`` says.

        Costs a sort of m integers. Without repeated edges it returns this object, else edges in the order of their ids.

        Notes
        -----
        An unweighted edge of a ``combine="sum"`` format that is repeated k times gets weight k.

        Examples
        --------
        >>> import numpy as np
        >>> from skyphos.graph import Edges
        >>> e = Edges(np.array([0, 0]), np.array([1, 1]), np.array([2.0, 3.0]))
        >>> e.merged().weight
        array([3.])
        """
        width = int(self.target.max(initial=0)) + 1
        if (int(self.source.max(initial=0)) + 1) * width > MAX_ID:
            # A pair of larger ids does not fit in one 64-bit key: replace the ids by their positions first.
            sources, source = np.unique(self.source, return_inverse=True)
            targets, target = np.unique(self.target, return_inverse=True)
            merged = replace(self, source=source.astype(np.int64), target=target.astype(np.int64)).merged()
            return replace(merged, source=sources[merged.source], target=targets[merged.target])
        key = self.source * np.int64(width) + self.target
        in_order = np.sort(key)
        first = np.concatenate([[True], in_order[1:] != in_order[:-1]])[: len(key)]
        if first.all():
            return self
        source, target = np.divmod(in_order[first], width)
        return replace(self, source=source, target=target, weight=self._merged_weights(key, first))

    def _merged_weights(self, key: Ids, first: npt.NDArray[np.bool_]) -> Weights | None:
        """The weights of merged edges; ``first`` marks each edge's first copy in the order of the keys."""
        starts = np.flatnonzero(first)
        if self.weight is None:
            ends = np.append(starts[1:], len(key))
            return (ends - starts).astype(np.float64) if self.combine == "sum" else None
        in_order: Weights = self.weight[
            np.argsort(key, kind="stable")
        ]  # copies of an edge stay in the order of the file
        if self.combine == "sum":
            summed: Weights = np.add.reduceat(in_order, starts)
            return summed
        last: Weights = in_order[np.append(starts[1:], len(key)) - 1]
        return last


def _ids(given: Any, name: str) -> Ids:
    """Ids as int64, also from whole floats."""
    if isinstance(given, np.ndarray) and given.dtype == np.int64 and given.ndim == 1 and type(given) is np.ndarray:
        return given
    if np.ma.isMaskedArray(given):
        raise BadInput(f"{name} is a masked array: take its .compressed() edges, or .filled() ids")
    array = np.asarray(given)
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise BadInput(f"{name} must be ids of vertices in one dimension, not {array.dtype} of shape {array.shape}")
    if array.dtype.kind == "f" and not (np.isfinite(array) & (array == np.floor(array)) & (abs(array) < 2**53)).all():
        raise BadInput(f"{name} must be ids, which are whole numbers; it holds other numbers, of type {array.dtype}")
    if array.dtype.kind == "u" and array.max() > MAX_ID:
        raise BadInput(f"{name} holds the id {array.max()}, which is above 2^63 - 1")
    return array.astype(np.int64)


def _weights(given: Any) -> Weights:
    if isinstance(given, np.ndarray) and given.dtype == np.float64 and given.ndim == 1 and type(given) is np.ndarray:
        return given
    if np.ma.isMaskedArray(given):
        raise BadInput("weight is a masked array: take the .compressed() edges, or .filled() weights")
    array = np.asarray(given)
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        raise BadInput(f"weight must be numbers in one dimension, not {array.dtype} of shape {array.shape}")
    return array.astype(np.float64)
