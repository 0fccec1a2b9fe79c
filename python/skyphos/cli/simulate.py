"""``skyphos simulate``: a collective on a cluster that is not there."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from ..errors import BadInput
from ..page import human_bytes, human_seconds
from ..planner import Profile
from ..simulate import Network, Phase, Simulation, collectives, simulate
from .output import check_writable, replacing
from .units import Degrees, Size, entries_of, parse_rate

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["command"]


@click.command("simulate")
@click.option("--ranks", type=click.IntRange(1, 4096), default=None, help="Ranks in the group.")
@click.option("--collective", default="allreduce", show_default=True, help="Which one; --list names them.")
@click.option("--list", "listed", is_flag=True, help="Name the collectives.")
@click.option("--size", "n", type=Size(), default=None, help="Size of the index space, n; 60e6 is taken.")
@click.option("--density", type=float, default=None, help="Share of the indices that a rank has.")
@click.option("--entries", type=Size(), default=None, help="Or how many it has.")
@click.option("--alpha", type=float, default=None, help="Exponent of a power law. Without: indices drawn evenly.")
@click.option("--row-bytes", type=click.IntRange(min=1), default=4, show_default=True, help="Of an index's values.")
@click.option("--algorithm", default="auto", show_default=True, help="Of an allreduce.")
@click.option("--degrees", type=Degrees(), default=None, help="Layers of a butterfly, as 8x4x2; without, chosen.")
@click.option("--sized", is_flag=True, help="Lengths in place of data: configure and reduce of any size.")
@click.option("--repeats", type=click.IntRange(min=1), default=1, show_default=True, help="How often it runs.")
@click.option("--network", "described", type=click.Path(dir_okay=False), help="A JSON file that describes it.")
@click.option("--profile", "profile_path", type=click.Path(dir_okay=False), help="What a probe measured.")
@click.option("--rate", default=None, help="What a host's link carries each way.  [default: 10Gbit]")
@click.option("--latency", type=float, default=None, metavar="SECONDS", help="Of a small message.  [default: 50e-6]")
@click.option("--message", type=float, default=None, metavar="SECONDS", help="For which each message takes a link.")
@click.option("--incast", type=float, default=None, help="Slower by so much for each further sender.")
@click.option("--ranks-per-host", type=click.IntRange(min=1), default=None)
@click.option("--dealt", is_flag=True, default=None, help="Ranks are dealt out to hosts in turn.")
@click.option("--cores", type=float, default=None, help="Of a host, shared by its ranks.")
@click.option("--hosts-per-rack", type=click.IntRange(min=1), default=None)
@click.option("--oversubscribed", type=float, default=None, metavar="TIMES", help="By what a rack's uplink is.")
@click.option("--jitter", default=None, metavar="DISTRIBUTION", help='Lateness of messages: "exponential(1e-4)".')
@click.option(
    "--stragglers", default=None, metavar="SHARE:DISTRIBUTION", help='Slow ranks: "0.05:uniform(2, 4)" times as slow.'
)
@click.option("--skew", default=None, metavar="DISTRIBUTION", help="By what ranks enter late, in seconds.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--chart", type=click.Path(dir_okay=False), default=None, metavar="FILE.html", help="Draw a page.")
@click.option("--trace", type=click.Path(dir_okay=False), default=None, metavar="FILE.json", help="For Perfetto.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    *,
    ranks: int | None,
    collective: str,
    listed: bool,
    n: int | None,
    density: float | None,
    entries: int | None,
    alpha: float | None,
    row_bytes: int,
    algorithm: str,
    degrees: tuple[int, ...] | None,
    sized: bool,
    repeats: int,
    described: str | None,
    seed: int,
    chart: str | None,
    trace: str | None,
    as_json: bool,
    **network_options: str | float | int | None,
) -> None:
    """Run a collective on a simulated cluster: the same code, under a virtual clock.

    \b
    skyphos simulate --ranks 64 --collective reduce --size 60e6 --density 0.21 --alpha 1.1 --sized
    skyphos simulate --ranks 256 --size 1e6 --entries 1e4 --jitter "exponential(1e-4)" --chart sim.html
    """
    if listed:
        click.echo("\n".join(collectives()))
        return
    if n is None:
        raise BadInput("say how large the index space is: --size")
    count = 0.0 if collective in ("allreduce_dense", "barrier") else entries_of(n, density, entries)
    network = _network(described, ranks, network_options)
    for path, ending in ((chart, ".html"), (trace, ".json")):
        if path is not None:
            check_writable(path, (ending,))
    found = _run(
        lambda told: simulate(
            network,
            collective,
            n=n,
            entries=count,
            alpha=alpha,
            row_bytes=row_bytes,
            algorithm=algorithm,
            degrees=degrees,
            sized=sized,
            repeats=repeats,
            seed=seed,
            trace=trace is not None,
            progress=told,
        )
    )
    if chart is not None:
        from ..simulate_page import render

        with replacing(chart) as file:
            file.write(render(network, n, count, found).encode())
    if trace is not None:
        with replacing(trace) as file:
            file.write(found.phases[-1].trace.encode())
    if as_json:
        click.echo(json.dumps([_record(phase) for phase in found.phases], indent=2))
        return
    click.echo(f"{network.ranks} ranks, n = {n:,}, {count:,.0f} entries a rank ({count / n:.3g}), seed {seed}")
    for phase in found.phases:
        _show(phase)


def _network(described: str | None, ranks: int | None, options: dict[str, str | float | int | None]) -> Network:
    """The network of a file, and of options, which count more."""
    given = {name: value for name, value in options.items() if value is not None}
    if described is not None:
        network = Network.load(described)
        network = network if ranks is None else replace(network, ranks=ranks)
    elif ranks is None:
        raise BadInput("say how many ranks: --ranks, or a --network that does")
    else:
        network = Network(ranks)
    if (path := given.pop("profile_path", None)) is not None:
        machine = Profile.load(str(path))
        network = replace(
            network,
            machine=machine,
            rate_out=machine.rate,
            rate_in=machine.rate,
            latency_s=machine.latency_s,
            message_s=machine.message_s,
            incast=machine.incast,
        )
    if (rate := given.pop("rate", None)) is not None:
        network = replace(network, rate_out=parse_rate(str(rate)), rate_in=parse_rate(str(rate)))
    if (times := given.pop("oversubscribed", None)) is not None:
        if float(times) <= 0:
            raise BadInput(f"--oversubscribed is a number above 0, not {times}")
        network = replace(network, uplink_rate=network.rate_out / float(times))
    if (stragglers := given.pop("stragglers", None)) is not None:
        share, _, slowness = str(stragglers).partition(":")
        try:
            network = replace(network, straggler_share=float(share), straggler_slowness=slowness)
        except ValueError:
            wanted = 'write a share and a distribution, "0.05:uniform(2, 4)"'
            raise BadInput(f"--stragglers {stragglers!r}: {wanted}") from None
    names = {"latency": "latency_s", "message": "message_s", "skew": "start"}
    return replace(network, **{names.get(name, name): value for name, value in given.items()})  # type: ignore[arg-type]


def _run(work: Callable[[Callable[[str, int, float], None] | None], Simulation]) -> Simulation:
    """Runs it, with a line that says how far it is where there is a terminal."""
    if not sys.stderr.isatty():
        return work(None)
    from rich.console import Console

    with Console(stderr=True).status("simulating") as status:
        return work(
            lambda phase, ranks, at: status.update(f"{phase}: {human_seconds(at)} there, {ranks:,} ranks are done")
        )


def _show(phase: Phase) -> None:
    layers = f" by {phase.algorithm}" if phase.name.startswith("allreduce") else ""
    layers += f", degrees {'x'.join(map(str, phase.degrees))}" if phase.degrees else ""
    first = min(phase.seconds)
    click.echo(f"{phase.name}{layers}: {human_seconds(phase.last_s)} (the first rank after {human_seconds(first)})")
    click.echo(f"  {'':<12} {'from':>10} {'to':>10} {'messages':>10} {'each':>10} {'sent by a rank':>15}")
    ranks = len(phase.seconds)
    for r in phase.rounds:
        each = r.sent_bytes / max(1, r.messages)
        click.echo(
            f"  {r.name:<12} {human_seconds(r.first_s):>10} {human_seconds(r.last_s):>10} {r.messages:>10,} "
            f"{human_bytes(each):>10} {human_bytes(r.sent_bytes / ranks):>15}"
        )


def _record(phase: Phase) -> dict[str, object]:
    return {
        "name": phase.name,
        "algorithm": phase.algorithm,
        "degrees": list(phase.degrees),
        "seconds": list(phase.seconds),
        "rounds": [asdict(r) for r in phase.rounds],
    }
