"""Allreduce of vectors whose indices may differ in every call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args, overload

import numpy as np
import numpy.typing as npt

from .. import _skyphos as native
from ..errors import BadInput, Mismatch
from ..inputs.arguments import Op, as_degrees, as_expected, as_name, as_out, identity_of, resolve_op
from ..inputs.settings import truth, whole
from ..planning.explanation import WHY_ARRAY, Explanation, explanation_of
from ..vectors.booleans import as_native_out, as_result, as_sent, result_type
from ..vectors.kinds import AnyVector, is_number
from ..vectors.scipy_kinds import matrix_shape
from ..vectors.sparse_vector import SparseVector
from ..work import Work, perform
from .agreement import collective
from .list_types import retyped
from .plan import Plan
from .python_numbers import reduce_numbers
from .quantize import Quantize
from .vector_input import native_vector, opened, vector_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..comm import Comm

__all__ = ["SPARSE_ALGORITHMS", "allreduce", "reduce_shaped"]

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
    "dense_mpi",
]
Split = Literal["quantiles", "even", "hash"]
_DENSE = frozenset(name for name in get_args(Algorithm) if name.startswith("dense"))
SPARSE_ALGORITHMS = frozenset(get_args(Algorithm)) - _DENSE - {"auto"}
_DEFAULT_OPTIONS = native.AllreduceOptions()
_DEFAULT_ARGUMENTS = ("auto", "quantiles", None, None, None, None, False, None)


if TYPE_CHECKING:

    class AllreduceOptions(TypedDict, total=False):
        """Options of :func:`allreduce` that do not change the kind of its result."""

        op: Op
        algorithm: Algorithm
        out: npt.NDArray[Any] | None
        degrees: Sequence[int] | None
        split: Split
        dense_threshold: int | Literal["paper"] | None
        quantize: Quantize | None
        expected_nnz: int | None
        prune: bool


@overload
def allreduce(
    comm: Comm, x: AnyVector, *, async_op: Literal[True], **options: Unpack[AllreduceOptions]
) -> Work[AnyVector]: ...
@overload
def allreduce(
    comm: Comm, x: AnyVector, *, explain: Literal[True], **options: Unpack[AllreduceOptions]
) -> tuple[AnyVector, Explanation]: ...
@overload
def allreduce(
    comm: Comm, x: AnyVector, *, keep_plan: Literal[True], **options: Unpack[AllreduceOptions]
) -> tuple[AnyVector, Plan]: ...
@overload
def allreduce(
    comm: Comm, x: AnyVector, *, keep_plan: Literal[True], explain: Literal[True], **options: Unpack[AllreduceOptions]
) -> tuple[AnyVector, Plan, Explanation]: ...
@overload
def allreduce(comm: Comm, x: AnyVector, **options: Unpack[AllreduceOptions]) -> AnyVector: ...
@overload
def allreduce(
    comm: Comm,
    x: Any,
    *,
    keep_plan: bool = False,
    explain: bool = False,
    async_op: bool = False,
    **options: Unpack[AllreduceOptions],
) -> Any: ...


@collective()
def allreduce(
    comm: Comm,
    x: Any,
    *,
    op: Op = "sum",
    algorithm: Algorithm = "auto",
    out: npt.NDArray[Any] | None = None,
    degrees: Sequence[int] | None = None,
    split: Split = "quantiles",
    dense_threshold: int | Literal["paper"] | None = None,
    quantize: Quantize | None = None,
    expected_nnz: int | None = None,
    prune: bool = False,
    keep_plan: bool = False,
    explain: bool = False,
    async_op: bool = False,
) -> Any:
    """Reduce the vectors of all ranks; every rank gets the result. Collective.

    Parameters
    ----------
    x : SparseVector, array, SciPy sparse array, torch tensor, number or list of numbers
        This rank's vector. All ranks pass the same n, width and dtype; indices may differ. A sparse matrix is the
        vector of its entries. Python and NumPy numbers, and lists of them, are converted to a type that holds those
        of all ranks, integers exactly.
    op : str or ufunc, default "sum"
        As in :meth:`Plan.reduce`.
    algorithm : str, default "auto"
        For sparse vectors ``recursive_doubling``, ``split_allgather`` (SSAR), ``split_allgather_dense`` (DSAR),
        ``butterfly``, ``ring`` or ``allgather`` (gather and sum); for dense arrays ``dense``, ``dense_ring`` or
        ``dense_rabenseifner``, or over MPI ``dense_mpi``, the library's own allreduce (of all ranks; for types and
        operations of MPI); these send a sparse vector as an array and a bitmap. ``auto``: recursive doubling up to
        16 KB per rank; above, the algorithm with the least predicted time (:mod:`skyphos.planning`), from a sample of
        all ranks' indices, and from the link rate and the share of a core that ranks observed in earlier calls.
        Blocking calls reuse these as long as the number of result entries is similar. For arrays ``dense_ring`` from
        a share of 128 KB per rank, else ``dense``, or over MPI between hosts ``dense_mpi`` from 32 KB.
    out : array, optional
        Receives the result of a dense array.
    degrees : sequence of int, optional
        Degrees of the layers of ``butterfly``; their product is the group's size. None: one layer.
    split : {"quantiles", "even", "hash"}
        How indices are assigned to ranks: ranges with equal numbers of entries, from a sample; ranges of equal lengths;
        or ranges of hashed indices, which balances any data without a sample, but reorders input and result once each.
    dense_threshold : int or "paper", optional
        Entries above which a vector becomes dense. "paper": n·isize/(c + isize), with isize bytes a value and c bytes
        an index (SparCML, section 5.1). None: the smaller of that and 0.3 n, above which dense was measured to be
        faster.
    quantize : Quantize, optional
        Send values in a few bits each (:class:`skyphos.Quantize`). For op sum and mean of floats.
        "result" needs an algorithm in which each part has an owner: not ``recursive_doubling``, ``allgather``
        or one for dense arrays; ``auto`` chooses such an algorithm, for arrays DSAR.
    expected_nnz : int, optional
        Expected entries of the result: ``auto`` then needs no survey of the ranks before a first call. All ranks pass
        the same value. A wrong hint costs time, but does not change the result; a hint that was wrong by more than a
        factor of two is ignored in later calls.
    prune : bool
        Drop entries that cancelled to the operation's identity.
    keep_plan : bool
        Also return a :class:`Plan` for later calls with the same indices: its ``reduce(values)`` takes the values of
        this rank's indices, returns those of the result's indices, and sends no indices. Costs an additional
        :meth:`Comm.configure`.
    explain : bool
        Also return an :class:`Explanation`: algorithm, reason and traffic.
    async_op : bool
        Return a :class:`Work` immediately; its ``wait()`` returns the result.

    Returns
    -------
    The kind that was passed: a SparseVector (stored sparse or dense, as it was reduced), an array, a SciPy sparse
    array or matrix of the same format, a tensor of the same layout, a number or a list. With ``keep_plan`` or
    ``explain`` a tuple: the result, the plan, the explanation.

    Raises
    ------
    BadInput
        On all ranks, for an invalid vector, a masked array or an unknown algorithm; if a sum of Python integers does
        not fit 64 bits; if values cannot be quantised (integers, NaN, infinity, other operations), or not with this
        algorithm.
    Mismatch
        If ranks passed different n, width, dtype, op or settings.

    Notes
    -----
    SparCML, section 5.3. All ranks get the same bits. The order of additions depends only on ranks, sizes and
    settings; with ``auto`` also on the times of earlier calls, so name an algorithm to fix it. Memory: the result, and
    compressed copies of the sent data.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> with sky.init() as comm:
    ...     x = sky.SparseVector([3, 500_000], np.array([1.0, 2.0]), n=1_000_000)
    ...     y = comm.allreduce(x)
    >>> y.indices, y.values
    (array([     3, 500000]), array([1., 2.]))

    The same indices again, with an explanation:

    >>> with sky.init() as comm:
    ...     y, plan, how = comm.allreduce(x, keep_plan=True, explain=True)
    ...     plan.reduce(np.array([10.0, 20.0])), how.algorithm
    (array([10., 20.]), 'recursive_doubling')
    """
    # Small calls spend most of their time on arguments, so a plain array takes this short path. All others are handled
    # in a separate function, because a function with inner functions takes longer to call.
    if type(x) is np.ndarray and isinstance(op, str) and algorithm == "auto" and split == "quantiles":
        usual = degrees is None and dense_threshold is None and quantize is None and expected_nnz is None
        if usual and keep_plan is False and explain is False and async_op is False:
            # Subclasses of arrays, such as masked ones, take the general path.
            result: Any = np.empty(x.shape, x.dtype) if out is None else out if type(out) is np.ndarray else None
            if native.allreduce_plain(comm._native, x, result, op):
                return result
    return _allreduce(
        comm,
        x,
        op,
        out,
        algorithm=algorithm,
        degrees=degrees,
        split=split,
        dense_threshold=dense_threshold,
        quantize=quantize,
        expected_nnz=expected_nnz,
        prune=prune,
        keep_plan=keep_plan,
        explain=explain,
        async_op=async_op,
    )


def _allreduce(
    comm: Comm,
    x: Any,
    op: Op,
    out: npt.NDArray[Any] | None,
    *,
    algorithm: Algorithm,
    degrees: Sequence[int] | None,
    split: Split,
    dense_threshold: int | Literal["paper"] | None,
    quantize: Quantize | None,
    expected_nnz: int | None,
    prune: bool,
    keep_plan: bool,
    explain: bool,
    async_op: bool,
) -> Any:
    """Like :meth:`allreduce`, for any kind of ``x``."""
    prune, keep_plan = truth(prune, "prune"), truth(keep_plan, "keep_plan")
    explain, async_op = truth(explain, "explain"), truth(async_op, "async_op")
    native_options = options_of(
        algorithm, degrees, split, dense_threshold, quantize, expected_nnz=expected_nnz, shape=matrix_shape(x)
    )
    if is_number(x):
        if out is not None or keep_plan or explain or native_options is not _DEFAULT_OPTIONS:
            raise BadInput(
                f"options beside op= are for arrays and vectors: np.asarray(x) turns a {type(x).__name__} into one"
            )
        return reduce_numbers(comm, x, op, "allreduce", async_op=async_op)
    vector, back, kind, operation = opened(x, op)
    is_array = isinstance(vector, np.ndarray)
    shape: tuple[int, ...] = ()
    if isinstance(vector, np.ndarray) and algorithm in SPARSE_ALGORITHMS:
        shape, vector = vector.shape, SparseVector.from_dense(vector.reshape(-1), keep_zeros=True)
    if keep_plan and (async_op or isinstance(x, np.ndarray)):
        raise BadInput("keep_plan=True is for sparse vectors, in blocking calls")
    if isinstance(vector, np.ndarray):
        array = vector
        result = as_out(out, array.shape, kind, array)
        sent, target = as_sent(array, kind), as_native_out(result)
        started = native.allreduce_dense(comm._native, sent, target, operation, native_options, async_op)

        def finish_array(report: native.Explanation) -> Any:
            reduced = back(as_result(result, kind))
            if not explain:
                return reduced
            return reduced, explanation_of(algorithm, report, array.size, array.size, is_dense=True, why=WHY_ARRAY)

        return perform(started, async_op, finish_array)
    if out is not None:
        raise BadInput("out= is for dense arrays")

    def begin(sent: SparseVector, kind: np.dtype[Any]) -> Any:
        return native.allreduce(comm._native, native_vector(sent, kind), operation, native_options, async_op)

    try:
        started = begin(vector, kind)
    except Mismatch as error:
        values = retyped(comm, error, vector._values, is_list=vector._is_of_list)
        vector = SparseVector._of(vector._indices, values, vector._present, vector.n)
        kind = result_type(op, vector.dtype)
        started = begin(vector, kind)

    def finish(done: native.Allreduced) -> Any:
        reduced = vector_of(done.sum, vector, kind)
        if prune:
            reduced = reduced.prune(identity_of(op, reduced.dtype))
        like_x = reduced.to_dense(identity_of(op, reduced.dtype)).reshape(shape) if is_array else reduced
        returned = [back(like_x)]
        if keep_plan:
            returned.append(comm.configure(vector.indices, reduced.indices, n=vector.n, width=vector.width))
        if explain:
            counts = (vector.nnz, reduced.nnz)
            limited = quantize is not None or degrees is not None or op == "mean_present"
            how = explanation_of(algorithm, done.explanation, *counts, is_dense=reduced.is_dense, limited=limited)
            returned.append(how)
        return tuple(returned) if len(returned) > 1 else returned[0]

    return perform(started, async_op, finish)


def reduce_shaped(comm: Comm, vector: SparseVector, op: Op, shape: Sequence[int], *, async_op: bool) -> Any:
    """Allreduce a sparse vector made from an object of this shape; different shapes raise ``Mismatch``."""
    options = native.AllreduceOptions(shape=list(shape))
    started = native.allreduce(comm._native, native_vector(vector), resolve_op(op), options, async_op)
    return perform(started, async_op, lambda reduced: vector_of(reduced.sum, vector))


def options_of(
    algorithm: str = "auto",
    degrees: Sequence[int] | None = None,
    split: str = "quantiles",
    dense_threshold: int | Literal["paper"] | None = None,
    quantize: Quantize | None = None,
    *,
    expected_nnz: int | None = None,
    tell_sent: bool = False,
    shape: Sequence[int] | None = None,
) -> native.AllreduceOptions:
    """Check the options that are the same on all ranks; the native library checks the names.

    ``tell_sent``: the result also has this rank's quantised values. ``shape``: the shape of ``x``.
    """
    as_name(algorithm, "algorithm")
    as_name(split, "split")
    layers = as_degrees(degrees)
    if quantize is not None and not isinstance(quantize, Quantize):
        raise BadInput(f"quantize must be a skyphos.Quantize or None, not {type(quantize).__name__}")
    expected = as_expected(expected_nnz)
    if dense_threshold is not None and dense_threshold != "paper":
        if isinstance(dense_threshold, str):
            raise BadInput(f'dense_threshold must be a number of entries or "paper", not {dense_threshold!r}')
        dense_threshold = whole(dense_threshold, "dense_threshold", 0, 2**63 - 1)
    given = (algorithm, split, layers, dense_threshold, quantize, expected, tell_sent, shape)
    if given == _DEFAULT_ARGUMENTS:
        return _DEFAULT_OPTIONS
    return native.AllreduceOptions(
        algorithm,
        degrees=layers,
        split=split,
        dense_threshold=dense_threshold,
        quantize=None if quantize is None else quantize._native(),
        expected_nnz=expected,
        tell_sent=tell_sent,
        shape=None if shape is None else list(shape),
    )
