"""Reductions of Python and NumPy numbers, and of lists of them, with results of the same kind.

Numbers have no dtype on which ranks agree: one rank passes ``0``, another ``1.5``. So ranks gather all numbers, and
each rank reduces them in rank order: integers exactly, of any size; floats in the type that NumPy gives to all of them,
or in float64 where that type does not hold a Python integer exactly or makes a Python float infinite. Lists of many
numbers are described first and then reduced as arrays; where a sum of integers might not fit 64 bits, as Python
integers.

Cost: one allgather of 100 to 200 bytes a rank; for a list of more than 256 numbers also an allreduce.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from numbers import Integral, Number
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import BadInput, Mismatch
from ..inputs.arguments import NAMED_UFUNCS, Op, resolve_op
from ..inputs.arrays import refuse_masked
from ..vectors.booleans import result_type
from ..vectors.dtype_names import type_named
from .objects import allgather_bytes

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["reduce_numbers"]

#: Lists of at most this many numbers are sent with their description.
_INLINE = 256

#: Range of the integers that may be passed and returned.
_MIN, _MAX = -(2**63), 2**64 - 1

_UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "or": np.bitwise_or,
    "and": np.bitwise_and,
    "mean": np.add,
    "mean_present": np.add,
}


@dataclass(frozen=True)
class _Given:
    """The argument of one rank.

    Attributes
    ----------
    call, op, root : str, str, int
        Settings that must be the same on all ranks.
    kind : str
        ``bool``, ``int`` or ``float`` for Python's types; the name of a NumPy type; ``none`` for an empty list.
    shape : list of int or None
        Shape of a list; None for a number.
    values : list, or a number, or None
        The numbers; None for a long list.
    most : int
        The largest magnitude of its integers.
    """

    call: str
    op: str
    root: int
    kind: str
    shape: list[int] | None
    values: Any
    most: int


def reduce_numbers(comm: Comm, x: Any, op: Op, call: str, *, root: int = -1, async_op: bool = False) -> Any:
    """Reduce a number or a list of each rank. Collective.

    Parameters
    ----------
    x : int, float, bool, NumPy scalar, or list or tuple of them, nested or not
        A number on all ranks, or lists of one shape on all ranks.
    op : str or ufunc
        As in :meth:`Comm.allreduce`.
    call : {"allreduce", "reduce", "reduce_scatter"}
    root : int
        Root of ``reduce``.

    Returns
    -------
    A number or list of the common type of all ranks' numbers; of Python's types if this rank passed those. None if this
    rank gets no result.

    Raises
    ------
    BadInput
        For arguments that are no numbers; for an argument or result that does not fit 64 bits (NumPy integers: their
        type).
    Mismatch
        If ranks passed different op or shape.
    """
    resolve_op(op)
    array = _array_of(x, call)
    given = _described(x, array, op, call, root, inline=async_op)
    block = np.frombuffer(json.dumps(given.__dict__).encode(), np.uint8)

    def finish(blocks: list[npt.NDArray[np.uint8]]) -> Any:
        all_given = [_read(block) for block in blocks]
        reduced = _reduced(comm, all_given, array, op)
        if call == "reduce_scatter":
            flat = reduced.reshape(-1)
            part = comm.owned_range(flat.size)
            return type(x)(flat[part.start : part.stop].tolist())
        return _like(x, reduced) if root in (-1, comm.rank) else None

    return allgather_bytes(comm, block, finish, async_op=async_op)


def _read(block: npt.NDArray[np.uint8]) -> _Given:
    try:
        return _Given(**json.loads(block.tobytes().rstrip(b"\0")))
    except (TypeError, ValueError) as error:
        raise BadInput(f"the received block describes no numbers: {error}") from None


def _array_of(x: Any, call: str) -> npt.NDArray[Any]:
    """The numbers, checked; Python integers stay Python integers."""
    if isinstance(x, (list, tuple)):
        refuse_masked(x, "a list")
        kinds = _kinds(x)
        for kind in kinds:
            _check_kind(kind, "a list")
        is_whole = not any(issubclass(kind, (float, np.floating)) or _is_half(kind) for kind in kinds)
        try:
            array = np.array(x, object if is_whole and kinds and not kinds <= {bool, np.bool_} else None)
        except ValueError as error:
            raise BadInput(f"a list of numbers must have rows of one length: {error}") from None
        if array.dtype == object:
            wrong = next((one for one in array.flat if not isinstance(one, (int, np.integer, np.bool_))), None)
            if wrong is not None:
                raise BadInput("a list of numbers must have rows of one length, but these differ")
            array = np.array([int(one) for one in array.flat], object).reshape(array.shape)
            _check_range(array)
        return array
    refuse_masked(x, "x")
    _check_kind(type(x), "x")
    if call == "reduce_scatter":
        raise BadInput("a single number has no parts to scatter: pass a list or an array, or use allreduce")
    if isinstance(x, np.integer) or type(x) is int:
        array = np.array(int(x), object)
        _check_range(array)
        return array
    return np.asarray(x)


def _kinds(x: Any) -> set[type]:
    """The types of all numbers in a nested list."""
    kinds = set(map(type, x))
    for one in x:
        if type(one) in (list, tuple):
            kinds |= _kinds(one)
    return kinds - {list, tuple}


def _is_half(kind: type) -> bool:
    """True for a type of ml_dtypes, which are not subclasses of NumPy's floats."""
    return issubclass(kind, np.generic) and not issubclass(kind, (np.integer, np.bool_, np.floating))


