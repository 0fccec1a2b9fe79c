"""The figures as a table in the terminal."""

from __future__ import annotations

from statistics import median

from rich.console import Console
from rich.table import Table

from .run import Result
from .summary import Estimate, Limits, Line, fairness, headline, overlap_lines

KINDS = {
    "ours": "ours",
    "partial": "ours, own indices only",
    "dense": "dense",
    "sparse": "sparse",
    "probe": "plain TCP ring, 16 MB",
    "computing": "no communication",
    "together": "ours, while computing",
}


def show(result: Result, found: list[Line], bound: Limits, console: Console) -> None:
    """Print the results with their limits and conditions."""
    scenario = result.scenario
    console.print(f"\n[bold]{scenario.title}[/bold]")
    console.print(describe(result))
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("contender")
    table.add_column("kind")
    for heading in ("median ms", "95 % interval", "p10", "p90", "/ floor", "/ dense bound", "iterations"):
        table.add_column(heading, justify="right")
    for line in found:
        table.add_row(
            line.name,
            KINDS[line.kind],
            _ms(line.median.value),
            _interval(line.median),
            _ms(line.p10.value),
            _ms(line.p90.value),
            _ratio(line, bound.floor_s),
            _ratio(line, bound.dense_s),
            f"{line.iterations} x {line.placements}",
            style="bold" if line.kind == "ours" else None,
        )
    console.print(table)
    for text in _limits(result, found, bound):
        console.print(text)
    for reason in dict.fromkeys(result.absent.values()):
        names = ", ".join(name for name, why in result.absent.items() if why == reason)
        console.print(f"not run: {names}: {reason}", markup=False, style="dim")
    for name, reason in result.failed.items():
        console.print(f"FAILED: {name}: {reason}", markup=False, style="red")
    verdict = fairness(scenario, found, bound)
    if verdict:
        console.print(verdict)
    for text in [*headline(found, bound), *overlap_lines(found)]:
        console.print(text, style="bold")


def describe(result: Result) -> str:
    """The scenario as one line."""
    scenario = result.scenario
    link = f"{scenario.rate} links" if scenario.shaped else "loopback"
    least, largest = min(result.nnz), max(result.nnz)
    each = f"{largest:,}" if least == largest else f"{least:,} to {largest:,}"
    return (
        f"P = {scenario.hosts}, {link}, n = {scenario.n:,}, {scenario.dtype}, {scenario.op}; "
        f"{each} entries a rank ({100 * largest / scenario.n:.3g} %), {result.union:,} in the result"
    )


def _limits(result: Result, found: list[Line], bound: Limits) -> list[str]:
    if bound.dense_s is None or bound.floor_s is None or bound.plain_tcp_s is None:
        return ["no link bound: nothing is shaped here"]
    best = result.least_bytes[bound.floor_by]
    texts = [
        f"dense bound {_ms(bound.dense_s)} ms (2 (P - 1)/P of the vector); floor {_ms(bound.floor_s)} ms "
        f"({best / 1e6:.3f} MB a rank by {bound.floor_by}); framing included",
        "least time for the bytes of each schedule: "
        + ", ".join(f"{name} {_ms(s)} ms" for name, s in sorted(bound.schedules_s.items(), key=lambda item: item[1])),
    ]
    for line in found:
        if line.kind == "probe":
            texts.append(f"plain TCP took {line.median.value / bound.plain_tcp_s:.3f} times its link bound")
    if result.skews:
        texts.append(f"ranks began within {_ms(median(result.skews))} ms of each other (median)")
    return texts


def _ms(seconds: float) -> str:
    """Milliseconds with four digits."""
    ms = 1e3 * seconds
    return f"{ms:,.0f}" if ms >= 1000 else f"{ms:#.4g}"


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{_ms(estimate.low)} to {_ms(estimate.high)}"


def _ratio(line: Line, bound: float | None) -> str:
    """Ratio to a bound; empty for contenders that do not make an allreduce."""
    return "" if bound is None or line.kind in ("probe", "partial", "computing") else f"{line.median.value / bound:.2f}"
