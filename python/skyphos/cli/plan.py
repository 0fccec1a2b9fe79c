"""``skyphos plan``: predict the cost of a collective, and what would be chosen."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import click

from ..errors import BadInput
from ..files.whole_file import replacing
from ..planning.forecast import Assumptions, Collective, Forecast, forecast, from_profile, layers
from ..planning.planner import Prediction, Profile
from ..text.plain_text import encoded
from ..text.quantities import human_bytes, human_ranks, human_seconds
from . import shared_options
from .output import PAGES, check_writable
from .units import RATE, VOLUME, Size, entries_of, parse_rate

__all__ = ["command"]

#: Rate of hosts with links of their own, unless an option sets it.
_DEFAULT_RATE = "10Gbit"
_HOSTS, _ONE_HOST = Profile.network(1e9), Profile.one_host(1)


@click.command("plan")
@click.option("--ranks", type=click.IntRange(min=1, max=1 << 16), required=True, help="Ranks in the group.")
@click.option("--size", "n", type=Size(), required=True, help="Size of the index space, n, such as 60e6.")
@click.option(
    "--collective",
    type=click.Choice(["allreduce", "reduce_scatter", "reduce"]),
    default="allreduce",
    show_default=True,
    help="allreduce and reduce_scatter: indices may change in each call; reduce: by a plan, configured once.",
)
@shared_options.density
@click.option("--entries", type=Size(), default=None, help="Instead of --density: entries of a rank.")
@shared_options.alpha
@shared_options.row_bytes
@click.option(
    "--rate", type=RATE, default=None, help=f"Rate of a host's link in each direction.  [default: {_DEFAULT_RATE}]"
)
@shared_options.seconds(
    "--latency", "Latency of a small message.", f"{_HOSTS.latency_s:g}, with --one-host {_ONE_HOST.latency_s:g}"
)
@shared_options.seconds("--message", "Time for which each message occupies a link.", f"{_HOSTS.message_s:g}")
@click.option("--one-host", is_flag=True, help="All ranks on this host, through loopback; instead of --rate.")
@click.option(
    "--profile",
    "profile_path",
    type=click.Path(dir_okay=False),
    help="Profile of `skyphos probe`, instead of the four options above. Only a file that is named here is read.",
)
@click.option(
    "--min-packet",
    type=VOLUME,
    default="2MB",
    show_default=True,
    help="Minimum efficient packet, for Kylix's rule.",
)
@click.option("--all", "everything", is_flag=True, help="Show all degrees that were considered.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@shared_options.chart
def command(
    *,
    ranks: int,
    n: int,
    collective: Collective,
    density: float | None,
    entries: int | None,
    alpha: float | None,
    row_bytes: int,
    rate: float | None,
    latency: float | None,
    message: float | None,
    one_host: bool,
    profile_path: str | None,
    min_packet: float,
    everything: bool,
    as_json: bool,
    chart: str | None,
) -> None:
    """Predict what an allreduce of sparse vectors costs by each algorithm, or a reduce-scatter or a plan by each choice
    of degrees.

    Predictions assume hosts with links of 10Gbit each, or the machines and network that options describe, or the
    profile that `skyphos probe` wrote (--profile).

    \b
    skyphos plan --ranks 64 --size 60e6 --density 0.21 --alpha 1.1
    skyphos plan --ranks 8 --size 16777216 --entries 131072 --rate 250Mbit
    skyphos plan --collective reduce --ranks 64 --size 60e6 --density 0.21 --alpha 1.1 --message 1e-3
    """
    count = entries_of(n, density, entries)
    if chart is not None:
        check_writable(chart, PAGES)
    found = forecast(
        collective,
        ranks,
        n,
        count,
        assumed=_assumed(ranks, profile_path, rate, one_host, {"latency": latency, "message": message}),
        alpha=alpha,
        row_bytes=row_bytes,
        min_packet_bytes=min_packet,
    )
    for note in found.assumed.notes:
        click.echo(f"note: {note}", err=True)
    if chart is not None:
        from ..pages.plan import render

        with replacing(chart) as file:
            file.write(encoded(render(found)))
    if as_json:
        click.echo(json.dumps(found.record(), indent=2))
    else:
        _show(found, everything)


def _assumed(
    ranks: int, path: str | None, rate: float | None, one_host: bool, seconds: dict[str, float | None]
) -> Assumptions:
    """Machines and network from the options; refuse options that contradict each other."""
    given = {name: value for name, value in seconds.items() if value is not None}
    named = [*(["--rate"] if rate is not None else []), *(["--one-host"] if one_host else [])]
    if path is not None:
        if named or given:
            too_much = ", ".join([*named, *(f"--{name}" for name in given)])
            raise BadInput(f"--profile sets machines and network: leave out {too_much}, or the profile")
        return from_profile(path, ranks)
    if len(named) == 2:
        raise BadInput("--rate is for links between hosts, and --one-host has none: give one of them")
    if one_host:
        assumed = Assumptions(Profile.one_host(ranks), "defaults of ranks on this host")
    else:
        link_rate = parse_rate(_DEFAULT_RATE) if rate is None else rate
        assumed = Assumptions(_named("rate", lambda: Profile.network(link_rate)), "defaults of hosts on a network")
    profile = assumed.profile
    for name, value in given.items():
        changed = {f"{name}_s": value}
        profile = _named(name, partial(replace, profile, **changed))
    return replace(assumed, profile=profile)


def _named(option: str, make: Callable[[], Profile]) -> Profile:
    """A profile; an error about it names the option."""
    try:
        return make()
    except BadInput as error:
        raise BadInput(f"--{option}: {error}") from None


def _show(found: Forecast, everything: bool) -> None:
    """Print the whole forecast."""
    click.echo(
        f"{human_ranks(found.ranks)}, n = {found.n:,}, "
        f"{found.entries:,.0f} entries a rank ({found.entries / found.n:.3g}), "
        f"{found.result_entries:,.0f} in the result ({found.result_entries / found.n:.3g})"
    )
    click.echo(f"Assumed: {found.assumed.source}; {found.assumed.text()}.")
    _table(found, everything)
    if found.best_butterfly is not None:
        _layers(found.best_butterfly)
    if found.ranks > 1:
        degrees = "x".join(map(str, found.kylix_degrees))
        click.echo(
            f"Kylix's rule (messages of at least {human_bytes(found.min_packet_bytes)}, or all ranks that are left in "
            f"one layer): degrees {degrees}."
        )
    if found.configure_s is not None:
        click.echo(f"Configured once, which takes {human_seconds(found.configure_s)}.")
    if found.survey is not None:
        click.echo(
            f"Before a first call ranks survey each other's entries: {human_seconds(found.survey.seconds)}, "
            f"{human_bytes(found.survey.sent_bytes)} (expected_nnz= saves that)."
        )
    if found.collective == "allreduce" and found.result_entries > 0:
        times = 2 * found.n / found.result_entries
        click.echo(
            f"A sparse allreduce whose result must be dense is at most {times:,.3g} times faster than a dense one "
            "(SparCML, Lemma 5.2)."
        )


def _table(found: Forecast, everything: bool) -> None:
    """Print a line for each prediction."""
    rows_shown = list(found.found) if everything else _short(found)
    click.echo(f"{'':2}{'algorithm':<28} {'time':>10} {'sent':>10} {'messages':>9} {'rounds':>7}")
    for p in rows_shown:
        mark = "* " if p == found.chosen else "  "
        click.echo(
            f"{mark}{p.name:<28} {human_seconds(p.seconds):>10} {human_bytes(p.sent_bytes):>10} "
            f"{p.messages:>9,.0f} {p.rounds:>7,.0f}"
        )
    if left := len(found.found) - len(rows_shown):
        click.echo(f"  … and {left:,} slower butterfl{'y' if left == 1 else 'ies'} (--all)")
    click.echo(f"* {found.why()}")


def _short(found: Forecast) -> list[Prediction]:
    """The three best butterflies and all other algorithms; for a plan, which is always a butterfly, the eight best."""
    butterflies = [p for p in found.found if p.algorithm == "butterfly"]
    shown = 3 if len(butterflies) < len(found.found) else 8
    return [p for p in found.found if p.algorithm != "butterfly" or p in butterflies[:shown]]


def _layers(best: Prediction) -> None:
    """Print the best prediction by layer, down and up."""
    click.echo(f"{best.name}, by layer:")
    click.echo(f"  {'':<16} {'time':>10} {'sent':>10} {'messages':>9} {'each':>10}")
    for direction, number, degree, stage in layers(best):
        name, each = f"{direction} {number}, degree {degree}", stage.sent_bytes / max(1.0, stage.messages)
        click.echo(
            f"  {name:<16} {human_seconds(stage.seconds):>10} {human_bytes(stage.sent_bytes):>10} "
            f"{stage.messages:>9,.0f} {human_bytes(each):>10}"
        )
