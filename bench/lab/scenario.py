"""A scenario, read from a TOML file. Examples are in `scenarios/`; `bench/README.md` lists the keys."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .link import rate_bits, size_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).with_name("scenarios")
_NETWORKS = ("namespaces", "loopback")
_OPS = ("sum", "min", "max")


class BadScenario(ValueError):
    """The scenario file is invalid; the text has the reason."""


@dataclass(frozen=True)
class Scenario:
    """One scenario: a network, inputs, contenders, and iterations."""

    name: str
    title: str
    hosts: int
    n: int
    data: dict[str, Any]
    contenders: dict[str, dict[str, Any]]
    network: str = "namespaces"
    rate: str = "none"
    burst: str = "128k"
    dtype: str = "float32"
    op: str = "sum"
    iterations: int = 25
    placements: int = 3
    seed: int = 1
    limit_s: float = 180.0
    folder: Path = field(default=FOLDER, compare=False)

    @property
    def shaped(self) -> bool:
        """Whether links have a rate."""
        return self.network == "namespaces" and self.rate != "none"

    @property
    def rate_bits(self) -> float | None:
        """Bits a second of each link in each direction; None: not limited."""
        return rate_bits(self.rate) if self.shaped else None

    def iterations_of(self, contender: str) -> int:
        """Iterations of a contender in each placement, including the dropped first one."""
        return min(self.iterations, int(self.contenders[contender].get("iterations", self.iterations)))


def load(name: str, **changes: Any) -> Scenario:
    """Read a scenario by the name of a file in `scenarios/` or by path; ``changes`` override its settings."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
    except FileNotFoundError:
        known = ", ".join(sorted(p.stem for p in FOLDER.glob("*.toml")))
        raise BadScenario(f"there is no scenario {name}; ours are {known}") from None
    except tomllib.TOMLDecodeError as error:
        raise BadScenario(f"{path}: {error}") from None
    wanted = changes.pop("only", None)
    if wanted:
        listed = found.get("contenders", {})
        found["contenders"] = {contender: listed.get(contender, {}) for contender in wanted}
    found |= {key: value for key, value in changes.items() if value is not None}
    unknown = set(found) - {f.name for f in fields(Scenario)}
    if unknown:
        raise BadScenario(f"{path}: no such setting: {', '.join(sorted(unknown))}")
    try:
        scenario = Scenario(name=path.stem, folder=path.parent, **found)
        _check(scenario)
    except (TypeError, ValueError) as error:
        raise BadScenario(f"{path}: {error}") from None
    return scenario


def _check(scenario: Scenario) -> None:
    if scenario.hosts < 2:
        raise ValueError("a scenario needs at least 2 hosts")
    if scenario.network not in _NETWORKS:
        raise ValueError(f"network must be one of {', '.join(_NETWORKS)}, not {scenario.network!r}")
    if scenario.op not in _OPS:
        raise ValueError(f"op must be one of {', '.join(_OPS)}, not {scenario.op!r}")
    if scenario.placements < 1:
        raise ValueError("placements must be at least 1")
    if not scenario.contenders:
        raise ValueError("no contenders")
    for contender in scenario.contenders:
        if scenario.iterations_of(contender) < 2:
            raise ValueError(f"{contender} needs at least 2 iterations, for the first is dropped")
    if scenario.shaped:
        rate_bits(scenario.rate)
        size_bytes(scenario.burst)
