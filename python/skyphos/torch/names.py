"""Names of parameters, for settings that go by them and for errors that tell of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

__all__ = ["Choice", "chosen", "names_of", "of_name"]

#: Which layers: patterns of names, or a function of name and parameter.
Choice = Sequence[str] | Callable[[str, torch.Tensor], bool]


def names_of(parameters: Iterable[torch.Tensor]) -> dict[int, str]:
    """Names of parameters, by their ``id``: as the model has them that is wrapped for data parallelism.

    A hook gets tensors, not names, and no way to its model; so the wrapped model that has them is looked for.

    Examples
    --------
    >>> import torch
    >>> from skyphos.torch.names import names_of
    >>> list(names_of([torch.ones(2, 3)]).values())
    ['parameter 0 of shape (2, 3)']
    """
    wanted = {
        id(parameter): f"parameter {k} of shape {tuple(parameter.shape)}" for k, parameter in enumerate(parameters)
    }
    for one in gc.get_objects():
        # Of lazy objects `isinstance` would ask for more than their type.
        if issubclass(type(one), DistributedDataParallel):
            named = one.module.named_parameters()
            found = {id(parameter): name for name, parameter in named if id(parameter) in wanted}
            if found:
                return wanted | found
    return wanted


def chosen(choice: Choice | None, name: str, parameter: torch.Tensor) -> bool:
    """Whether a layer is one of the choice; None: all are.

    Examples
    --------
    >>> import torch
    >>> from skyphos.torch.names import chosen
    >>> chosen(["encoder.*"], "encoder.weight", torch.ones(1)), chosen(["encoder.*"], "decoder.bias", torch.ones(1))
    (True, False)
    >>> chosen("encoder.*", "encoder.weight", torch.ones(1)), chosen("encoder.*", "decoder.bias", torch.ones(1))
    (True, False)
    """
    if choice is None:
        return True
    if callable(choice):
        return bool(choice(name, parameter))
    patterns = [choice] if isinstance(choice, str) else choice
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def of_name(values: Any, name: str) -> Any:
    """What a mapping from patterns has for a name: the first that fits, else None; of anything else, itself.

    Examples
    --------
    >>> from skyphos.torch.names import of_name
    >>> of_name({"*.bias": 1, "*": 4}, "decoder.weight"), of_name(2, "decoder.weight")
    (4, 2)
    """
    if not isinstance(values, Mapping):
        return values
    return next((value for pattern, value in values.items() if fnmatchcase(name, pattern)), None)
