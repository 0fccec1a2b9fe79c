"""``skyphos pagerank``: rank the vertices of a graph file."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ..collectives.agreement import reduce_number, together
from ..errors import BadInput, SkyphosError
from ..launch.bootstrap import discover
from ..launch.local import cores
from ..launch.subcommand import launcher_of_group, start_group
from ..text.plain_text import encoded
from . import shared_options

if TYPE_CHECKING:
    from .. import Checkpoint, Comm
    from ..graph import PageRank
    from .summary import Summary

__all__ = ["command"]


@dataclass(frozen=True)
class Settings:
    """Settings from the command line."""

    graph: str
    partition: str
    degrees: str | None
    damping: float
    tol: float
    max_iterations: int
    top: int
    out: str | None
    report: str | None
    undirected: bool
    weights: bool
    columns: str | None
    seed: int
    checkpoint: str | None
    checkpoint_every: int

    def arguments(self) -> list[str]:
        """The settings as command-line arguments, for the ranks of a group."""
        given = ["--partition", self.partition, "--damping", repr(self.damping), "--tol", repr(self.tol)]
        given += ["--max-iterations", str(self.max_iterations), "--top", str(self.top), "--seed", str(self.seed)]
        given += ["--checkpoint-every", str(self.checkpoint_every)]
        named = [("--degrees", self.degrees), ("--out", self.out), ("--report", self.report)]
        for name, value in (*named, ("--checkpoint", self.checkpoint), ("--columns", self.columns)):
            given += [] if value is None else [name, value]
        given += ["--undirected"] if self.undirected else []
        given += [] if self.weights else ["--unweighted"]
        return [*given, "--", self.graph]

    def parsed_degrees(self) -> list[int] | None:
        """The degrees as numbers; None if they were not given."""
        if self.degrees is None:
            return None
        if not re.fullmatch(r"[1-9]\d*([x,][1-9]\d*)*", self.degrees):
            raise BadInput(f"--degrees must look like 4x2, not {self.degrees!r}")
        return [int(degree) for degree in re.split("[x,]", self.degrees)]

    def facts(self) -> list[tuple[str, str]]:
        """The settings that a report lists, as names and values."""
        return [("partition", self.partition), ("damping", f"{self.damping:g}"), ("tolerance", f"{self.tol:g}")]


@click.command("pagerank")
@click.argument("graph")
@shared_options.processes("Local processes. Default: one for each core.")
@click.option(
    "--partition",
    type=click.Choice(["random", "greedy", "row"]),
    default="random",
    show_default=True,
    help="How edges are distributed over ranks.",
)
@click.option(
    "--degrees", metavar="AxB", help="Degrees of the butterfly; their product is the number of ranks. Default: chosen."
)
@click.option("--damping", type=float, default=0.85, show_default=True, help="Chance of following an edge.")
@click.option(
    "--tol",
    type=float,
    default=1e-8,
    show_default=True,
    help="Stop when the sum of the changes of all vertices is below this.",
)
@click.option("--max-iterations", type=int, default=100, show_default=True, help="Stop after this many in any case.")
@click.option("--top", type=click.IntRange(min=0), default=20, show_default=True, help="Vertices to show.")
@click.option("--out", metavar="FILE", help="Write all vertices: .csv, .npy or .parquet.")
@click.option("--report", metavar="FILE", help="Write a report: .html.")
@click.option(
    "--undirected", is_flag=True, help="Edges go both ways. The file may list each once, or in both directions."
)
@click.option("--unweighted", is_flag=True, help="Ignore a third column, or a matrix's values.")
@click.option(
    "--columns",
    metavar="source=A,target=B,weight=C",
    help="Columns by role: names in the first line, or numbers from 1. Default: found by well-known names.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random partition.")
@click.option("--checkpoint", metavar="FOLDER", help="Save iterations there, and resume after the last one saved.")
@click.option(
    "--checkpoint-every",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Iterations between two checkpoints.",
)
def command(*, n: int | None, unweighted: bool, **options: object) -> None:
    """Rank the vertices of GRAPH with PageRank.

    GRAPH is a file with an edge a line (SNAP, CSV), MatrixMarket (.mtx) or SciPy (.npz); text may be
    compressed (.gz, .bz2, .xz, .zst). `-` is stdin. Vertices are integers from 0. If an edge is listed more than once,
    its last weight counts, as in a networkx.DiGraph. By itself the command starts its own local processes; under
    `skyphos run`, torchrun, srun or mpiexec it joins theirs.

    \b
    skyphos pagerank -n 4 graph.txt --out ranks.csv --report report.html
    skyphos run --hostfile hosts skyphos pagerank graph.txt
    """
    settings = Settings(weights=not unweighted, **options)  # type: ignore[arg-type]
    if launcher_of_group(n) is not None:
        _run(settings)
        return
    n = n or cores()
    _check(settings, n)
    if n == 1:
        _run(settings)
        return
    sys.exit(start_group("pagerank", settings.arguments(), n))


def _check(settings: Settings, n: int) -> None:
    """Refuse bad settings before any process is started."""
    from .output import PAGES, check_writable

    absent = [name for name in ("scipy", "pyarrow") if importlib.util.find_spec(name) is None]
    if absent:
        raise SkyphosError(f"this needs {' and '.join(absent)}: pip install 'skyphos[graph]'")
    from ..graph.columns import Columns
    from ..graph.files import open_binary
    from ..graph.pagerank import check_settings
    from ..graph.spool import is_stream

    check_settings(settings.damping, settings.tol, settings.max_iterations)
    degrees = settings.parsed_degrees()
    product = 1
    for degree in degrees or [n]:
        product *= degree
    if product != n:
        raise BadInput(f"--degrees {settings.degrees} multiply to {product}, but there are {n} ranks")
    Columns.of(settings.columns)
    if not is_stream(settings.graph):
        with open_binary(settings.graph, packed=True):
            pass
    elif settings.graph == "-" and discover().rank == 0 and (sys.stdin is None or sys.stdin.isatty()):
        raise BadInput("-: stdin is a terminal, or closed: send the graph there, as in `cat graph.txt | skyphos …`")
    if settings.out is not None:
        check_writable(settings.out)
    if settings.report is not None:
        check_writable(settings.report, PAGES)


def _run(settings: Settings) -> None:
    """Run one rank."""
    # Imported here, so that none of the reported times includes loading SciPy.
    import scipy.sparse  # noqa: F401

    import skyphos
    from skyphos import graph

    from .progress import Progress
    from .summary import summarise

    try:
        comm = skyphos.init()
    except SkyphosError as error:
        # There is no group yet, so each rank prints its own error.
        click.echo(f"skyphos: {' '.join(str(error).split())}", err=True)
        sys.exit(2 if isinstance(error, BadInput) else 1)
    with comm, Progress(settings.tol, visible=comm.rank == 0) as progress:
        together(comm, lambda: _check(settings, comm.size))
        begin = time.perf_counter()
        progress.show_step(f"loading {settings.graph}")
        edges = graph.load(
            comm,
            settings.graph,
            partition_by=settings.partition,
            weights=settings.weights,
            columns=settings.columns,
            undirected=settings.undirected,
            seed=settings.seed,
        )
        load_s = time.perf_counter() - begin
        progress.show_step("configuring")
        result = graph.pagerank(
            comm,
            edges,
            damping=settings.damping,
            tol=settings.tol,
            max_iterations=settings.max_iterations,
            degrees=settings.parsed_degrees(),
            callback=progress.show_iteration,
            checkpoint=_checkpoint(settings),
        )
        facts = [("edges", f"{reduce_number(comm, len(edges)):,}"), *settings.facts()]
        summary = summarise(comm, result, load_s, top=settings.top, base=edges.base, facts=facts)
        progress.show_step("writing")
        _write(comm, settings, result, summary, base=edges.base)
        comm.barrier()
    if comm.rank == 0:
        click.echo(summary.text())
        if not result.converged:
            residual, iterations = result.residuals[-1], settings.max_iterations
            click.echo(
                f"skyphos: not converged: the residual is {residual:.3g} after {iterations} iterations", err=True
            )


def _checkpoint(settings: Settings) -> Checkpoint | None:
    if settings.checkpoint is None:
        return None
    from ..checkpoint import Checkpoint

    return Checkpoint(settings.checkpoint, every=settings.checkpoint_every)


def _write(comm: Comm, settings: Settings, result: PageRank, summary: Summary, base: int) -> None:
    """Write the files that were asked for, on rank 0."""
    from ..files.whole_file import replacing
    from .output import write_ranks
    from .summary import to_rank_0

    out, report = settings.out, settings.report
    if out is not None:
        # Rank 0 gathers and writes all ranks: the result is one file, and hosts need not share a file system.
        vertices, ranks = to_rank_0(comm, result.vertices[result.owned], result.ranks[result.owned])
        order = vertices.argsort()

    def write() -> None:
        # Both are written completely before either gets its name.
        with ExitStack() as files:
            if out is not None:
                write_ranks(files.enter_context(replacing(out)), out, vertices[order] + base, ranks[order])
            if report is not None:
                page = summary.page(os.path.basename(settings.graph), settings.tol)
                files.enter_context(replacing(report)).write(encoded(page))

    together(comm, lambda: write() if comm.rank == 0 else None)
