"""Combine: the operation that merges values of one key: a named one, a list or a function."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import BadInput
from ..inputs.arguments import NAMES, Op, checked_op, name_of_function
from ..vectors.booleans import result_type
from .user_code import raised

__all__ = ["Combine", "Function"]

#: (key, a, b) → value.
Function = Callable[[Any, Any, Any], Any]

#: Number of keys on which a function is checked in debug mode.
CHECKED = 64


@dataclass(frozen=True)
class Combine:
    """The parsed argument ``combine=``.

    Attributes
    ----------
    name : str
        Name of the operation, the same on all ranks.
    op, identity
        An operation of the native library, or a ufunc and its identity.
    function : callable or None
        The user's function.
    lists, counts : bool
        Whether all values are kept; whether they are only counted.
    """

    name: str
    op: Any = None
    identity: Any = None
    function: Function | None = None
    lists: bool = False
    counts: bool = False

    @classmethod
    def of(cls, combine: Op | Function) -> Combine:
        """Parse the argument.

        Examples
        --------
        >>> from skyphos.shuffle.combine import Combine
        >>> Combine.of("sum").op, Combine.of("list").lists
        ('sum', True)
        """
        if isinstance(combine, str) and combine == "list":
            return cls("list", lists=True)
        if isinstance(combine, str) and combine == "count":
            return cls("count", op="sum", counts=True)
        if isinstance(combine, str) and combine in ("mean", "mean_present"):
            raise BadInput(
                f"combine={combine!r}: means of means are not the mean. Sum the values and their counts, in two columns"
            )
        if isinstance(combine, (str, np.ufunc)):
            try:
                op, identity = checked_op(combine)
            except BadInput as error:
                if isinstance(combine, str):
                    known = ", ".join(name for name in NAMES if not name.startswith("mean"))
                    raise BadInput(
                        f"unknown combine operation {combine!r}: {known}, list, count, a ufunc with an identity, or a "
                        "function of (key, a, b)"
                    ) from None
                raise BadInput(str(error).replace("operation", "combine operation", 1)) from None
            return cls(op if isinstance(op, str) else combine.__name__, op=op, identity=identity)  # type: ignore[union-attr]
        if not callable(combine):
            raise BadInput(f'combine is a named operation, "list", "count", a ufunc or a function, not {combine!r}')
        _check_function(combine)
        return cls(getattr(combine, "__qualname__", type(combine).__name__), function=combine)

    def is_exact(self, dtype: str) -> bool:
        """True if merged values do not depend on the grouping: false for rounded sums.

        Examples
        --------
        >>> from skyphos.shuffle.combine import Combine
        >>> Combine.of("sum").is_exact("int64"), Combine.of("sum").is_exact("float64")
        (True, False)
        """
        return self.lists or (isinstance(self.op, str) and dtype.startswith(("int", "uint", "bool")))

    def type_of(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The type of merged values: sums of booleans are counts."""
        return dtype if self.lists or self.op is None else result_type(self.op, dtype)

    def merge(self, key: Any, a: Any, b: Any, rank: int) -> Any:
        """Merge two values by the user's function."""
        assert self.function is not None
        try:
            return self.function(key, a, b)
        except Exception as error:  # any error of the user's function
            raise raised(f"rank {rank}: combine={self.name}", error, f" on key {key!r}") from error


def _check_function(combine: Any) -> None:
    """Refuse functions that do not take a key and two values: they would fail, or use the key, when a key repeats."""
    is_bare = isinstance(combine, functools.partial) and not (combine.args or combine.keywords)
    name = name_of_function(combine.func if is_bare else combine)
    if name is not None:
        raise BadInput(f"combine={combine!r} would use the key as a value: pass {name!r}")
    if isinstance(combine, (types.BuiltinFunctionType, type)) or getattr(combine, "__module__", None) == "numpy":
        raise BadInput(
            f"combine={combine!r} takes no key: a function of (key, a, b) is needed, such as lambda key, a, b: f(a, b)"
        )
    try:
        inspect.signature(combine).bind(None, None, None)
    except TypeError as error:
        raise BadInput(f"combine={combine!r} must be a function of (key, a, b): {error}") from None
    except ValueError:
        pass  # a function in C without a signature


def is_debug(debug: bool | None) -> bool:
    """Whether functions are checked: ``debug``, or by default under ``python -X dev``."""
    return sys.flags.dev_mode if debug is None else bool(debug)


class Checker:
    """Checks on the first values of some keys that a function is commutative and associative."""

    def __init__(self, combine: Combine, rank: int) -> None:
        self._combine, self._rank = combine, rank
        self._seen: dict[Any, list[Any]] = {}

    def see(self, key: Any, value: Any) -> None:
        """Check one more value.

        Raises
        ------
        BadInput
            If the function is not associative or not commutative; the text has the key and the values.
        """
        values = self._seen.setdefault(key, []) if len(self._seen) < CHECKED or key in self._seen else None
        if values is None or len(values) == 3:
            return
        values.append(value)

        def f(a: Any, b: Any) -> Any:
            return self._combine.merge(key, _copy(a), _copy(b), self._rank)

        if len(values) == 2:
            a, b = values
            self._require_same(key, "commutative", f"f({a!r}, {b!r})", f(a, b), f(b, a))
        elif len(values) == 3:
            a, b, c = values
            self._require_same(key, "associative", f"f of {a!r}, {b!r}, {c!r}", f(f(a, b), c), f(a, f(b, c)))

    def _require_same(self, key: Any, what: str, call: str, left: Any, right: Any) -> None:
        if not _equal(left, right):
            raise BadInput(
                f"rank {self._rank}: combine={self._combine.name} is not {what}: {call} for key {key!r} is {left!r} "
                f"one way and {right!r} the other, so the result would depend on which rank comes first"
            )


def _copy(value: Any) -> Any:
    """A copy, because a function may change its first argument and return it."""
    import copy

    return copy.deepcopy(value)


def _equal(left: Any, right: Any) -> bool:
    """True if equal; numbers may differ by rounding."""
    try:
        a, b = np.asarray(left), np.asarray(right)
        if a.dtype.kind in "fc" and b.dtype.kind in "fc":
            return a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-6, atol=1e-9, equal_nan=True))
        if a.dtype.kind in "biufcSU" and b.dtype.kind in "biufcSU":
            return bool(np.array_equal(a, b))
        return bool(left == right)
    except (TypeError, ValueError):
        return True  # values that cannot be compared prove nothing
