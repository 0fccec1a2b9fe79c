"""Patterns of parameter names, which select the layers of a setting (``"encoder.*"``, as in file names)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch

from ...errors import BadInput

__all__ = ["LayerChoice", "check_choice", "first_match", "is_chosen", "patterns_of"]

#: Which layers: patterns of names, or a function of name and parameter.
LayerChoice = Sequence[str] | Callable[[str, torch.Tensor], bool]


def is_chosen(choice: LayerChoice | None, name: str, parameter: torch.Tensor) -> bool:
    """Whether a choice includes a layer. None includes every layer.

    Examples
    --------
    >>> import torch
    >>> from skyphos.torch.hooks.name_patterns import is_chosen
    >>> one = torch.ones(1)
    >>> is_chosen(["encoder.*"], "encoder.weight", one), is_chosen(["encoder.*"], "decoder.bias", one)
    (True, False)
    >>> is_chosen("encoder.*", "encoder.weight", one), is_chosen("encoder.*", "decoder.bias", one)
    (True, False)
    """
    if choice is None:
        return True
    if callable(choice):
        return bool(choice(name, parameter))
    return any(fnmatchcase(name, pattern) for pattern in patterns_of(choice))


def check_choice(choice: Any) -> list[Any]:
    """The patterns of a choice that a caller passed.

    Raises
    ------
    BadInput
        It is neither patterns nor a function nor None.
    """
    if choice is None or callable(choice) or isinstance(choice, Sequence):
        return patterns_of(choice)
    raise BadInput(f"layers must be patterns of names, a function of (name, parameter), or None, not {choice!r}")


def patterns_of(choice: LayerChoice | None) -> list[str]:
    """The patterns of a choice. A function and None have none.

    Examples
    --------
    >>> from skyphos.torch.hooks.name_patterns import patterns_of
    >>> patterns_of("encoder.*"), patterns_of(None)
    (['encoder.*'], [])
    """
    if choice is None or callable(choice):
        return []
    return [choice] if isinstance(choice, str) else list(choice)


def first_match(values: Any, name: str) -> Any:
    """The value of the first pattern that fits a name, or None. A value that is no mapping is for every name.

    Examples
    --------
    >>> from skyphos.torch.hooks.name_patterns import first_match
    >>> first_match({"*.bias": 1, "*": 4}, "decoder.weight"), first_match(2, "decoder.weight")
    (4, 2)
    """
    if not isinstance(values, Mapping):
        return values
    return next((value for pattern, value in values.items() if fnmatchcase(name, pattern)), None)
