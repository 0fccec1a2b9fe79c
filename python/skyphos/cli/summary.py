"""Summary of a PageRank run, gathered on rank 0: text for the terminal, and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..graph.edges import Ids, Weights
from ..graph.exchange import gather_table, move
from ..pages import pagerank as report
from .output import table

if TYPE_CHECKING:
    from .. import Comm
    from ..graph import PageRank

__all__ = ["Summary", "summarise", "to_rank_0"]

_PARTS = ("load", "configure", "compute", "wait for late peers", "transfer", "merge")


@dataclass(frozen=True)
class Summary:
    """Summary of a result.

    Attributes
    ----------
    facts : list of (str, str)
        Graph, group and settings.
    top : list of (int, float)
        Best vertices, with ids as in the file, and their ranks.
    residuals : list of float
    layers : list of Layer
        Traffic of the whole group in one iteration.
    seconds : list of dict
        One dict per rank.
    """

    facts: list[tuple[str, str]]
    top: list[tuple[int, float]]
    residuals: list[float]
    layers: list[report.Layer]
    seconds: list[dict[str, float]]

    def text(self) -> str:
        """Return the summary as tables of plain text."""
        parts = ["  ".join(f"{name} {value}" for name, value in self.facts)]
        parts.append(table(["vertex", "rank"], [[str(vertex), f"{rank:.10f}"] for vertex, rank in self.top]))
        rows = []
        for part in _PARTS:
            times = [split[part] for split in self.seconds]
            rows.append([part, f"{np.mean(times):.4f}", f"{max(times):.4f}"])
        parts.append(table(["seconds", "mean of ranks", "most"], rows))
        rows = [
            [
                f"{layer.direction} {layer.layer}",
                str(layer.degree),
                str(layer.messages),
                str(layer.sent_bytes),
                f"{layer.predicted_bytes:.0f}",
            ]
            for layer in self.layers
        ]
        parts.append(table(["layer", "degree", "messages", "bytes an iteration", "predicted"], rows))
        return "\n\n".join(parts)

    def page(self, title: str, tol: float) -> str:
        """Return the summary as an HTML report."""
        return report.render(report.Report(title, self.facts, self.residuals, tol, self.layers, self.seconds, self.top))


def summarise(
    comm: Comm, result: PageRank, load_s: float, *, top: int, base: int, facts: Sequence[tuple[str, str]]
) -> Summary:
    """Gather the summary from all ranks. Collective; the best vertices are returned on rank 0 only.

    Parameters
    ----------
    comm : Comm
        The group.
    result : PageRank
        This rank's result.
    load_s : float
        Seconds that loading took on this rank.
    top : int
        Number of vertices to show.
    base : int
        Smallest id in the file, which is added to ids.
    facts : sequence of (str, str)
        Further facts to list.
    """
    split = result.seconds
    mine = [load_s, split.configure, split.compute, split.wait, split.transfer, split.merge]
    seconds = gather_table(comm, np.array(mine))
    degrees = "x".join(map(str, result.matrix.plan.degrees))
    before = [("vertices", f"{result.count:,}")]
    after = [
        ("ranks", str(comm.size)),
        ("degrees", degrees),
        ("iterations", str(result.iterations)),
        ("residual", f"{result.residuals[-1]:.3g}"),
    ]
    return Summary(
        facts=[*before, *facts, *after],
        top=_best(comm, result, top, base),
        residuals=result.residuals,
        layers=_layers(comm, result),
        seconds=[dict(zip(_PARTS, row, strict=True)) for row in seconds.tolist()],
    )


def to_rank_0(comm: Comm, vertices: Ids, ranks: Weights) -> tuple[Ids, Weights]:
    """Move vertices and their ranks to rank 0; the others get empty arrays. Collective."""
    rows = move(comm, np.column_stack([vertices, ranks.view(np.int64)]), np.zeros(len(vertices), np.int64))
    return np.ascontiguousarray(rows[:, 0]), np.ascontiguousarray(rows[:, 1]).view(np.float64)


def _best(comm: Comm, result: PageRank, top: int, base: int) -> list[tuple[int, float]]:
    """The best vertices, on rank 0: the best of each rank's best owned vertices."""
    vertices, ranks = result.vertices[result.owned], result.ranks[result.owned]
    if len(ranks) > top:
        # Keep all that tie with the last one, so that the choice among them does not depend on the partition.
        least = np.partition(ranks, len(ranks) - top)[len(ranks) - top] if top else np.inf
        vertices, ranks = vertices[ranks >= least], ranks[ranks >= least]
    vertices, ranks = to_rank_0(comm, vertices, np.ascontiguousarray(ranks))
    order = np.lexsort([vertices, -ranks])[:top]
    return list(zip((vertices[order] + base).tolist(), ranks[order].tolist(), strict=True))


def _layers(comm: Comm, result: PageRank) -> list[report.Layer]:
    """The plan's volume, summed over ranks."""
    volume = result.matrix.plan.volume
    mine = [[v.messages, v.bytes, v.own_bytes, round(v.predicted_bytes)] for v in volume]
    totals = gather_table(comm, np.array(mine, np.int64).ravel()).sum(axis=0).reshape(len(volume), 4)
    return [
        report.Layer(v.layer, v.degree, v.direction, messages, sent, kept, predicted)
        for v, (messages, sent, kept, predicted) in zip(volume, totals.tolist(), strict=True)
    ]
