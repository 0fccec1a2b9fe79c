"""Names of parameters, for settings that go by them and for errors that tell of them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ...errors import BadInput

__all__ = ["Choice", "Names", "check_choice", "chosen", "of_name", "patterns_of"]

#: Which layers: patterns of names, or a function of name and parameter.
Choice = Sequence[str] | Callable[[str, torch.Tensor], bool]


class Names:
    """Names of the parameters of one model, for settings, errors and saved states that go by them.

    A hook gets tensors, not names, and no way to its model; so the model that is wrapped for data parallelism and has
    them is looked for. A parameter of none is called by its number and shape.

    Attributes
    ----------
    group : ProcessGroup or None
        The process group of the wrapped model that was found; of the same ranks, should it be wrapped again.

    Examples
    --------
    >>> import torch
    >>> from skyphos.torch.hooks.parameter_names import Names
    >>> names, weight = Names(), torch.ones(2, 3)
    >>> names.learn([weight])
    >>> names[weight]
    'parameter 0 of shape (2, 3)'
    """

    def __init__(self) -> None:
        self.group: Any = None
        self._ranks: list[int] | None = None
        self._model: weakref.ref[DistributedDataParallel] | None = None
        self._is_new = False
        self._names: dict[int, str] = {}
        #: By name, so that an `id` that was used again is known for what it is.
        self._named: dict[str, weakref.ref[torch.Tensor]] = {}

    def __contains__(self, parameter: torch.Tensor) -> bool:
        name = self._names.get(id(parameter))
        return name is not None and self._named[name]() is parameter

    def __getitem__(self, parameter: torch.Tensor) -> str:
        return self._names[id(parameter)]

    def __len__(self) -> int:
        return len(self._named)

    def fitting(self, pattern: str) -> bool:
        """Whether a name fits a pattern."""
        return any(fnmatchcase(name, pattern) for name in self._named)

    def renew(self) -> None:
        """The model may have been wrapped again: look with the next parameters."""
        self._is_new = True

    def learn(self, parameters: Sequence[torch.Tensor]) -> None:
        """Find the names of those that have none yet.

        Raises
        ------
        BadInput
            A name is that of a parameter of another model. The model is wrapped for other ranks than before.
        """
        new = [parameter for parameter in parameters if parameter not in self]
        known = None if self._model is None else self._model()
        if self._model is not None and known is None:
            self._is_new = True
        if not new and not self._is_new:
            return
        found = _names_in(known, new)
        if self._is_new or len(found) < len(new):
            model = _model_of(parameters)
            found = _names_in(model, new)
            if model is not None:
                self._belong(model)
            self._model = None if model is None else weakref.ref(model)
        for parameter in new:
            self.give(parameter, found.get(id(parameter)))
        self._is_new = False

    def _belong(self, model: DistributedDataParallel) -> None:
        ranks = _ranks_of(model)
        if self._ranks not in (None, ranks):
            raise BadInput(
                f"this state reduced among ranks {self._ranks}, and its model is wrapped for ranks {ranks} now: make "
                "a new state for that, and load_state_dict() this one's state_dict() to go on with what is held back"
            )
        self.group, self._ranks = model.process_group, ranks

    def give(self, parameter: torch.Tensor, name: str | None) -> None:
        """Name a parameter; None: by its number and shape."""
        if name is None:
            name = f"parameter {len(self)} of shape {tuple(parameter.shape)}"
        if self._has_another(name, parameter):
            gc.collect()  # a model that nobody has any more may be waiting for that
            if self._has_another(name, parameter):
                raise BadInput(
                    f"a state of a hook is of one model, and {name} is of two: make a state for each, or delete the "
                    "model that is no more used"
                )
        self._names[id(parameter)] = name
        self._named[name] = weakref.ref(parameter)

    def _has_another(self, name: str, parameter: torch.Tensor) -> bool:
        known = self._named.get(name)
        return known is not None and known() is not None and known() is not parameter


def _names_in(model: DistributedDataParallel | None, parameters: Iterable[torch.Tensor]) -> dict[int, str]:
    """Names by ``id`` of those that the model has."""
    wanted = {id(parameter) for parameter in parameters}
    named = () if model is None else model.module.named_parameters()
    return {id(parameter): name for name, parameter in named if id(parameter) in wanted}


def _model_of(parameters: Iterable[torch.Tensor]) -> DistributedDataParallel | None:
    """The wrapped model that has some of these. It takes a look at all objects there are: a tenth of a second."""
    wanted = {id(parameter) for parameter in parameters}
    models = _models(wanted)
    if len(models) > 1:
        gc.collect()  # one that nobody has any more may be waiting for that
        models = _models(wanted)
    if len({tuple(_ranks_of(model)) for model in models}) > 1:
        raise BadInput(
            "the model is wrapped twice, for different ranks, and a hook's state cannot know which of them it is of: "
            "give each its own process_group=, or delete the one that is no more used"
        )
    return models[0] if models else None


def _models(wanted: set[int]) -> list[DistributedDataParallel]:
    having = _wrapped(wanted)
    if not having and gc.get_freeze_count():
        gc.collect()  # or else what is garbage now would be frozen with the rest
        gc.unfreeze()
        having = _wrapped(wanted)
        gc.freeze()
    return [one for one in having if _ranks_of(one)]


def _wrapped(wanted: set[int]) -> list[DistributedDataParallel]:
    # Of lazy objects `isinstance` would ask for more than their type.
    models = [one for one in gc.get_objects() if issubclass(type(one), DistributedDataParallel)]
    return [one for one in models if any(id(parameter) in wanted for parameter in one.module.parameters())]


def _ranks_of(model: DistributedDataParallel) -> list[int]:
    """The ranks for which a model is wrapped; none if that process group was destroyed."""
    try:
        ranks: list[int] = dist.get_process_group_ranks(model.process_group)
    except KeyError:
        return []
    return ranks


def chosen(choice: Choice | None, name: str, parameter: torch.Tensor) -> bool:
    """Whether a layer is one of the choice; None: all are.

    Examples
    --------
    >>> import torch
    >>> from skyphos.torch.hooks.parameter_names import chosen
    >>> chosen(["encoder.*"], "encoder.weight", torch.ones(1)), chosen(["encoder.*"], "decoder.bias", torch.ones(1))
    (True, False)
    >>> chosen("encoder.*", "encoder.weight", torch.ones(1)), chosen("encoder.*", "decoder.bias", torch.ones(1))
    (True, False)
    """
    if choice is None:
        return True
    if callable(choice):
        return bool(choice(name, parameter))
    return any(fnmatchcase(name, pattern) for pattern in patterns_of(choice))


def check_choice(choice: Any) -> list[Any]:
    """The patterns of a choice; refuses what is none."""
    if choice is None or callable(choice) or isinstance(choice, Sequence):
        return patterns_of(choice)
    raise BadInput(f"layers must be patterns of names, a function of (name, parameter), or None, not {choice!r}")


def patterns_of(choice: Choice | None) -> list[str]:
    """The patterns of a choice; none, where it is a function or all.

    Examples
    --------
    >>> from skyphos.torch.hooks.parameter_names import patterns_of
    >>> patterns_of("encoder.*"), patterns_of(None)
    (['encoder.*'], [])
    """
    if choice is None or callable(choice):
        return []
    return [choice] if isinstance(choice, str) else list(choice)


def of_name(values: Any, name: str) -> Any:
    """What a mapping from patterns has for a name: the first that fits, else None; of anything else, itself.

    Examples
    --------
    >>> from skyphos.torch.hooks.parameter_names import of_name
    >>> of_name({"*.bias": 1, "*": 4}, "decoder.weight"), of_name(2, "decoder.weight")
    (4, 2)
    """
    if not isinstance(values, Mapping):
        return values
    return next((value for pattern, value in values.items() if fnmatchcase(name, pattern)), None)