def _check_kind(kind: type, what: str) -> None:
    """Refuse anything but real numbers."""
    if kind in (int, float, bool):
        return
    if issubclass(kind, np.generic):
        name = np.dtype(kind).name
        if kind is np.bool_ or np.dtype(kind).kind in "iu" or name in ("float16", "bfloat16", "float32", "float64"):
            return
    fix = "numbers must be int, float or bool, or of NumPy's types of up to 64 bits"
    if issubclass(kind, (complex, np.complexfloating)):
        fix = "reduce [x.real, x.imag]"
    elif issubclass(kind, np.longdouble):
        fix = "use np.float64(x)"
    elif hasattr(kind, "to_dense"):
        fix = "one vector a call, or comm.allgather, which takes any object"
    elif hasattr(kind, "__array__"):
        fix = "np.stack(x) is one array"
    elif issubclass(kind, Integral):
        fix = "use int(x)"
    elif issubclass(kind, Number):
        fix = "use float(x)"
    elif issubclass(kind, (str, bytes, type(None), dict, set)):
        fix = "comm.allgather and comm.broadcast take any object"
    raise BadInput(f"{what} of {kind.__name__} cannot be reduced: {fix}")


def _check_range(array: npt.NDArray[Any]) -> None:
    for number in array.flat:
        if not _MIN <= number <= _MAX:
            raise BadInput(f"integers must fit 64 bits, but {number} does not: use float(x)")


def _described(x: Any, array: npt.NDArray[Any], op: Op, call: str, root: int, *, inline: bool) -> _Given:
    is_list = isinstance(x, (list, tuple))
    if is_list:
        kind = "none" if not array.size else "int" if array.dtype == object else _kind_of(array.dtype)
    else:
        kind = type(x).__name__ if type(x) in (int, float, bool) else np.asarray(x).dtype.name
    is_whole = array.dtype == object
    most = max((abs(number) for number in array.flat), default=0) if is_whole else 0
    values = None
    if inline or array.size <= _INLINE:
        values = (array.astype(np.float64) if array.dtype.kind not in "Ob" else array).tolist()
    name = op if isinstance(op, str) else NAMED_UFUNCS.get(op, op.__name__)
    return _Given(call, name, root, kind, list(array.shape) if is_list else None, values, most)


def _kind_of(dtype: np.dtype[Any]) -> str:
    return "bool" if dtype == np.bool_ else "float"


def _reduced(comm: Comm, all_given: list[_Given], mine: npt.NDArray[Any], op: Op) -> npt.NDArray[Any]:
    """The result as an array, of objects for Python integers. All ranks have the same data, so all raise the same
    error."""
    for what in ("call", "op", "root", "shape"):
        said = [getattr(given, what) for given in all_given]
        other = next((rank for rank, one in enumerate(said) if one != said[0]), None)
        if other is not None:
            raise Mismatch(
                f"ranks disagree in a reduction of numbers: rank 0 has {what}={said[0]}, rank {other} has "
                f"{what}={said[other]}"
            )
    dtype = _common([given.kind for given in all_given], op)
    if dtype is not None and dtype.kind not in "iub" and not all(_can_hold(given, dtype) for given in all_given):
        dtype = np.dtype(np.float64)
    inline = [given.values is not None for given in all_given]
    if any(inline) and not all(inline):
        raise Mismatch("ranks disagree in a reduction of a list: some pass async_op=True, some do not")
    if all(inline):
        rows = [given.values for given in all_given]
    elif dtype is None and not _fits(all_given, op):
        rows = _all_rows(comm, mine)  # the result may fit 64 bits although intermediate sums do not
    else:
        untyped_comm: Any = comm
        reduced: npt.NDArray[Any] = untyped_comm.allreduce(mine.astype(dtype or np.int64), op=op)
        return reduced
    if dtype is None or dtype.kind in "iub":
        return _exact([np.array(row, object) for row in rows], dtype, op)
    return _rounded([np.array(row, np.float64).astype(dtype) for row in rows], op)


