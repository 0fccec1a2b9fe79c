"""A group of ranks and its collectives."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from . import _skyphos as native
from .arguments import Op, as_array, as_indices, as_out, as_same, as_values, identity_of, resolve_op
from .errors import BadInput
from .kinds import open_vector
from .plan import Plan, Stats
from .sparse_vector import SparseVector

if TYPE_CHECKING:
    from . import _skyphos

__all__ = ["Comm"]

Missing = Literal["error", "identity"]
Algorithm = Literal[
    "auto",
    "recursive_doubling",
    "split_allgather",
    "split_allgather_dense",
    "butterfly",
    "ring",
    "allgather",
    "dense",
    "dense_ring",
    "dense_rabenseifner",
]
Split = Literal["quantiles", "even"]
_SPARSE = frozenset(
    ["recursive_doubling", "split_allgather", "split_allgather_dense", "butterfly", "ring", "allgather"]
)
_Settings = tuple[str, list[int] | None, str, int]
_Shared = tuple[int | None, int, list[int] | None, bool, float | None]


class Comm:
    """A group of ranks: made by :func:`skyphos.init`, :func:`skyphos.local` or :meth:`split`.

    All methods but the properties and :meth:`close` are collective: every rank calls the same ones in the same
    order. An error on one rank is raised on all. Calls on one Comm from several threads take turns in no
    particular order, so give each thread a group of its own. A context manager closes the group at its end.
    """

    def __init__(self, native: _skyphos.Comm) -> None:
        self._native = native
        self._stats = Stats(0.0, 0.0, 0.0)

    def __repr__(self) -> str:
        state = ", closed" if self._native.closed else ""
        return f"Comm(rank {self.rank} of {self.size}, {self.transport}{state})"

    def __enter__(self) -> Comm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def rank(self) -> int:
        """This process's number in the group, from 0."""
        return self._native.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._native.size

    @property
    def transport(self) -> str:
        """What carries messages: ``local`` or ``tcp``."""
        return self._native.transport

    @property
    def stats(self) -> Stats:
        """Seconds of the last :meth:`configure` or :meth:`configure_reduce` on this rank."""
        return self._stats

    def address(self, rank: int) -> str:
        """Host and address of a rank, for messages to people."""
        if not 0 <= rank < self.size:
            raise BadInput(f"there is no rank {rank} in a group of {self.size}")
        return self._native.address(rank)

    def barrier(self) -> None:
        """Return when every rank has come. Collective.

        Examples
        --------
        >>> import skyphos as sky
        >>> with sky.init() as comm:
        ...     comm.barrier()
        """
        self._native.barrier()

    def split(self, color: int | None, key: int = 0) -> Comm | None:
        """Form groups of the ranks that pass the same color. Collective.

        Parameters
        ----------
        color : int >= 0, or None
            Ranks with the same color form a group; None: this rank joins none.
        key : int
            Orders the ranks of a group; ties by the rank here.

        Returns
        -------
        Comm or None
            The new group; None where color is None. It shares the connections of this one.

        Examples
        --------
        >>> import skyphos as sky
        >>> with sky.init() as comm:
        ...     even = comm.split(comm.rank % 2)
        ...     even.size
        1
        """
        try:
            color, key = None if color is None else index(color), index(key)
            if color is not None and not 0 <= color < 2**64:
                raise BadInput(f"color must be from 0 to 2^64 - 1, or None, not {color}")
            if not -(2**63) <= key < 2**63:
                raise BadInput(f"key must fit 64 bits, and {key} does not")
        except Exception as error:
            self._fail(error)
        native = self._native.split(color, key)
        return None if native is None else Comm(native)

    def configure(
        self,
        contribute: npt.ArrayLike,
        want: npt.ArrayLike,
        *,
        n: int | None = None,
        width: int = 1,
        degrees: Sequence[int] | None = None,
        missing: Missing = "error",
        min_packet: float | None = None,
    ) -> Plan:
        """Tell the group which indices this rank has values for, and which it wants. Collective.

        Parameters
        ----------
        contribute, want : 1-D arrays of int32, int64, uint32 or uint64
            Indices from 0 to n - 1 (Kylix's out- and in-set). Any order, repeats allowed: values of a repeated
            index are combined, and it is answered at each place. Sorted distinct arrays are fastest.
        n : int, optional
            Size of the index space, up to 2^63; the same on all ranks. None: agreed, one more than the largest.
        width : int, default 1
            Numbers an index. A row takes at most 128 KB.
        degrees : sequence of int, optional
            Degree of each layer of the butterfly, from the top; their product is the group's size. ``[size]``
            is the direct algorithm. None: chosen by the papers' rule with ``min_packet``.
        missing : {"error", "identity"}
            An index that is wanted and that no rank contributes: an error on all ranks, or the identity of the
            operation as its value.
        min_packet : float, optional
            Smallest message in bytes worth sending; only for ``degrees=None``. Default 65,536.

        Returns
        -------
        Plan

        Raises
        ------
        BadInput
            An index out of range, degrees that do not multiply to the size, an unmet index; on all ranks.
        Mismatch
            Ranks passed another n, width, degrees or missing.

        Notes
        -----
        Kylix, section III-A; *Sparse Allreduce*, section IV-A. Memory: four bytes for each index sent or
        received, in each layer.

        Examples
        --------
        >>> import numpy as np, skyphos as sky
        >>> comm = sky.init()
        >>> plan = comm.configure([0, 5], [5, 9], n=10, missing="identity")
        >>> plan.reduce(np.array([1.0, 2.0]))
        array([2., 0.])
        >>> comm.close()
        """
        try:
            contribute, want = as_indices(contribute, "contribute"), as_indices(want, "want")
            shared = _shared(n, width, degrees, missing, min_packet)
        except Exception as error:
            self._fail(error)
        plan = Plan(self, self._native.configure(contribute, want, shared))
        self._stats = plan.stats
        return plan

    def configure_reduce(
        self,
        contribute: npt.ArrayLike,
        want: npt.ArrayLike,
        values: npt.ArrayLike,
        *,
        n: int | None = None,
        op: Op = "sum",
        out: npt.NDArray[Any] | None = None,
        width: int = 1,
        degrees: Sequence[int] | None = None,
        missing: Missing = "error",
        min_packet: float | None = None,
    ) -> npt.NDArray[Any]:
        """Configure and reduce in one pass down and up, for indices that change every time. Collective.

        Parameters
        ----------
        contribute, want, n, width, degrees, missing, min_packet
            As in :meth:`configure`.
        values, op, out
            As in :meth:`Plan.reduce`.

        Returns
        -------
        array of shape (len(want),) or (len(want), width)

        Notes
        -----
        Kylix, section III-C: indices and values travel in the same messages.

        Examples
        --------
        >>> import numpy as np, skyphos as sky
        >>> with sky.init() as comm:
        ...     comm.configure_reduce([1, 3], [3], np.array([1.0, 2.0]), n=4)
        array([2.])
        """
        try:
            native_op, identity = resolve_op(op)
            contribute, want = as_indices(contribute, "contribute"), as_indices(want, "want")
            shared = _shared(n, width, degrees, missing, min_packet)
            array = as_values(values, len(contribute), width, "contribute")
            result = as_out(out, len(want), array, width, contribute, want)
        except Exception as error:
            self._fail(error)
        native = self._native.configure_reduce(contribute, want, array, result, native_op, identity, shared)
        self._stats = Stats(*native.stats())
        return result

    def allreduce(
        self,
        x: Any,
        *,
        op: Op = "sum",
        algorithm: Algorithm = "auto",
        out: npt.NDArray[Any] | None = None,
        degrees: Sequence[int] | None = None,
        split: Split = "quantiles",
        dense_threshold: int | Literal["paper"] | None = None,
        prune: bool = False,
    ) -> Any:
        """Reduce the vectors of all ranks; every rank gets the result. Collective.

        Parameters
        ----------
        x : SparseVector, array, SciPy sparse array or torch tensor
            This rank's vector. All ranks pass the same n, width and dtype; which indices is each one's own affair.
        op : str or ufunc, default "sum"
            As in :meth:`Plan.reduce`.
        algorithm : str, default "auto"
            For sparse vectors ``recursive_doubling``, ``split_allgather`` (SSAR), ``split_allgather_dense`` (DSAR),
            ``butterfly``, ``ring`` or ``allgather`` (gather and sum); for dense arrays ``dense``, ``dense_ring`` or
            ``dense_rabenseifner``. ``auto``: recursive doubling for up to 16 KB a rank or two ranks, DSAR if the
            result is expected to be dense, SSAR otherwise; ``dense`` for arrays.
        out : array, optional
            Takes the result of a dense array.
        degrees : sequence of int, optional
            Layers of ``butterfly``; their product is the group's size. None: one layer.
        split : {"quantiles", "even"}
            How ranges of indices are cut: into equally many entries, by a sample, or into equal lengths.
        dense_threshold : int or "paper", optional
            Entries above which a vector turns dense. "paper": N·isize/(c + isize), SparCML section 5.1. None: the
            smaller of that and of the measured point where dense is faster, 0.3 N.
        prune : bool
            Drop entries that cancelled to the operation's identity.

        Returns
        -------
        The kind that came in: a SparseVector (sparse or dense inside, as it was reduced), an array, a SciPy sparse
        array or a tensor.

        Raises
        ------
        BadInput
            A vector that makes no sense, an unknown algorithm; on all ranks.
        Mismatch
            Ranks passed another n, width, dtype, op or settings.

        Notes
        -----
        SparCML, section 5.3. The order of additions depends on ranks, sizes and settings alone: all ranks get the
        same bits, every time. Memory: the result, and compressed copies of what was sent.

        Examples
        --------
        >>> import numpy as np, skyphos as sky
        >>> with sky.init() as comm:
        ...     x = sky.SparseVector([3, 500_000], np.array([1.0, 2.0]), n=1_000_000)
        ...     y = comm.allreduce(x)
        >>> y.indices, y.values
        (array([     3, 500000]), array([1., 2.]))
        """
        try:
            native_op, identity = resolve_op(op)
            vector, back = open_vector(x)
            settings = _allreduce_settings(algorithm, degrees, split, dense_threshold)
            is_array = isinstance(vector, np.ndarray)
            if is_array and algorithm in _SPARSE:
                vector = SparseVector.from_dense(vector, keep_zeros=True)
            if isinstance(vector, np.ndarray):
                array = as_array(vector)
                result = as_out(out, array.size, array.reshape(-1), 1) if out is None else as_same(out, array)
            elif out is not None:
                raise BadInput("out= is for dense arrays")
        except Exception as error:
            self._fail(error)
        if isinstance(vector, np.ndarray):
            native.allreduce_dense(self._native, array, result, native_op, identity, settings[0])
            return back(result.reshape(array.shape))
        reduced = self._allreduce_vector(vector, native_op, identity, settings)
        if prune:
            reduced = reduced.prune(identity_of(op, reduced.dtype))
        return back(reduced.to_dense(identity_of(op, reduced.dtype)) if is_array else reduced)

    def _allreduce_vector(self, x: SparseVector, op: Any, identity: Any, settings: _Settings) -> SparseVector:
        values = x._values
        parts = native.allreduce(
            self._native, x.n, x.width, x._indices, values.reshape(-1), x._present, op, identity, settings
        )
        indices, rows, present = parts
        if indices is not None and x._indices is not None:
            indices = indices.view(x._indices.dtype) if indices.itemsize == x._indices.itemsize else indices
        return SparseVector._of(indices, rows.reshape(-1, *values.shape[1:]), present, x.n)

    def close(self) -> None:
        """Leave the group: tell the peers and hand over what was sent. Not collective; may be called twice."""
        self._native.close()

    def _fail(self, error: Exception) -> NoReturn:
        """Raise an error found before the call could begin, on all ranks."""
        if not isinstance(error, BadInput):
            error = BadInput(str(error))
        if self.size > 1 and not self._native.closed:
            raise self._native.fail_call(str(error)) from None
        raise error from None


