"""``skyphos plan``: what an allreduce will cost, and what would be chosen."""

from __future__ import annotations

import json
from dataclasses import replace

import click

from ..page import human_bytes, human_seconds
from ..planner import (
    Prediction,
    Profile,
    greedy_degrees,
    predict_agreement,
    predict_allreduce,
    predict_plans,
    predict_reduce_scatter,
    union_entries,
)
from .units import Size, entries_of, parse_rate

__all__ = ["command"]


@click.command("plan")
@click.option("--ranks", type=click.IntRange(min=1, max=1 << 20), required=True, help="Ranks in the group.")
@click.option("--size", "n", type=Size(), required=True, help="Size of the index space, n; 60e6 is taken.")
@click.option(
    "--collective",
    type=click.Choice(["allreduce", "reduce_scatter", "reduce"]),
    default="allreduce",
    show_default=True,
    help="The first two of changing indices; reduce: of a plan that is configured once.",
)
@click.option("--density", type=float, default=None, help="Share of the indices that a rank has.")
@click.option("--entries", type=Size(), default=None, help="Or how many it has.")
@click.option("--alpha", type=float, default=None, help="Exponent of a power law. Without: indices drawn evenly.")
@click.option(
    "--row-bytes", type=click.IntRange(min=1), default=4, show_default=True, help="Bytes of an index's values."
)
@click.option("--rate", default="10Gbit", show_default=True, help="What a host's link carries each way.")
@click.option("--latency", type=float, default=None, metavar="SECONDS", help="Of a small message.")
@click.option("--message", type=float, default=None, metavar="SECONDS", help="For which each message takes a link.")
@click.option("--one-host", is_flag=True, help="All ranks on this host, through loopback.")
@click.option("--profile", "profile_path", type=click.Path(dir_okay=False), help="A profile instead of defaults.")
@click.option(
    "--min-packet", default="2MB", show_default=True, help="Least message worth sending, for the papers' rule."
)
@click.option("--all", "everything", is_flag=True, help="Show every factorisation.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--chart", type=click.Path(dir_okay=False), default=None, metavar="FILE.html", help="Draw a page.")
def command(
    *,
    ranks: int,
    n: int,
    collective: str,
    density: float | None,
    entries: int | None,
    alpha: float | None,
    row_bytes: int,
    rate: str,
    latency: float | None,
    message: float | None,
    one_host: bool,
    profile_path: str | None,
    min_packet: str,
    everything: bool,
    as_json: bool,
    chart: str | None,
) -> None:
    """Predict what an allreduce of sparse vectors costs by each algorithm, or a reduce-scatter or a plan by each choice
    of degrees.

    \b
    skyphos plan --ranks 64 --size 60e6 --density 0.21 --alpha 1.1
    skyphos plan --ranks 8 --size 16777216 --entries 131072 --rate 250Mbit
    skyphos plan --collective reduce --ranks 64 --size 60e6 --density 0.21 --alpha 1.1 --message 1e-3
    """
    count = entries_of(n, density, entries)
    if profile_path is not None:
        profile = Profile.load(profile_path)
    else:
        profile = Profile.one_host(ranks) if one_host else Profile.network(parse_rate(rate))
    given = {name: value for name, value in (("latency_s", latency), ("message_s", message)) if value is not None}
    profile = replace(profile, **given)
    law = {"model": "uniform" if alpha is None else "power_law", "alpha": alpha or 0.0}
    configure_s = None
    if collective == "reduce":
        plans = predict_plans(ranks, n, count, profile=profile, row_bytes=row_bytes, **law)  # type: ignore[arg-type]
        configure_s = plans[0].configure_seconds
        found = [Prediction("butterfly", p.degrees, p.reduce) for p in plans]
    else:
        predict = predict_allreduce if collective == "allreduce" else predict_reduce_scatter
        found = predict(ranks, n, count, profile=profile, row_bytes=row_bytes, **law)  # type: ignore[arg-type]
    joined = union_entries([1, ranks], n, count, **law)  # type: ignore[arg-type]
    paper = greedy_degrees(
        ranks, n, count, min_packet_bytes=parse_rate(min_packet), row_bytes=row_bytes, alpha=alpha or 0.0
    )
    if chart is not None:
        from ..plan_page import render
        from .output import check_writable, replacing

        check_writable(chart, (".html",))
        with replacing(chart) as file:
            file.write(render(ranks, n, count, joined[1], found).encode())
    if as_json:
        click.echo(json.dumps([_record(p) for p in found], indent=2))
        return
    ceiling = joined[1] / n
    click.echo(
        f"{ranks} ranks, n = {n:,}, {count:,.0f} entries a rank ({count / n:.3g}), {joined[1]:,.0f} in the result "
        f"({ceiling:.3g})"
    )
    _table(found, everything)
    best = next((p for p in found if p.algorithm == "butterfly" and p.degrees != (1,)), None)
    if best is not None:
        _layers(best)
    if ranks > 1:
        click.echo(f"The papers' rule (messages of at least {min_packet}): degrees {'x'.join(map(str, paper))}.")
    if configure_s is not None:
        click.echo(f"Configured once, which takes {human_seconds(configure_s)}.")
    else:
        _asking(ranks, profile)
    if collective == "allreduce" and ceiling > 0:
        click.echo(
            f"A sparse allreduce whose result must be dense is at most {2 / ceiling:,.3g} times faster than a dense "
            "one (SparCML, Lemma 5.2)."
        )