def _common(kinds: list[str], op: Op) -> np.dtype[Any] | None:
    """The type of the result by NumPy's rules, in which Python numbers take the type of NumPy's. None: exact Python
    integers, because all numbers are Python integers, or ranks mix int64 and uint64."""
    known = set(kinds) - {"none"}
    strong = [type_named(kind) for kind in sorted(known - {"bool", "int", "float"})]
    dtype: np.dtype[Any] | None
    if known and known <= {"bool"}:
        dtype = result_type(op, np.dtype(np.bool_))
    elif strong:
        dtype = np.result_type(*strong)
        whole = all(one.kind in "iub" for one in strong)
        if whole and "float" in known:
            dtype = np.dtype(np.float64)
        elif whole and dtype.kind == "f":
            dtype = None
        elif dtype == np.bool_:
            dtype = None if "int" in known else result_type(op, dtype)
    else:
        dtype = np.dtype(np.float64) if "float" in known or not known else None
    is_whole = dtype is None or dtype.kind in "iub"
    if is_whole and op in ("mean", "mean_present"):
        raise BadInput(f'op="{op}" needs floating-point values, not integers: use float(x)')
    if not is_whole and (op in ("or", "and") or op in (np.bitwise_or, np.bitwise_and)):
        raise BadInput(f'op="{op}" needs integers, not {dtype}')
    return dtype


def _can_hold(given: _Given, dtype: np.dtype[Any]) -> bool:
    """True if a float type can hold a Python number: an integer exactly, a float without overflow."""
    if given.kind not in ("int", "float") or given.shape is not None:
        return True
    with np.errstate(all="ignore"):
        held = float(np.asarray(float(given.values)).astype(dtype))
    return held == given.values if given.kind == "int" else math.isfinite(held) or not math.isfinite(given.values)


def _fits(all_given: list[_Given], op: Op) -> bool:
    """True if no intermediate sum or product can exceed 64 bits."""
    most = [given.most for given in all_given]
    if op == "prod" or op is np.multiply:
        return math.prod(max(1, one) for one in most) < 2**63
    return sum(most) < 2**63


def _all_rows(comm: Comm, mine: npt.NDArray[Any]) -> list[Any]:
    block = np.frombuffer(json.dumps(mine.tolist()).encode(), np.uint8)
    rows: list[Any] = allgather_bytes(
        comm, block, lambda blocks: [json.loads(one.tobytes().rstrip(b"\0")) for one in blocks], async_op=False
    )
    return rows


def _exact(rows: list[npt.NDArray[Any]], dtype: np.dtype[Any] | None, op: Op) -> npt.NDArray[Any]:
    """Reduce the integers and booleans of all ranks as Python integers."""
    shape = rows[0].shape
    numbers = [np.array([int(one) for one in row.flat], object) for row in rows]
    if isinstance(op, str) or op in NAMED_UFUNCS:
        ufunc = _UFUNCS[op] if isinstance(op, str) else op
        total = numbers[0]
        for row in numbers[1:]:
            total = ufunc(total, row)
    else:
        total = _custom([row.astype(np.uint64 if max(row, default=0) >= 2**63 else np.int64) for row in numbers], op)
    least, most, what = _MIN, _MAX, "64 bits"
    if dtype is not None:
        limits = np.iinfo(dtype) if dtype != np.bool_ else None
        least, most = (0, 1) if limits is None else (int(limits.min), int(limits.max))
        what = f"{dtype}, the type of all ranks' numbers"
    for number in total:
        if not least <= number <= most:
            raise BadInput(f"the result is {number}, which does not fit {what}: pass float(x)")
    whole = np.empty(len(total), object)
    whole[:] = [int(one) for one in total]
    return whole.astype(dtype or object).reshape(shape)


def _rounded(rows: list[npt.NDArray[Any]], op: Op) -> npt.NDArray[Any]:
    """Reduce the floats of all ranks in rank order."""
    if not isinstance(op, str):
        return _custom(rows, op)
    total = rows[0]
    with np.errstate(all="ignore"):
        for row in rows[1:]:
            total = np.asarray(_UFUNCS[op](total, row), total.dtype)
        if op in ("mean", "mean_present"):
            total = np.asarray(total / total.dtype.type(len(rows)), total.dtype)
    return total


def _custom(rows: list[npt.NDArray[Any]], op: Any) -> npt.NDArray[Any]:
    """Reduce numbers by a ufunc, in the type of the first one."""
    if len({row.dtype for row in rows}) > 1:
        rows = [row.astype(np.int64) for row in rows]
    total = rows[0]
    try:
        with np.errstate(all="ignore"):
            for row in rows[1:]:
                total = np.asarray(op(total, row, out=np.empty_like(total), casting="same_kind"))
    except TypeError as error:
        raise BadInput(f"op={op.__name__} failed: {error}") from None
    return total


def _like(x: Any, reduced: npt.NDArray[Any]) -> Any:
    """The result as a number or list, of the kind of this rank's argument."""
    if isinstance(x, (list, tuple)):
        return _nested(x, reduced.tolist())
    if not isinstance(x, np.generic):
        return reduced.item()
    if reduced.dtype != object:
        return reduced[()]
    return np.uint64(reduced.item()) if reduced.item() >= 2**63 else np.int64(reduced.item())


def _nested(like: Any, values: Any) -> Any:
    """Nest a result in lists and tuples as the argument was."""
    if not isinstance(like, (list, tuple)):
        return values
    return type(like)(_nested(one, value) for one, value in zip(like, values, strict=True))
