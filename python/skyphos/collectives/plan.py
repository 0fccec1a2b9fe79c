"""Plan: a configured reduction, with fixed index sets and changing values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy.typing as npt

from ..errors import BadInput, Mismatch
from ..inputs.arguments import Op, as_out, as_values, resolve_op
from ..inputs.settings import truth
from ..planning.explanation import PlanExplanation
from ..vectors.booleans import as_native_out, as_result, as_sent, result_type
from ..work import Work, perform
from .agreement import collective
from .list_types import retyped

if TYPE_CHECKING:
    from .. import _skyphos
    from ..comm import Comm

__all__ = ["LayerVolume", "Plan", "Stats"]


@dataclass(frozen=True)
class LayerVolume:
    """Traffic of this rank in one layer and direction of a reduction.

    Attributes
    ----------
    layer : int
        Communication layer, from 1 at the top.
    degree : int
        Ranks that exchange messages with each other in it.
    direction : {"down", "up"}
        Down: values are added. Up: results return, the last layer first.
    messages : int
        Messages to other ranks.
    rows, own_rows : int
        Rows of values sent to other ranks; rows that stay on this one.
    predicted_rows : float
        ``rows`` as predicted from this rank's counts by Kylix, Proposition 4.1 (a power law).
    config_bytes : int
        Bytes that ``configure`` sent in this layer and direction.
    width : int
        Numbers per row.
    """

    layer: int
    degree: int
    direction: Literal["down", "up"]
    messages: int
    rows: int
    own_rows: int
    predicted_rows: float
    config_bytes: int
    width: int

    def bytes_for(self, itemsize: int) -> int:
        """Bytes of values sent to other ranks, for numbers of ``itemsize`` bytes."""
        return self.rows * self.width * itemsize

    @property
    def bytes(self) -> int:
        """:meth:`bytes_for` numbers of 8 bytes."""
        return self.bytes_for(8)

    @property
    def own_bytes(self) -> int:
        """Bytes that stay on this rank, for numbers of 8 bytes."""
        return self.own_rows * self.width * 8

    @property
    def predicted_bytes(self) -> float:
        """Predicted :attr:`bytes`."""
        return self.predicted_rows * self.width * 8


@dataclass(frozen=True)
class Stats:
    """Seconds of the parts of a call.

    Attributes
    ----------
    total : float
        Seconds from entry to return.
    wait : float
        Waiting for peers that had not sent anything yet (late peers).
    transfer : float
        Waiting while all peers were sending.
    merge : float
        The rest: gathering, folding, scattering, posting.
    """

    total: float
    wait: float
    transfer: float

    @property
    def merge(self) -> float:
        """Seconds of work: total less wait and transfer."""
        return self.total - self.wait - self.transfer


def stats_of(plan: _skyphos.Plan) -> Stats:
    """Seconds of the plan's last call."""
    stats = plan.stats()
    return Stats(stats.total_s, stats.wait_s, stats.transfer_s)


