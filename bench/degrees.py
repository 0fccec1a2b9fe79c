"""Degrees that the planner chooses, compared with all others, on simulated clusters.

`python bench/degrees.py --ranks 64` simulates the graphs of *Kylix* on its cluster with delayed messages and slow
nodes, once with the degrees that the planner chooses from a probe of the simulated cluster, and once with each ordered
factorisation of the number of nodes. Times are virtual, so other load on the machine does not matter.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.progress import track

from figures.graphs import GRAPHS, Graph, network, plan
from skyphos.planning import Profile, predict_plans
from skyphos.simulate import Network

#: A message is late by half of its own cost on average, and one node in twenty is two to four times as slow.
DISTURBED = {"jitter": "exponential(5e-4)", "straggler_share": 0.05, "straggler_slowness": "uniform(2, 4)"}


@click.command()
@click.option("--ranks", "sizes", multiple=True, type=int, default=(64, 256), show_default=True, help="Nodes.")
@click.option("--graph", "names", multiple=True, type=click.Choice([g.name for g in GRAPHS]), help="Only this graph.")
@click.option("--seeds", default=1, show_default=True, help="Random clusters of each kind; results are medians.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="All times, as JSON.")
def main(sizes: tuple[int, ...], *, names: tuple[str, ...], seeds: int, output: Path | None) -> None:
    """Measure the planner's degrees against all others in the simulator."""
    console = Console()
    found = []
    for ranks in sizes:
        for graph in GRAPHS:
            if names and graph.name not in names:
                continue
            one = _measure(graph, network(ranks, **DISTURBED), seeds, console)
            found.append(one)
            console.print(
                f"{ranks} nodes, {graph.name}: chose {_as_text(one['chosen'])}, {1e3 * one['chosen_s']:.1f} ms; "
                f"best of {len(one['all_s'])} {_as_text(one['best'])}, {1e3 * one['best_s']:.1f} ms: "
                f"ratio {one['regret']:.3f}",
                highlight=False,
            )
            if output:
                partial = output.with_suffix(".part")
                partial.write_text(json.dumps(found, indent=1) + "\n")
                partial.replace(output)


def _as_text(degrees: list[int]) -> str:
    return "x".join(map(str, degrees))


def _measure(graph: Graph, cluster: Network, seeds: int, console: Console) -> dict[str, Any]:
    """Seconds of a reduction with the chosen degrees and with all others."""

    def seconds(degrees: tuple[int, ...]) -> float:
        return median(plan(graph, degrees, cluster, seed=seed).last_s for seed in range(1, seeds + 1))

    chosen = plan(graph, None, cluster).phases[-1].degrees
    # The planner's list of all ordered factorisations; its predictions are not used.
    every = [
        p.degrees
        for p in predict_plans(cluster.ranks, graph.n, graph.entries(cluster.ranks), profile=Profile.network(1e9))
    ]
    label = f"{graph.name}, {cluster.ranks}"
    all_s = {d: seconds(d) for d in track(every, label, console=console, transient=True)}
    best = min(all_s, key=all_s.__getitem__)
    return {
        "graph": graph.name,
        "ranks": cluster.ranks,
        "seeds": seeds,
        "disturbed": DISTURBED,
        "chosen": list(chosen),
        "chosen_s": all_s[tuple(chosen)],
        "best": list(best),
        "best_s": all_s[best],
        "regret": all_s[tuple(chosen)] / all_s[best],
        "all_s": {_as_text(list(d)): s for d, s in all_s.items()},
    }


if __name__ == "__main__":
    main()
