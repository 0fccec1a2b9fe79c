"""Configure: ranks declare their indices once, and get a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import numpy.typing as npt

from .. import _skyphos as native
from ..errors import BadInput, Mismatch
from ..inputs.arguments import Op, as_degrees, as_expected, as_indices, as_n, as_out, as_values, resolve_op
from ..inputs.arrays import as_numpy
from ..inputs.settings import real, truth, whole
from ..vectors.booleans import as_native_out, as_result, as_sent, result_type
from ..work import Work, perform
from .agreement import collective
from .list_types import retyped
from .plan import Plan, stats_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..comm import Comm

__all__ = ["Missing", "configure", "configure_reduce"]

Missing = Literal["error", "identity"]


if TYPE_CHECKING:

    class _Options(TypedDict, total=False):
        """Options of :func:`configure` and :func:`configure_reduce` that do not change the kind of the result."""

        n: int | None
        degrees: Sequence[int] | None
        missing: Missing
        min_packet: float | None
        expected_nnz: int | None

    class ConfigureOptions(_Options, total=False):
        """Options of :func:`configure`."""

        width: int

    class ConfigureReduceOptions(_Options, total=False):
        """Options of :func:`configure_reduce`."""

        op: Op
        out: npt.NDArray[Any] | None
        width: int | None


@overload
def configure(
    comm: Comm,
    contribute: npt.ArrayLike,
    want: npt.ArrayLike,
    *,
    async_op: Literal[False] = False,
    **options: Unpack[ConfigureOptions],
) -> Plan: ...
@overload
def configure(
    comm: Comm,
    contribute: npt.ArrayLike,
    want: npt.ArrayLike,
    *,
    async_op: Literal[True],
    **options: Unpack[ConfigureOptions],
) -> Work[Plan]: ...


@collective()
def configure(
    comm: Comm,
    contribute: npt.ArrayLike,
    want: npt.ArrayLike,
    *,
    n: int | None = None,
    width: int = 1,
    degrees: Sequence[int] | None = None,
    missing: Missing = "error",
    min_packet: float | None = None,
    expected_nnz: int | None = None,
    async_op: bool = False,
) -> Plan | Work[Plan]:
    """Declare the indices for which this rank has values, and those that it wants. Collective.

    Parameters
    ----------
    contribute, want : 1-D arrays of int32, int64, uint32 or uint64
        Indices from 0 to n - 1 (Kylix's out- and in-set). Any order, repeats allowed: values of a repeated index are
        combined, and a repeated wanted index gets its result at each position. Sorted distinct arrays are fastest.
    n : int, optional
        Size of the index space, up to 2^63; the same on all ranks. None: one more than the largest index of any rank.
    width : int, default 1
        Numbers per index. A row has at most 128 KB.
    degrees : sequence of int, optional
        Degree of each layer of the butterfly, from the top; their product is the group's size. ``[size]``
        is the direct algorithm. None: chosen by the planner, from sizes and overlap of all ranks' sets and from
        the profile of network and machines; or by Kylix's rule, if ``min_packet`` is given.
    missing : {"error", "identity"}
        A wanted index that no rank contributes is an error on all ranks, or has the identity of the operation as its
        value.
    min_packet : float, optional
        Smallest message in bytes worth sending: degrees are then chosen by Kylix's rule (section IV).
    expected_nnz : int, optional
        Expected size of the union of all ranks' sets: the planner then needs no sample from the other ranks. A wrong
        hint costs time, but does not change the result.
    async_op : bool
        Return a :class:`Work` immediately; its ``wait()`` returns the plan.

    Returns
    -------
    Plan

    Raises
    ------
    BadInput
        On all ranks, if an index is out of range, degrees do not multiply to the size, or a wanted index is missing.
    Mismatch
        If ranks passed different n, width, degrees or missing.

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
    async_op = truth(async_op, "async_op")
    contribute, want = as_indices(contribute, "contribute"), as_indices(want, "want")
    options = _options(n, width, degrees, missing, min_packet=min_packet, expected_nnz=expected_nnz)
    sets = native.IndexSets(contribute, want)

    def finish(made: native.Plan) -> Plan:
        plan = Plan(comm, made)
        comm._stats = plan.stats
        return plan

    return perform(comm._native.configure(sets, options, async_op), async_op, finish)


@overload
def configure_reduce(
    comm: Comm,
    contribute: npt.ArrayLike,
    want: npt.ArrayLike,
    values: npt.ArrayLike,
    *,
    async_op: Literal[False] = False,
    **options: Unpack[ConfigureReduceOptions],
) -> npt.NDArray[Any]: ...
@overload
def configure_reduce(
    comm: Comm,
    contribute: npt.ArrayLike,
    want: npt.ArrayLike,
    values: npt.ArrayLike,
    *,
    async_op: Literal[True],
    **options: Unpack[ConfigureReduceOptions],
) -> Work[npt.NDArray[Any]]: ...


@collective()
def configure_reduce(
    comm: Comm,
    contribute: npt.ArrayLike,
    want: npt.ArrayLike,
    values: npt.ArrayLike,
    *,
    n: int | None = None,
    op: Op = "sum",
    out: npt.NDArray[Any] | None = None,
    width: int | None = None,
    degrees: Sequence[int] | None = None,
    missing: Missing = "error",
    min_packet: float | None = None,
    expected_nnz: int | None = None,
    async_op: bool = False,
) -> npt.NDArray[Any] | Work[npt.NDArray[Any]]:
    """Configure and reduce in one pass down and up, for indices that change in every call. Collective.

    Parameters
    ----------
    contribute, want, n, degrees, missing, min_packet, expected_nnz, async_op
        As in :meth:`configure`.
    width : int, optional
        Numbers per index; the same on all ranks. None: the length of a row of ``values``.
    values, op, out
        As in :meth:`Plan.reduce`.

    Returns
    -------
    array of shape (len(want),) or (len(want), width)

    Notes
    -----
    Kylix, section III-C: indices and values are sent in the same messages.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     comm.configure_reduce([1, 3], [3], np.array([1.0, 2.0]), n=4)
    array([2.])
    """
    operation = resolve_op(op)
    async_op = truth(async_op, "async_op")
    contribute, want = as_indices(contribute, "contribute"), as_indices(want, "want")
    rows = as_numpy(values, "values")
    row_width = (max(1, rows.shape[1]) if rows.ndim == 2 else 1) if width is None else width
    fix = "" if width is None else f"width={width} was given, not {{}}"
    options = _options(n, row_width, degrees, missing, min_packet=min_packet, expected_nnz=expected_nnz)
    array = as_values(rows, len(contribute), options.width, "contribute", fix=fix)
    kind = result_type(op, array.dtype)
    result = as_out(out, (len(want), *array.shape[1:]), kind, array, contribute, want)
    sets = native.IndexSets(contribute, want)
    call = (sets, as_sent(array, kind), as_native_out(result), operation, options, async_op)
    try:
        started = comm._native.configure_reduce(*call)
    except Mismatch as error:
        return configure_reduce(
            comm,
            contribute,
            want,
            retyped(comm, error, array, is_list=isinstance(values, (list, tuple))),
            n=n,
            op=op,
            out=out,
            width=width,
            degrees=degrees,
            missing=missing,
            min_packet=min_packet,
            expected_nnz=expected_nnz,
        )

    def finish(made: native.Plan) -> npt.NDArray[Any]:
        comm._stats = stats_of(made)
        return as_result(result, kind)

    return perform(started, async_op, finish)


def _options(
    n: int | None,
    width: int,
    degrees: Sequence[int] | None,
    missing: str,
    *,
    min_packet: float | None,
    expected_nnz: int | None,
) -> native.ConfigureOptions:
    """Check the arguments that are the same on all ranks."""
    n, width = None if n is None else as_n(n), whole(width, "width", 1, 2**32 - 1)
    if missing not in ("error", "identity"):
        raise BadInput(f'missing must be "error" or "identity", not {missing!r}')
    layers = as_degrees(degrees)
    least = None if min_packet is None else real(min_packet, "min_packet", 0.0)
    return native.ConfigureOptions(
        n,
        width,
        degrees=layers,
        missing_identity=missing == "identity",
        min_packet_bytes=least,
        expected_nnz=as_expected(expected_nnz),
    )
