"""Keep ``torch.compile`` out of what is no computation of tensors."""

from __future__ import annotations

import inspect
import sys
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame
from torch._compile import _disable_dynamo

__all__ = ["untraced"]

_Class = TypeVar("_Class", bound=type)


def untraced(cls: _Class) -> _Class:
    """A class whose public methods run as they are, where compiled code calls them.

    ``torch.compile`` looks into Python that a compiled function comes to, also by way of ``torch.distributed``: into
    connections, threads and arrays, of which it can make nothing.

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
    aside = _disable_dynamo(call)

    def either(*args: Any, **kwargs: Any) -> Any:
        # That costs an import of seconds: not before somebody else has made it.
        return (aside if "torch._dynamo" in sys.modules else call)(*args, **kwargs)

    try:
        strategy = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT)
        eval_frame.set_code_exec_strategy(either.__code__, strategy)
    except AttributeError:  # a PyTorch that does this otherwise
        return aside
    either.__name__, either.__doc__ = call.__name__, call.__doc__
    either.__wrapped__ = call  # type: ignore[attr-defined]
    return either
