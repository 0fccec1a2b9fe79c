"""``skyphos simulate``: run a collective on a simulated cluster."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from ..errors import BadInput
from ..files.whole_file import replacing
from ..planning.planner import Profile
from ..simulate.run import USED_BY, Network, Phase, Simulation, collectives, simulate
from ..simulate.summary import data_summary, phase_summary
from ..text.plain_text import encoded
from ..text.quantities import human_bytes, human_ranks, human_seconds
from . import shared_options
from .output import PAGES, check_writable
from .units import RATE, Degrees, Size, entries_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["command"]

#: Options, and the collectives that use them; others refuse them. A density is a share of the index space.
_USED_BY = USED_BY | {"density": tuple(name for name in USED_BY["entries"] if name in USED_BY["n"])}

_STRAGGLERS = 'write SHARE:DISTRIBUTION, such as "0.05:uniform(2, 4)"'


@click.command("simulate")
@click.option("--ranks", type=click.IntRange(1, 4096), default=None, help="Ranks in the group.")
@click.option("--collective", default="allreduce", show_default=True, help="The collective; --list lists them.")
@click.option("--list", "listed", is_flag=True, help="List the collectives.")
@click.option(
    "--size", "n", type=Size(), default=None, help="Size of the index space, or rows of a message, such as 60e6."
)
@click.option("--cols", type=Size(), default=None, help="Columns of outer_product_sum. Default: as many as rows.")
@shared_options.density
@click.option(
    "--entries",
    type=Size(),
    default=None,
    help="Instead of --density: entries of a rank. For topk_allreduce k, for shuffle rows, for outer_product_sum "
    "pairs.",
)
@shared_options.alpha
@shared_options.row_bytes
@click.option(
    "--algorithm",
    default="auto",
    show_default=True,
    help="Algorithm of allreduce, allreduce_dense, broadcast or outer_product_sum.",
)
@click.option(
    "--chunk-bytes", type=click.IntRange(min=1), default=None, help="Bytes of a broadcast's chunk. Default: chosen."
)
@click.option(
    "--degrees",
    type=Degrees(),
    default=None,
    help="Degrees of a butterfly, as 8x4x2. Default: chosen. For an allreduce only with --algorithm butterfly.",
)
@click.option(
    "--sized", is_flag=True, help="Lengths in place of data: configure, reduce, broadcast, shuffle, outer_product_sum."
)
@click.option("--repeats", type=click.IntRange(min=1), default=1, show_default=True, help="Number of runs.")
@click.option("--network", "described", type=click.Path(dir_okay=False), help="A JSON file that describes the network.")
@click.option(
    "--profile",
    "profile_path",
    type=click.Path(dir_okay=False),
    help="A probe's profile: rate, latency, cost of a message, incast, speed of the machine; not its share of a core "
    "(--cores), nor the fixed time of a call. Options take precedence.",
)
@click.option("--rate", type=RATE, default=None, help="Rate of a host's link in each direction.  [default: 10Gbit]")
@shared_options.seconds("--latency", "Latency of a small message.", f"{Network.latency_s:g}")
@shared_options.seconds("--message", "Time for which each message occupies a link.", f"{Network.message_s:g}")
@click.option("--mtu", type=click.IntRange(min=1), default=None, help="Bytes of the largest packet.  [default: 1500]")
@click.option("--incast", type=float, default=None, help="Slowdown for each further rank that sends to the same one.")
@click.option(
    "--ranks-per-host", type=click.IntRange(min=1), default=None, help="Ranks that share a link.  [default: 1]"
)
@click.option("--dealt", is_flag=True, default=None, help="Place ranks on hosts round-robin.")
@click.option("--scattered", is_flag=True, default=None, help="Place ranks on hosts at random, by the seed.")
@click.option(
    "--topology-unknown",
    is_flag=True,
    default=None,
    help="Hide hosts and racks from the ranks, which then use rank order.",
)
@click.option("--cores", type=float, default=None, help="Cores of a host, shared by its ranks.  [default: 1]")
@click.option("--hosts-per-rack", type=click.IntRange(min=1), default=None, help="Hosts in a rack. Default: one rack.")
@click.option(
    "--oversubscribed",
    type=float,
    default=None,
    metavar="TIMES",
    help="Factor by which racks' uplinks are oversubscribed; needs --hosts-per-rack.",
)
@click.option("--jitter", default=None, metavar="DISTRIBUTION", help='Lateness of messages: "exponential(1e-4)".')
@click.option(
    "--stragglers", default=None, metavar="SHARE:DISTRIBUTION", help='Slow ranks: "0.05:uniform(2, 4)" times as slow.'
)
@click.option("--skew", default=None, metavar="DISTRIBUTION", help="Seconds by which ranks enter late.")
@click.option("--seed", type=int, default=1, show_default=True)
@shared_options.chart
@click.option("--trace", type=click.Path(dir_okay=False), default=None, metavar="FILE.json", help="Trace for Perfetto.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    *,
    ranks: int | None,
    collective: str,
    listed: bool,
    n: int | None,
    cols: int | None,
    density: float | None,
    entries: int | None,
    alpha: float | None,
    row_bytes: int,
    algorithm: str,
    chunk_bytes: int | None,
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
    skyphos simulate --ranks 150 --collective broadcast --size 1e9 --row-bytes 1 --sized --rate 1Gbit
    skyphos simulate --ranks 256 --size 1e6 --entries 1e4 --jitter "exponential(1e-4)" --chart sim.html
    """
    if listed:
        click.echo("\n".join(collectives()))
        return
    if collective not in collectives():
        raise BadInput(f"there is no collective {collective!r} to simulate: --list names them")
    _refuse_ignored(click.get_current_context(), collective, algorithm)
    if n is None and collective in USED_BY["n"]:
        raise BadInput("say how large the index space is: --size")
    count = None
    if collective in USED_BY["entries"]:
        if n is None and entries is None:
            raise BadInput("say how many rows a rank has: --entries")
        count = entries_of(n or 1, density, entries)
    network = _network(described, ranks, network_options)
    for path, suffixes in ((chart, PAGES), (trace, (".json",))):
        if path is not None:
            check_writable(path, suffixes)
    found = _run(
        lambda report: simulate(
            network,
            collective,
            n=n,
            cols=cols,
            entries=count,
            alpha=alpha,
            row_bytes=row_bytes,
            algorithm=algorithm,
            chunk_bytes=chunk_bytes,
            degrees=degrees,
            sized=sized,
            repeats=repeats,
            seed=seed,
            trace=trace is not None,
            progress=report,
        )
    )
    if chart is not None:
        from ..pages.simulate import render

        with replacing(chart) as file:
            file.write(encoded(render(network, n, count, found, row_bytes=row_bytes)))
    if trace is not None:
        with replacing(trace) as file:
            file.write(encoded(found.phases[-1].trace))
    if as_json:
        click.echo(json.dumps([_record(phase) for phase in found.phases], indent=2))
        return
    facts = "".join(f"{words}, " for words in data_summary(collective, n, count, row_bytes))
    click.echo(f"{human_ranks(network.ranks)}, {facts}seed {seed}")
    for phase in found.phases:
        _show(phase)