class Plan:
    """Result of :meth:`Comm.configure`: a schedule of sends and receives that is reused by every reduction.

    A plan belongs to its :class:`Comm`; :meth:`reduce` is collective. Plans keep their working memory, so a
    steady sequence of reductions allocates nothing (with ``out=``).
    """

    def __init__(self, comm: Comm, native: _skyphos.Plan) -> None:
        self._comm = comm
        self._native = native
        self._contribute_len = native.contribute_len
        self._want_len = native.want_len
        self._width = native.width
        self._fix = f"the plan was configured with width={self._width}: configure(..., width={{}}) takes these"

    def __repr__(self) -> str:
        degrees = "x".join(map(str, self.degrees))
        return f"Plan(n={self.n}, width={self.width}, degrees={degrees}, rank {self._comm.rank} of {self._comm.size})"

    @property
    def n(self) -> int:
        """Size of the index space."""
        return self._native.n

    @property
    def width(self) -> int:
        """Numbers per index."""
        return self._width

    @property
    def degrees(self) -> tuple[int, ...]:
        """Degree of each layer of the butterfly, from the top."""
        return tuple(self._native.degrees)

    def explain(self) -> PlanExplanation:
        """Explain the degrees, with the predicted times of the layers. Not collective.

        Examples
        --------
        >>> import skyphos as sky
        >>> with sky.init() as comm:
        ...     print(comm.configure([3], [3], n=10).explain())
        degrees 1: they were named, or there is no other choice
        """
        return PlanExplanation.of(self.degrees, self._native.considered)

    @property
    def volume(self) -> list[LayerVolume]:
        """Traffic of this rank in one reduction, by layer: down, then up. Not collective."""
        return [
            LayerVolume(
                one.layer,
                one.degree,
                "up" if one.up else "down",
                one.messages,
                one.rows,
                one.own_rows,
                one.predicted_rows,
                one.config_bytes,
                self._width,
            )
            for one in self._native.volume()
        ]

    @property
    def stats(self) -> Stats:
        """Seconds of the last reduction on this rank; before the first, of ``configure``."""
        return stats_of(self._native)

    @overload
    def reduce(
        self,
        values: npt.ArrayLike,
        op: Op = "sum",
        out: npt.NDArray[Any] | None = None,
        order: Literal["rank", "arrival"] = "rank",
        async_op: Literal[False] = False,
    ) -> npt.NDArray[Any]: ...
    @overload
    def reduce(
        self,
        values: npt.ArrayLike,
        op: Op = ...,
        out: npt.NDArray[Any] | None = ...,
        order: Literal["rank", "arrival"] = ...,
        *,
        async_op: Literal[True],
    ) -> Work[npt.NDArray[Any]]: ...
    @collective(lambda plan: plan._comm)
    def reduce(
        self,
        values: npt.ArrayLike,
        op: Op = "sum",
        out: npt.NDArray[Any] | None = None,
        order: Literal["rank", "arrival"] = "rank",
        async_op: bool = False,
    ) -> npt.NDArray[Any] | Work[npt.NDArray[Any]]:
        """Reduce values over all ranks and return those that this rank wants. Collective.

        Parameters
        ----------
        values : array of shape (len(contribute),) or (len(contribute), width)
            One number, or row, for each index of ``contribute``: float16, float32, float64, bfloat16 (of the
            package ``ml_dtypes``), int32, int64, uint8, uint32, uint64 or bool. The same dtype on all ranks. Values of
            a repeated index are combined. Each operation on 16-bit floats is computed in float32 and rounded to
            nearest, ties to even.
        op : str or numpy.ufunc, default "sum"
            ``sum``, ``prod``, ``min``, ``max``; ``or``, ``and`` (bits of integers); ``mean`` (sum over the
            group's size), ``mean_present`` (sum over the number of ranks that contribute the index); or a
            ufunc with an identity. For booleans ``sum`` and ``prod`` give int64, the others booleans.
        out : array, optional
            Receives the result: of its dtype, one row for each index of ``want``. It must not be ``values``.
        order : {"rank", "arrival"}, default "rank"
            Rank: additions in a fixed order, with the same bits every time. Arrival: in the order of arrival.
        async_op : bool
            Return a :class:`Work` immediately; its ``wait()`` returns the array. Several calls of one plan may be under
            way; they run one after the other.

        Returns
        -------
        array of shape (len(want),) or (len(want), width)
            ``out``, or a new array.

        Raises
        ------
        BadInput
            On all ranks, if the values of one do not fit the plan.
        Mismatch
            If another rank made another call, or used another dtype or op.
        PeerLost, Timeout
            If a rank is lost, or does not make the call.

        Notes
        -----
        Kylix, section III-B. Only values are sent, no indices.

        Examples
        --------
        >>> import numpy as np, skyphos as sky
        >>> comm = sky.init()
        >>> plan = comm.configure([4, 2, 4], [2, 4, 4], n=5)
        >>> plan.reduce(np.array([1.0, 10.0, 100.0]))
        array([ 10., 101., 101.])
        >>> plan.reduce(np.array([3, 5, 1]), op="max")
        array([5, 3, 3])
        >>> comm.close()
        """
        operation = resolve_op(op)
        array = as_values(values, self._contribute_len, self._width, "the plan's contribute", fix=self._fix)
        kind = result_type(op, array.dtype) if array.dtype.kind == "b" else array.dtype
        result = as_out(out, (self._want_len, *array.shape[1:]), kind, array)
        if order not in ("rank", "arrival"):
            raise BadInput(f'order must be "rank" or "arrival", not {order!r}')
        async_op = truth(async_op, "async_op")
        sent, target = (as_sent(array, kind), as_native_out(result)) if array.dtype.kind == "b" else (array, result)
        try:
            started = self._native.reduce(sent, target, operation, order == "arrival", async_op)
        except Mismatch as error:
            array = retyped(self._comm, error, array, is_list=isinstance(values, (list, tuple)))
            return self.reduce(array, op=op, out=out, order=order)
        return perform(started, async_op, lambda _: as_result(result, kind))
