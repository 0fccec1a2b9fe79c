"""Names of a model's parameters, which settings, errors and saved states use."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ...errors import BadInput

__all__ = ["ParameterNames"]


class ParameterNames:
    """Names of the parameters of one model.

    DDP passes its hooks tensors, without their names and without the model. The model comes from the caller, or from
    ``DistributedDataParallel.register_comm_hook`` (:meth:`register`). A parameter of no known model is named by its
    number and shape.

    Parameters
    ----------
    model : Module, optional
        The model, wrapped in ``DistributedDataParallel`` or not. Held by a weak reference.

    Attributes
    ----------
    process_group : ProcessGroup or None
        The group of the ``DistributedDataParallel`` that has the parameters.

    Examples
    --------
    >>> import torch
    >>> from skyphos.torch.hooks.parameter_names import ParameterNames
    >>> layer = torch.nn.Linear(3, 2)
    >>> names, other = ParameterNames(layer), torch.ones(2, 3)
    >>> names.learn([layer.bias, other])
    >>> names[layer.bias], names[other]
    ('bias', 'parameter 1 of shape (2, 3)')
    """

    def __init__(self, model: torch.nn.Module | None = None) -> None:
        self.process_group: Any = None
        self._ranks: list[int] | None = None
        self._plain: weakref.ref[torch.nn.Module] | None = None
        self._wrapped: list[weakref.ref[DistributedDataParallel]] = []
        #: Whether a model was registered since parameters were last looked up.
        self._has_new_model = False
        self._names: dict[int, str] = {}
        #: Parameters by name. They tell a parameter from a later one with the same ``id``.
        self._parameters: dict[str, weakref.ref[torch.Tensor]] = {}
        if isinstance(model, DistributedDataParallel):
            self.register(model)
        elif model is not None:
            self._plain = weakref.ref(model)

    def __contains__(self, parameter: torch.Tensor) -> bool:
        name = self._names.get(id(parameter))
        return name is not None and self._parameters[name]() is parameter

    def __getitem__(self, parameter: torch.Tensor) -> str:
        return self._names[id(parameter)]

    def __len__(self) -> int:
        return len(self._parameters)

    @property
    def has_model(self) -> bool:
        """Whether a model is known, so that names are the model's."""
        return self._plain is not None or bool(self._wrapped)

    def matches(self, pattern: str) -> bool:
        """Whether a pattern fits the name of some parameter."""
        return any(fnmatchcase(name, pattern) for name in self._parameters)

    def register(self, model: DistributedDataParallel) -> None:
        """Add a wrapped model. :meth:`learn` reads its names when its parameters come."""
        self._wrapped = [known for known in self._wrapped if known() not in (None, model)]
        self._wrapped.append(weakref.ref(model))
        self._has_new_model = True

    def learn(self, parameters: Sequence[torch.Tensor]) -> None:
        """Find the names of those parameters that have none yet.

        Raises
        ------
        BadInput
            A name belongs to a parameter of another model, or the model is wrapped for other ranks than before.
        """
        new = [parameter for parameter in parameters if parameter not in self]
        if not new and not self._has_new_model:
            return
        names: dict[int, str] = {}
        wrapped = self._wrapper_of(parameters)
        if wrapped is not None:
            self._check_ranks(wrapped)
            names = _names_in(wrapped.module, new)
        if self._plain is not None:
            names |= _names_in(self._plain(), new)
        for parameter in new:
            self.give(parameter, names.get(id(parameter)))
        self._has_new_model = False

    def give(self, parameter: torch.Tensor, name: str | None) -> None:
        """Name a parameter. None names it by its number and shape."""
        if name is None:
            name = f"parameter {len(self)} of shape {tuple(parameter.shape)}"
        if self._has_another(name, parameter):
            gc.collect()  # the other model may be garbage
            if self._has_another(name, parameter):
                raise BadInput(
                    f"a hook's state is for one model, and two models have a {name}: make a state for each, or delete "
                    "the model that is no longer used"
                )
        self._names[id(parameter)] = name
        self._parameters[name] = weakref.ref(parameter)

    def _has_another(self, name: str, parameter: torch.Tensor) -> bool:
        known = self._parameters.get(name)
        return known is not None and known() is not None and known() is not parameter

    def _wrapper_of(self, parameters: Iterable[torch.Tensor]) -> DistributedDataParallel | None:
        """The registered model that has some of these parameters, the latest if there are several."""
        wanted = {id(parameter) for parameter in parameters}
        models = self._wrappers_of(wanted)
        if len(models) > 1:
            gc.collect()  # all but one may be garbage
            models = self._wrappers_of(wanted)
        if len({tuple(_ranks_of(model)) for model in models}) > 1:
            raise BadInput(
                "this state is registered with two wrappers of one model, which have different ranks: make a state "
                "for each, or delete the wrapper that is no longer used"
            )
        return models[-1] if models else None

    def _wrappers_of(self, wanted: set[int]) -> list[DistributedDataParallel]:
        models = [model for known in self._wrapped if (model := known()) is not None and _ranks_of(model)]
        return [model for model in models if any(id(one) in wanted for one in model.module.parameters())]

    def _check_ranks(self, model: DistributedDataParallel) -> None:
        ranks = _ranks_of(model)
        if self._ranks not in (None, ranks):
            raise BadInput(
                f"this state reduced among ranks {self._ranks}, and its model is wrapped for ranks {ranks} now: make "
                "a new state for those, and load_state_dict() this one's state_dict() to keep its residuals"
            )
        self.process_group, self._ranks = model.process_group, ranks


def _names_in(model: torch.nn.Module | None, parameters: Iterable[torch.Tensor]) -> dict[int, str]:
    """The model's names of these parameters, by their ``id``."""
    wanted = {id(parameter) for parameter in parameters}
    named = () if model is None else model.named_parameters()
    return {id(parameter): name for name, parameter in named if id(parameter) in wanted}


def _ranks_of(model: DistributedDataParallel) -> list[int]:
    """The ranks for which a model is wrapped. Empty if that process group was destroyed."""
    try:
        ranks: list[int] = dist.get_process_group_ranks(model.process_group)
    except KeyError:
        return []
    return ranks
