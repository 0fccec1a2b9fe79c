"""Inputs of each rank, made once by the process that runs the scenario, stored in files, and mapped by the ranks.

Kinds: ``uniform`` (``nnz`` or ``density``: indices drawn without replacement), ``zipf`` (``draws`` draws with P(i) ~ (i
+ 1)^-``exponent``, the values of repeats added up; ``scattered = true`` renames indices by a random permutation, the
same on all ranks), ``dense``, and ``trace`` (``file``: an `.npz` with ``indices_R`` and ``values_R`` for each rank R,
as recorded from a program).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .scenario import BadScenario, Scenario

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Data:
    """One rank's input: sorted indices without repeats and a value for each; no indices: a dense vector."""

    n: int
    indices: npt.NDArray[np.int64] | None
    values: Array

    def dense(self, identity: Any = 0) -> Array:
        """The data as a new dense vector."""
        if self.indices is None:
            return np.array(self.values)
        out = np.full(self.n, identity, self.values.dtype)
        out[self.indices] = self.values
        return out

    def sparse(self) -> tuple[npt.NDArray[np.int64], Array]:
        """Indices and values; for a dense vector all indices."""
        return (np.arange(self.n) if self.indices is None else self.indices), self.values


def make(scenario: Scenario) -> list[Data]:
    """The inputs of all ranks."""
    settings = dict(scenario.data)
    kind = settings.pop("kind", None)
    makers: dict[Any, Callable[..., list[Data]]] = {
        "uniform": _uniform,
        "zipf": _zipf,
        "dense": _dense,
        "trace": _trace,
    }
    if kind not in makers:
        raise BadScenario(f"data.kind must be one of {', '.join(makers)}, not {kind!r}")
    try:
        return makers[kind](scenario, **settings)
    except TypeError as error:
        raise BadScenario(f"data of kind {kind}: {error}") from None


def save(data: Data, folder: Path, rank: int) -> None:
    """Write a rank's input where :func:`load` finds it."""
    np.save(folder / f"values_{rank}.npy", data.values)
    if data.indices is not None:
        np.save(folder / f"indices_{rank}.npy", data.indices)


def load(folder: Path, rank: int, n: int) -> Data:
    """Map a rank's input."""
    path = folder / f"indices_{rank}.npy"
    indices = np.load(path, mmap_mode="r") if path.exists() else None
    return Data(n, indices, np.load(folder / f"values_{rank}.npy", mmap_mode="r"))


def _values(rng: np.random.Generator, count: int, dtype: str) -> Array:
    """Incompressible values: normal, or small integers."""
    if np.issubdtype(dtype, np.floating):
        return rng.standard_normal(count, dtype=np.float32).astype(dtype)
    return rng.integers(0, 100, count).astype(dtype)


def _uniform(scenario: Scenario, nnz: int | None = None, density: float | None = None) -> list[Data]:
    if (nnz is None) == (density is None):
        raise BadScenario("uniform data needs nnz or density")
    count = round(scenario.n * density) if nnz is None and density is not None else int(nnz or 0)
    if not 0 <= count <= scenario.n:
        raise BadScenario(f"{count} indices do not fit n = {scenario.n}")
    made = []
    for rank in range(scenario.hosts):
        rng = np.random.default_rng([scenario.seed, rank])
        indices = np.sort(rng.choice(scenario.n, count, replace=False, shuffle=False))
        made.append(Data(scenario.n, indices, _values(rng, count, scenario.dtype)))
    return made


def _zipf(scenario: Scenario, draws: int, exponent: float = 1.1, scattered: bool = False) -> list[Data]:
    cumulative = np.cumsum(np.arange(1, scenario.n + 1, dtype=np.float64) ** -exponent)
    cumulative /= cumulative[-1]
    names = np.random.default_rng(scenario.seed).permutation(scenario.n) if scattered else None
    made = []
    for rank in range(scenario.hosts):
        rng = np.random.default_rng([scenario.seed, rank])
        drawn = np.searchsorted(cumulative, rng.random(draws))
        indices = drawn if names is None else names[drawn]
        made.append(_added_up(scenario, indices, _values(rng, draws, scenario.dtype)))
    return made


def _dense(scenario: Scenario) -> list[Data]:
    return [
        Data(scenario.n, None, _values(np.random.default_rng([scenario.seed, rank]), scenario.n, scenario.dtype))
        for rank in range(scenario.hosts)
    ]


def _trace(scenario: Scenario, file: str) -> list[Data]:
    with np.load(scenario.folder / file) as found:
        held = sum(name.startswith("indices_") for name in found.files)
        if held < scenario.hosts:
            raise BadScenario(f"{file} holds {held} ranks, and {scenario.hosts} are wanted")
        pairs = [(found[f"indices_{rank}"], found[f"values_{rank}"]) for rank in range(scenario.hosts)]
    return [_added_up(scenario, indices, values.astype(scenario.dtype)) for indices, values in pairs]


def _added_up(scenario: Scenario, indices: Array, values: Array) -> Data:
    """Sorted, with the values of repeated indices added."""
    distinct, place = np.unique(indices, return_inverse=True)
    if len(distinct) and not 0 <= distinct[0] <= distinct[-1] < scenario.n:
        raise BadScenario(f"indices from {distinct[0]} to {distinct[-1]} do not fit n = {scenario.n}")
    total = np.zeros(len(distinct), np.float64 if np.issubdtype(values.dtype, np.floating) else np.int64)
    np.add.at(total, place, values)
    return Data(scenario.n, distinct.astype(np.int64), total.astype(scenario.dtype))