def _shared(
    n: int | None, width: int, degrees: Sequence[int] | None, missing: str, min_packet: float | None
) -> _Shared:
    """Checks the arguments that all ranks share."""
    n, width = None if n is None else index(n), index(width)
    if n is not None and not 0 <= n <= 2**63:
        raise BadInput(f"n must be from 0 to 2^63, not {n}")
    if not 1 <= width < 2**32:
        raise BadInput(f"width must be at least 1, not {width}")
    if missing not in ("error", "identity"):
        raise BadInput(f'missing must be "error" or "identity", not {missing!r}')
    layers = None if degrees is None else [index(d) for d in degrees]
    if layers is not None and not all(0 < d < 2**32 for d in layers):
        raise BadInput(f"degrees must be positive, not {layers}")
    least = None if min_packet is None else float(min_packet)
    return n, width, layers, missing == "identity", least


def _allreduce_settings(
    algorithm: str, degrees: Sequence[int] | None, split: str, threshold: int | Literal["paper"] | None
) -> _Settings:
    """Checks the settings that all ranks share; the native library knows the names."""
    layers = None if degrees is None else [index(d) for d in degrees]
    if layers is not None and not all(0 < d < 2**32 for d in layers):
        raise BadInput(f"degrees must be positive, not {layers}")
    if threshold is None:
        return algorithm, layers, split, -1
    if isinstance(threshold, str):
        if threshold != "paper":
            raise BadInput(f'dense_threshold must be a number of entries or "paper", not {threshold!r}')
        return algorithm, layers, split, -2
    entries = index(threshold)
    if not 0 <= entries < 2**63:
        raise BadInput(f"dense_threshold must not be negative, but is {entries}")
    return algorithm, layers, split, entries