def _table(found: list[Prediction], everything: bool) -> None:
    """A line for each prediction."""
    shown = found if everything else _short(found)
    click.echo(f"{'':2}{'algorithm':<28} {'time':>10} {'sent':>10} {'messages':>9} {'rounds':>7}")
    for k, p in enumerate(shown):
        mark = "* " if k == 0 else "  "
        click.echo(
            f"{mark}{p.name:<28} {human_seconds(p.seconds):>10} {human_bytes(p.sent_bytes):>10} "
            f"{p.messages:>9,.0f} {p.rounds:>7,.0f}"
        )
    if not everything and len(shown) < len(found):
        click.echo(f"  … and {len(found) - len(shown)} slower butterflies (--all)")


def _asking(ranks: int, profile: Profile) -> None:
    """What it takes to agree on a choice."""
    if ranks > 1:
        asking = predict_agreement(ranks, profile=profile)
        click.echo(
            f"Before a first call all ranks are asked what they hold: {human_seconds(asking.seconds)}, "
            f"{human_bytes(asking.sent_bytes)} (expected_nnz= saves that)."
        )


def _short(found: list[Prediction]) -> list[Prediction]:
    """The three best butterflies and all others; of plans, which are nothing else, the eight best."""
    butterflies = [p for p in found if p.algorithm == "butterfly"]
    most = 3 if len(butterflies) < len(found) else 8
    return [p for p in found if p.algorithm != "butterfly" or p in butterflies[:most]]


def _layers(best: Prediction) -> None:
    """By layer, down and up."""
    click.echo(f"{best.name}, by layer:")
    click.echo(f"  {'':<16} {'time':>10} {'sent':>10} {'messages':>9} {'each':>10}")
    names = [f"down {k + 1}, degree {d}" for k, d in enumerate(best.degrees)]
    if len(best.stages) > len(names):
        names += [f"up {k + 1}, degree {d}" for k, d in reversed(list(enumerate(best.degrees)))]
    for name, stage in zip(names, best.stages, strict=True):
        each = stage.sent_bytes / max(1.0, stage.messages)
        click.echo(
            f"  {name:<16} {human_seconds(stage.seconds):>10} {human_bytes(stage.sent_bytes):>10} "
            f"{stage.messages:>9,.0f} {human_bytes(each):>10}"
        )


def _record(p: Prediction) -> dict[str, object]:
    stages = [vars(stage) for stage in p.stages]
    return {
        "algorithm": p.algorithm,
        "degrees": list(p.degrees),
        "seconds": p.seconds,
        "sent_bytes": p.sent_bytes,
        "messages": p.messages,
        "rounds": p.rounds,
        "stages": stages,
    }
