"""The page of ``skyphos plan``: predicted times, and the layers of the best butterfly."""

from __future__ import annotations

from markupsafe import Markup

from ..planning.forecast import Forecast, layers
from ..planning.planner import Prediction
from ..text.quantities import human_bytes, human_seconds
from .chart import Chart
from .template import fill

__all__ = ["render"]

#: Rows of the chart of times. Bars end at this multiple of the fastest time, else fast ones would be too short to
#: compare.
_MAX_ROWS, _LONGEST_BAR = 16, 4.0

#: By collective: its name in the page's title, and what each bar stands for.
_TITLES = {
    "allreduce": ("an allreduce", "Each algorithm"),
    "reduce_scatter": ("a reduce-scatter", "Each choice of degrees"),
    "reduce": ("a configured reduction", "Each choice of degrees, once it is configured"),
}


def render(forecast: Forecast) -> str:
    """Return the page.

    Examples
    --------
    >>> from skyphos.planning.forecast import Assumptions, forecast
    >>> from skyphos.pages.plan import render
    >>> from skyphos.planning import Profile
    >>> assumed = Assumptions(Profile.network(1e8), "defaults")
    >>> page = render(forecast("allreduce", 8, 1000, 10.0, assumed=assumed))
    >>> page.startswith("<!doctype html>") and "http://" not in page
    True
    """
    title, lead = _TITLES[forecast.collective]
    best = forecast.best_butterfly
    return fill(
        "plan.html",
        title=title,
        lead=lead,
        facts=_facts(forecast),
        assumptions=forecast.assumed.sentences(),
        times=_times(forecast),
        why=forecast.why(),
        butterfly=None if best is None else best.name,
        layers=None if best is None else _layers(best),
    )


def _facts(forecast: Forecast) -> list[tuple[str, str]]:
    n, fastest = forecast.n, forecast.found[0]
    facts = [
        ("ranks", f"{forecast.ranks:,}"),
        ("n", f"{n:,}"),
        ("entries a rank", f"{forecast.entries:,.0f} ({forecast.entries / n:.3g})"),
        ("entries of the result", f"{forecast.result_entries:,.0f} ({forecast.result_entries / n:.3g})"),
        ("fastest", f"{fastest.name}, {human_seconds(fastest.seconds)}"),
    ]
    if forecast.chosen != fastest:
        facts.append(("runs by default", f"{forecast.chosen.name}, {human_seconds(forecast.chosen.seconds)}"))
    if forecast.configure_s is not None:
        facts.append(("configured once, in", human_seconds(forecast.configure_s)))
    if forecast.survey is not None:
        facts.append(("survey of the ranks, once", human_seconds(forecast.survey.seconds)))
    if forecast.ranks > 1:
        degrees = "x".join(map(str, forecast.kylix_degrees))
        packet = human_bytes(forecast.min_packet_bytes)
        facts.append((f"degrees by Kylix's rule, messages of at least {packet}", degrees))
    return facts


def _times(forecast: Forecast) -> Markup:
    """A bar for each algorithm: its predicted time, and the share of the processor."""
    found = forecast.found
    # After the fastest rows, list only other algorithms, no slow butterflies.
    rows = [*found[:_MAX_ROWS], *(p for p in found[_MAX_ROWS:] if p.algorithm != "butterfly")]
    longest = max(1e-12, min(rows[-1].seconds, _LONGEST_BAR * rows[0].seconds))
    left, right, height = 250.0, 690.0, 20.0
    chart, y = Chart("Predicted time of each algorithm"), 4.0
    for p in rows:
        width = (right - left) * min(1.0, p.seconds / longest)
        computing = width * min(1.0, sum(stage.compute_s for stage in p.stages) / max(p.seconds, 1e-12))
        chart.text(0, y + 15, "*" if p == forecast.chosen else "")
        chart.text(14, y + 15, p.name)
        chart.bar(left, y, width, height, "pale")
        chart.bar(left, y, computing, height, "clay")
        if p.seconds > longest:
            chart.text(right + 4, y + 15, "▸", kind="note")
        chart.text(800, y + 15, human_seconds(p.seconds), "end")
        chart.text(900, y + 15, human_bytes(p.sent_bytes), "end", "note")
        y += height + 7
    return chart.svg(y)


def _layers(best: Prediction) -> Markup:
    """Bytes by layer, mirrored about an axis: the cup that *Kylix* is named for."""
    rows = layers(best)
    largest = max(1e-12, *(stage.sent_bytes for *_, stage in rows))
    axis, half, height = 480.0, 260.0, 34.0
    chart, y = Chart("Bytes of the best butterfly by layer"), 8.0
    for direction, number, degree, stage in rows:
        width = half * stage.sent_bytes / largest
        each = human_bytes(stage.sent_bytes / max(1.0, stage.messages))
        messages = f"{stage.messages:,.0f} message{'' if round(stage.messages) == 1 else 's'}"
        chart.bar(axis - half, y, 2 * half, height, "cup")
        chart.bar(axis - width, y, 2 * width, height, "clay")
        chart.text(0, y + 22, f"{'▼' if direction == 'down' else '▲'} layer {number}")
        chart.text(110, y + 22, f"degree {degree}", kind="note")
        chart.text(900, y + 15, f"{human_bytes(stage.sent_bytes)}, {human_seconds(stage.seconds)}", "end")
        chart.text(900, y + 31, f"{messages} of {each}", "end", "note")
        y += height + 10
    return chart.svg(y)
