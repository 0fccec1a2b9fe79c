"""`python bench/lab SCENARIO ...`: measure scenarios one after the other. See `bench/README.md`."""

from __future__ import annotations

import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import click
from rich.console import Console

if not __package__:  # started by its folder's name
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from lab.cluster import NoCluster, unavailable
from lab.plot import draw
from lab.record import record, write
from lab.run import run
from lab.scenario import BadScenario, load
from lab.summary import limits, lines
from lab.table import show

DEFAULT = ("little_overlap", "little_overlap_1gbit", "much_overlap")
_RESULTS = Path(__file__).resolve().parent / "results"


@click.command()
@click.argument("scenarios", nargs=-1)
@click.option("--placements", type=click.IntRange(1), help="Number of random placements of ranks on hosts.")
@click.option("--iterations", type=click.IntRange(2), help="Iterations of a contender in a placement, at most.")
@click.option("--rate", help="Rate of the links, as tc writes it.")
@click.option("--burst", help="Bucket of the shaper, as tc writes it.")
@click.option("--only", help="Contenders, with commas between them, instead of the scenario's.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=_RESULTS,
    help="Folder of the JSON and PNG files.  [default: bench/lab/results]",
)
def main(
    scenarios: tuple[str, ...],
    *,
    placements: int | None,
    iterations: int | None,
    rate: str | None,
    burst: str | None,
    only: str | None,
    output: Path,
) -> None:
    """Time contenders side by side in a cluster of network namespaces.

    SCENARIOS are names of files in bench/lab/scenarios, or paths; without any, the default ones are run.
    """
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))
    console = Console(width=None if sys.stdout.isatty() else 140)
    chosen = only.split(",") if only else None
    failed = False
    try:
        wanted = [
            load(name, placements=placements, iterations=iterations, rate=rate, burst=burst, only=chosen)
            for name in scenarios or DEFAULT
        ]
        reason = unavailable()
        if reason and any(scenario.network == "namespaces" for scenario in wanted):
            raise NoCluster(reason)
        output.mkdir(parents=True, exist_ok=True)
        for scenario in wanted:
            result = run(scenario, lambda said: console.print(said, style="dim", markup=False, highlight=False))
            found, bound = lines(result), limits(scenario, result.least_bytes)
            show(result, found, bound, console)
            write(output / f"{scenario.name}.json", record(result, found, bound))
            if find_spec("matplotlib"):
                draw(result, found, bound, output / f"{scenario.name}.png")
            console.print(f"written: {output / scenario.name}.json", style="dim", markup=False)
            failed |= bool(result.failed)
    except (BadScenario, NoCluster) as error:
        raise click.ClickException(str(error)) from None
    if failed:
        raise click.ClickException("some contenders failed")


if __name__ == "__main__":
    main(prog_name="bench/lab")
