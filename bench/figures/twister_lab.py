"""*Twister*, Figs. 4 to 6 in the lab: broadcasts against hosts beside MPICH's and Gloo's, and a chain that knows racks.

The paper: Open MPI and MPJ on up to 150 nodes at 1 Gbit/s. Ours: up to 16 hosts at 250 Mbit/s, which two cores can
serve, with MPICH's Bcast instead of Open MPI's, and Gloo's instead of MPJ's. Racks: 8 hosts at 100 Mbit/s alternate
between two racks joined by 100 Mbit/s, so that a chain in rank order crosses four times each way.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .style import COLOURS, MARKERS, Log, as_point, new, plain_numbers, quartiles

TITLE = "Twister Figs. 4, 5 and 6 in the lab: broadcasts against hosts"
NEEDS_ROOT = True
RATE = "250mbit"
VARIANTS = ("simple", "binomial", "scatter_allgather", "chain", "mpich", "gloo")
RACK_RATE, RACK_HOSTS, RACKS = "100mbit", 8, 2

_NAMES = {"mpich": "MPICH", "gloo": "Gloo"}


def measured(hosts: int, rate: str, size: int, *more: str) -> dict[str, Any]:
    """Results of `bench/broadcast.py`: the floor, and seconds by name."""
    with TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        program = [sys.executable, str(Path(__file__).resolve().parent.parent / "broadcast.py")]
        where = ["--hosts", str(hosts), "--rate", rate, "--mb", str(size), "--json", str(found)]
        done = subprocess.run([*program, *where, *more], check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        record: dict[str, Any] = json.loads(found.read_text())
    return record


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Times of all contenders at each number of hosts, and of two chains over racks."""
    size, rounds = (1, "1") if quick else (32, "5")
    points, floors = [], {}
    for hosts in (2, 4) if quick else (2, 4, 8, 16):
        found = measured(hosts, RATE, size, "--rounds", rounds, "--only", ",".join(VARIANTS))
        floors[hosts] = found["floor_s"]
        for name, seconds in found["seconds"].items():
            points.append(as_point(quartiles(seconds), way=name, hosts=hosts))
        row = ", ".join(f"{p['way']} {p['median']:.3g}" for p in points if p["hosts"] == hosts)
        log(f"{hosts} hosts: {row} s, floor {floors[hosts]:.3g}")
    racks = []
    for knows in (True, False):
        on_racks = ["--racks", str(RACKS), "--uplink", RACK_RATE, "--rounds", rounds, "--only", "chain"]
        found = measured(RACK_HOSTS, RACK_RATE, size, *on_racks, *([] if knows else ["--unaware"]))
        racks.append(as_point(quartiles(found["seconds"]["chain"]), knows=knows, floor_s=found["floor_s"]))
        log(f"racks {'known' if knows else 'not known'}: {racks[-1]['median']:.3g} s")
    # In rank order every hop leaves a rack; the first rack's uplink carries the hops from even ranks, which are half.
    crossing = RACK_HOSTS // RACKS
    return {
        "rate": RATE,
        "mb": size,
        "floor_s": floors[min(floors)],
        "points": points,
        "racks": racks,
        "crossing": crossing,
    }


def draw(entry: dict[str, Any]) -> Any:
    """Times against hosts, and bars for the racks."""
    figure, (against, of_racks) = new(2, width=12.5, height=5.2)
    for number, variant in enumerate(VARIANTS):
        mine = [p for p in entry["points"] if p["way"] == variant]
        against.plot(
            [p["hosts"] for p in mine],
            [p["median"] for p in mine],
            color=COLOURS[number],
            marker=MARKERS[number],
            linestyle="--" if variant in _NAMES else "-",
            label=_NAMES.get(variant, variant),
            zorder=3,
        )
    floor = entry["floor_s"]
    against.axhline(floor, color="black", linestyle=":", linewidth=1.2, label=f"what the link takes, {floor:.2f} s")
    against.set_xscale("log", base=2)
    against.set_yscale("log", base=2)
    plain_numbers(against.xaxis, sorted({p["hosts"] for p in entry["points"]}))
    plain_numbers(against.yaxis, [1, 2, 4, 8, 16])
    against.set_xlabel("hosts (logarithmic)")
    against.set_ylabel(f"seconds for {entry['mb']} MB at {entry['rate'].replace('mbit', ' Mbit/s')} (logarithmic)")
    against.legend(loc="upper left", fontsize=8.5, frameon=False)
    known = next(p for p in entry["racks"] if p["knows"])
    for number, point in enumerate(entry["racks"]):
        name = "rack by rack" if point["knows"] else "by the ranks' numbers"
        of_racks.bar(
            number, point["median"], width=0.6, color=COLOURS[2 if point["knows"] else 1], zorder=3, label=name
        )
        of_racks.text(number, point["median"], f"{point['median']:.2f} s", ha="center", va="bottom", fontsize=9)
    allowed = entry["crossing"] * known["floor_s"]
    of_racks.axhline(allowed, color="black", linestyle=":", linewidth=1.2,
                     label=f"what {entry['crossing']} streams through an uplink take, {allowed:.2f} s")  # fmt: skip
    of_racks.set_xticks([])
    of_racks.set_ylim(0, 1.35 * max(p["median"] for p in entry["racks"]))
    of_racks.set_ylabel("seconds, 8 hosts in two racks, 100 Mbit/s all links")
    of_racks.legend(loc="upper left", fontsize=8.5, frameon=False)
    figure.suptitle(TITLE, fontsize=12, fontweight="bold")
    return figure
