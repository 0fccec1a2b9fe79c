"""Exclude non-tensor code from ``torch.compile``."""

from __future__ import annotations

import inspect
import sys
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame
from torch._compile import _disable_dynamo

__all__ = ["untraced"]

_Class = TypeVar("_Class", bound=type)


def untraced(cls: _Class) -> _Class:
    """Make the public methods of a class run uncompiled when compiled code calls them.

    ``torch.compile`` traces the Python that a compiled function calls, also through ``torch.distributed``. It cannot
    compile connections, threads and NumPy arrays.

    Examples
    --------
    >>> from skyphos.torch.backend.untraced import untraced
    >>> @untraced
    ... class Two:
    ...     def add(self, n):
    ...         return n + 2
    >>> Two().add(3)
    5
    """
    for name, call in list(vars(cls).items()):
        if inspect.isfunction(call) and not call.__name__.startswith("_"):
            setattr(cls, name, _untraced(call))
    return cls


def _untraced(call: Any) -> Any:
    uncompiled = _disable_dynamo(call)

    def either(*args: Any, **kwargs: Any) -> Any:
        # `uncompiled` imports torch._dynamo, which takes seconds, so it is used only after something else imported it.
        return (uncompiled if "torch._dynamo" in sys.modules else call)(*args, **kwargs)

    try:
        strategy = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT)
        eval_frame.set_code_exec_strategy(either.__code__, strategy)
    except AttributeError:  # a PyTorch without these internals
        return uncompiled
    either.__name__, either.__doc__ = call.__name__, call.__doc__
    either.__wrapped__ = call  # type: ignore[attr-defined]
    return either