def _refuse_ignored(ctx: click.Context, collective: str, algorithm: str) -> None:
    """Refuse options that the collective or its algorithm does not use."""
    flags = {option.name: option.opts[0] for option in ctx.command.params}
    for name, taken_by in _USED_BY.items():
        if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        if collective not in taken_by:
            raise BadInput(f"{flags[name]} means nothing to {collective}: it is for {', '.join(taken_by)}")
        if name == "degrees" and collective == "allreduce" and algorithm != "butterfly":
            others = ", ".join(other for other in taken_by if other != collective)
            raise BadInput(
                f"--degrees are a butterfly's, and an allreduce by {algorithm} need not be one: say --algorithm "
                f"butterfly (--degrees are also for {others})"
            )


def _network(described: str | None, ranks: int | None, options: dict[str, str | float | int | None]) -> Network:
    """The network from a file and from options, which take precedence."""
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
        network = replace(network, rate_out=float(rate), rate_in=float(rate))
    if (times := given.pop("oversubscribed", None)) is not None:
        if float(times) <= 0:
            raise BadInput(f"--oversubscribed is a number above 0, not {times}")
        network = replace(network, uplink_rate=network.rate_out / float(times))
    if (stragglers := given.pop("stragglers", None)) is not None:
        share, _, slowness = str(stragglers).partition(":")
        try:
            network = replace(network, straggler_share=float(share), straggler_slowness=slowness)
        except ValueError:
            raise BadInput(f"--stragglers {stragglers!r}: {_STRAGGLERS}") from None
        if not slowness.strip():
            raise BadInput(f"--stragglers {stragglers!r} does not say how slow they are: {_STRAGGLERS}")
    if given.pop("topology_unknown", False):
        network = replace(network, topology_known=False)
    names = {"latency": "latency_s", "message": "message_s", "skew": "start"}
    network = replace(network, **{names.get(name, name): value for name, value in given.items()})  # type: ignore[arg-type]
    hosts = math.ceil(network.ranks / max(1, network.ranks_per_host))
    if times is not None and not 0 < network.hosts_per_rack < hosts:
        raise BadInput(
            f"--oversubscribed is for racks' uplinks, but all {hosts} hosts are in one rack: pass --hosts-per-rack"
        )
    return network


def _run(work: Callable[[Callable[[str, int, float], None] | None], Simulation]) -> Simulation:
    """Run the simulation, with a line of progress on a terminal."""
    if not sys.stderr.isatty():
        return work(None)
    from rich.console import Console

    with Console(stderr=True).status("simulating") as status:
        return work(
            lambda phase, ranks, at: status.update(f"{phase}: simulated {human_seconds(at)}, {ranks:,} ranks are done")
        )


def _show(phase: Phase) -> None:
    first = min(phase.seconds)
    click.echo(f"{phase_summary(phase)}: {human_seconds(phase.last_s)} (the first rank after {human_seconds(first)})")
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
        "chunk_bytes": phase.chunk_bytes,
        "degrees": list(phase.degrees),
        "seconds": list(phase.seconds),
        "rounds": [asdict(r) for r in phase.rounds],
    }
