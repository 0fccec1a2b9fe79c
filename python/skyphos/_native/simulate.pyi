"""Simulated clusters."""

from collections.abc import Callable
from typing import Any, final

@final
class SimulatedRound:
    @property
    def name(self) -> str: ...
    @property
    def first_s(self) -> float: ...
    @property
    def last_s(self) -> float: ...
    @property
    def messages(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...
    @property
    def received_bytes(self) -> int: ...

@final
class SimulatedPhase:
    name: str
    algorithm: str
    chunk_bytes: int | None
    degrees: list[int]
    seconds: list[float]
    rounds: list[SimulatedRound]
    timeline: list[tuple[int, list[tuple[str, float, float]]]]
    busy: list[tuple[int, list[tuple[float, float]]]]
    trace: str

# fields: a _Request of skyphos.simulate.run.
def simulate(
    network: Any, fields: Any, traced: bool, progress: Callable[[str, int, float], None] | None
) -> list[SimulatedPhase]: ...
def simulated_collectives() -> list[str]: ...
def simulated_hosts(network: Any, seed: int) -> list[int]: ...
