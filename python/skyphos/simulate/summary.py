"""Summary of a simulation, for the terminal and for the page."""

from __future__ import annotations

from ..text.quantities import human_bytes
from .run import USED_BY, Phase

__all__ = ["data_summary", "phase_summary"]


def data_summary(collective: str, n: int | None, entries: float | None, row_bytes: int) -> list[str]:
    """Describe the data of a simulated collective; ``n``, ``entries``: None if the collective has no such data.

    Examples
    --------
    >>> from skyphos.simulate.summary import data_summary
    >>> data_summary("allreduce", 1000, 50, 4), data_summary("broadcast", 10**9, None, 1)
    (['n = 1,000', '50 entries a rank (0.05)'], ['a message of 1.00 GB'])
    """
    if collective == "broadcast" and n is not None:
        return [f"a message of {human_bytes(n * row_bytes)}"]
    if collective == "shuffle" and entries is not None:
        return [f"{entries:,.0f} rows a rank, which are {human_bytes(entries * row_bytes)}"]
    if collective == "outer_product_sum" and n is not None and entries is not None:
        return [f"{n:,} rows", f"{entries:,.0f} pairs a rank of {row_bytes} bytes a number"]
    facts = [] if n is None else [f"n = {n:,}"]
    return facts if n is None or entries is None else [*facts, f"{entries:,.0f} entries a rank ({entries / n:.3g})"]


def phase_summary(phase: Phase) -> str:
    """Return a phase's name with its algorithm, chunks and degrees.

    Examples
    --------
    >>> from skyphos.simulate import Network, simulate
    >>> from skyphos.simulate.summary import phase_summary
    >>> phase_summary(simulate(Network(4), "broadcast", n=10**6, algorithm="chain", chunk_bytes=65536).phases[0])
    'broadcast by chain, chunks of 65.5 kB'
    """
    details = f" by {phase.algorithm}" if phase.name in USED_BY["algorithm"] else ""
    details += f", chunks of {human_bytes(phase.chunk_bytes)}" if phase.chunk_bytes else ""
    details += f", degrees {'x'.join(map(str, phase.degrees))}" if phase.degrees else ""
    return phase.name + details
